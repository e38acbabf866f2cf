// Which layers' weights are in memory: reads them ahead of the first pass, in the order of use, and
// streams those for which the budget has no room.
//
//   unit       a layer, or the rest of the file (embedding, output head), the last unit of a pass
//   resident   stays once it is there: the rest, and the first resident_layers layers
//   streamed   there while it computes; the next one is read meanwhile; dropped behind. At most two
//
// What is dropped may stay in the page cache, where the next pass finds it. But a cache that cannot
// hold the whole file then fills up with layers that are not needed for longest, and pushes out
// those that are: there it is told to forget them.
//
// One background thread reads. A pass calls Enter() before each unit, from one thread, and waits in
// it until the unit's pages are mapped: a fault per page would read at about 1 GB/s even from the
// page cache (KERNELS section 4). Once everything is mapped, complete() is true and a pass need not
// call anything.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/result.h"
#include "mem/mapping.h"
#include "model/extents.h"

namespace tael::exec {

// What is read before it is asked for, where everything is resident. kAhead is the fastest where a
// CPU is left for the thread that reads, kFirstLayers where that thread would take one from those
// that compute; the others are there to be measured against them (bench/micro/cold_start_main.cpp).
enum class WarmUp : uint8_t {
  kAhead,        // all of it, in the order of use, while the first pass computes
  kAll,          // all of it, before Create() returns
  kFirstLayers,  // the rest of the file and three layers; the others come as pages are touched
  kNone,         // pages come as they are touched
};

class WeightPager {
 public:
  static constexpr uint32_t kStreamedAtOnce = 2;

  // `mapping` outlives the pager. Starts to read at once. Fails: kIo if the thread cannot be
  // started.
  static Result<std::unique_ptr<WeightPager>> Create(const mem::FileMapping& mapping,
                                                     model::WeightExtents extents,
                                                     uint32_t resident_layers,
                                                     WarmUp warm_up = WarmUp::kAhead);
  ~WeightPager();
  WeightPager(const WeightPager&) = delete;
  WeightPager& operator=(const WeightPager&) = delete;

  uint32_t num_layers() const { return static_cast<uint32_t>(extents_.layers.size()); }
  uint32_t resident_layers() const { return resident_layers_.load(std::memory_order_relaxed); }
  bool streams() const { return resident_layers() < num_layers(); }
  bool complete() const { return complete_.load(std::memory_order_acquire); }

  // Waits until the unit's pages are mapped; num_layers() is the rest. Nobody reads any other
  // streamed layer any more.
  void Enter(uint32_t unit);

  // Gives every page back to the kernel; the next Enter() reads again. Requires: no pass runs.
  void Release();

  // From now on so many layers are resident: for a process whose weights the kernel takes away, and
  // later gives room for again. Requires: no pass runs; layers <= num_layers().
  void SetResident(uint32_t layers);

  // Whether dropped layers may stay in the page cache; at first they may. Any thread.
  void KeepInCache(bool keep) { keeps_in_cache_.store(keep, std::memory_order_relaxed); }
  bool keeps_in_cache() const { return keeps_in_cache_.load(std::memory_order_relaxed); }

  // The largest number of resident layers with which no more than `bytes` are in memory at a time;
  // none where streaming everything takes more.
  std::optional<uint32_t> LayersWithin(uint64_t bytes) const;

  // Bytes of the units that are mapped now.
  uint64_t mapped_bytes() const;

 private:
  WeightPager(const mem::FileMapping& mapping, model::WeightExtents extents,
              uint32_t resident_layers);
  bool IsStreamed(uint32_t unit) const { return unit >= resident_layers() && unit < num_layers(); }
  const std::vector<model::Extent>& ExtentsOf(uint32_t unit) const {
    return unit < num_layers() ? extents_.layers[unit] : extents_.rest;
  }
  void LeaveToFaults(WarmUp warm_up);
  uint32_t NextUnit() const;
  void Drop(uint32_t unit);
  void DropBehind(uint32_t unit);
  void Work();

  const mem::FileMapping& mapping_;
  const model::WeightExtents extents_;
  std::atomic<uint32_t> resident_layers_;  // changes under mutex_
  std::atomic<bool> complete_{false};
  std::atomic<bool> keeps_in_cache_{true};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> mapped_;  // by unit
  uint32_t cursor_ = 0;       // the unit that computes now
  bool reading_ = false;      // outside the lock
  bool released_ = false;     // nothing is read until the next Enter()
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tael::exec
