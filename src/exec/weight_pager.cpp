#include "exec/weight_pager.h"

#include <algorithm>
#include <utility>

#include "base/thread.h"

namespace tael::exec {

WeightPager::WeightPager(const mem::FileMapping& mapping, model::WeightExtents extents,
                         uint32_t resident_layers)
    : mapping_(mapping),
      extents_(std::move(extents)),
      resident_layers_(std::min(resident_layers, num_layers())),
      mapped_(num_layers() + 1, false) {}

Result<std::unique_ptr<WeightPager>> WeightPager::Create(const mem::FileMapping& mapping,
                                                         model::WeightExtents extents,
                                                         uint32_t resident_layers, WarmUp warm_up) {
  std::unique_ptr<WeightPager> pager(new WeightPager(mapping, std::move(extents), resident_layers));
  if (!pager->streams()) pager->LeaveToFaults(warm_up);
  TAEL_ASSIGN_OR_RETURN(pager->thread_, StartThread("cannot start the thread that reads weights",
                                                    [raw = pager.get()] { raw->Work(); }));
  if (warm_up == WarmUp::kAll && !pager->streams()) {
    std::unique_lock lock(pager->mutex_);
    pager->changed_.wait(lock, [&] { return pager->NextUnit() == pager->mapped_.size(); });
  }
  return pager;
}

// Counts as mapped what is not to be read ahead. Before the thread starts.
void WeightPager::LeaveToFaults(WarmUp warm_up) {
  constexpr uint32_t kFirstLayers = 3;
  if (warm_up == WarmUp::kNone) std::fill(mapped_.begin(), mapped_.end(), true);
  if (warm_up != WarmUp::kFirstLayers) return;
  for (uint32_t unit = kFirstLayers; unit < num_layers(); ++unit) mapped_[unit] = true;
}

WeightPager::~WeightPager() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void WeightPager::SetResident(uint32_t layers) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !reading_; });
  resident_layers_.store(layers, std::memory_order_relaxed);
  complete_.store(false, std::memory_order_release);
  for (uint32_t unit = layers; unit < num_layers(); ++unit) Drop(unit);
  changed_.notify_all();
}

std::optional<uint32_t> WeightPager::LayersWithin(uint64_t bytes) const {
  uint64_t needed = extents_.rest_bytes() + kStreamedAtOnce * extents_.largest_layer_bytes();
  if (needed > bytes) return std::nullopt;
  uint32_t layers = 0;
  while (layers < num_layers() && needed + extents_.layer_bytes(layers) <= bytes) {
    needed += extents_.layer_bytes(layers++);
  }
  return layers;
}

void WeightPager::Enter(uint32_t unit) {
  if (complete()) return;
  std::unique_lock lock(mutex_);
  cursor_ = unit;
  released_ = false;
  DropBehind(unit);
  changed_.notify_all();
  changed_.wait(lock, [&] { return mapped_[unit] || stopping_; });
}

void WeightPager::Release() {
  std::unique_lock lock(mutex_);
  released_ = true;
  changed_.wait(lock, [&] { return !reading_; });
  std::fill(mapped_.begin(), mapped_.end(), false);
  cursor_ = 0;
  complete_.store(false, std::memory_order_release);
  mapping_.Evict();
}

uint64_t WeightPager::mapped_bytes() const {
  const std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (uint32_t unit = 0; unit < mapped_.size(); ++unit) {
    if (!mapped_[unit]) continue;
    for (const model::Extent& extent : ExtentsOf(unit)) bytes += extent.bytes;
  }
  return bytes;
}

// Streamed layers that are neither `unit` nor among the next ones to come. Requires: mutex_.
void WeightPager::DropBehind(uint32_t unit) {
  uint32_t keep = kStreamedAtOnce;
  for (uint32_t i = 0; i < mapped_.size(); ++i) {
    const auto at = static_cast<uint32_t>((unit + i) % mapped_.size());
    if (!IsStreamed(at)) continue;
    if (keep > 0) {
      --keep;
    } else {
      Drop(at);
    }
  }
}

// Requires: mutex_.
void WeightPager::Drop(uint32_t unit) {
  if (!mapped_[unit]) return;
  for (const model::Extent& extent : ExtentsOf(unit)) {
    if (keeps_in_cache()) {
      mapping_.Drop(extent.offset, extent.bytes);
    } else {
      mapping_.Forget(extent.offset, extent.bytes);
    }
  }
  mapped_[unit] = false;
}

// The unit to read next, from the cursor on; mapped_.size() if there is none. Requires: mutex_.
uint32_t WeightPager::NextUnit() const {
  const auto count = static_cast<uint32_t>(mapped_.size());
  uint32_t streamed = kStreamedAtOnce;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t unit = (cursor_ + i) % count;
    const bool wanted = !IsStreamed(unit) || streamed > 0;
    if (IsStreamed(unit) && streamed > 0) --streamed;
    if (wanted && !mapped_[unit]) return unit;
  }
  return count;
}

void WeightPager::Work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const uint32_t unit = released_ ? static_cast<uint32_t>(mapped_.size()) : NextUnit();
    if (unit == mapped_.size()) {
      if (!released_ && !streams()) complete_.store(true, std::memory_order_release);
      changed_.wait(lock);
      continue;
    }
    reading_ = true;
    lock.unlock();
    for (const model::Extent& extent : ExtentsOf(unit)) {
      mapping_.Populate(extent.offset, extent.bytes);
    }
    lock.lock();
    reading_ = false;
    mapped_[unit] = true;
    DropBehind(cursor_);  // a pass that was given up does not want it any more
    changed_.notify_all();
  }
}

}  // namespace tael::exec
