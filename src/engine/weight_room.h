// What an engine does when the system has no room for its weights: takes them away although the
// budget has room for them, gives the room back, or cannot cache the layers that are streamed.
//
// Fewer layers in memory and the others read in order, ahead of their use, are far faster than all
// of them page by page. Once in a while it looks whether there is room again. A system that gives
// room and takes it away at once must not make the engine read all weights for nothing each time:
// after every such turn it waits twice as long.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "exec/thrash_guard.h"
#include "exec/weight_pager.h"

namespace tael::engine {

class WeightRoom {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kFirstWait{10};
  static constexpr std::chrono::seconds kLongestWait{640};

  // What it sees of the system; tests give their own.
  struct System {
    std::function<std::optional<uint64_t>()> group_room;  // mem::FileRoomBytes
    std::function<std::optional<uint64_t>()> available;   // mem::SystemAvailableBytes
    std::function<Clock::time_point()> now;
  };

  // `pager` outlives it.
  WeightRoom(exec::WeightPager& pager, exec::ThrashGuard guard, System system = {});

  // Around each pass, from the thread that runs them.
  void BeforePass();
  void AfterPass();
  // Between two passes, for who has none to run: takes the room back if it is there. Does nothing
  // before next_look().
  void Look();
  // When that is; never where nothing was lost.
  Clock::time_point next_look() const { return is_short() ? next_look_ : Clock::time_point::max(); }

  // Any thread. Whether layers are streamed that the budget has room for.
  bool is_short() const { return is_short_.load(std::memory_order_relaxed); }
  // Why, for people; empty where it is not.
  std::string Why() const;

 private:
  void GiveWay();
  // Layers for which the system has room now, with some to spare.
  uint32_t LayersWithRoom() const;
  void LookAtCache();

  exec::WeightPager& pager_;
  exec::ThrashGuard guard_;
  const System system_;
  const uint32_t planned_layers_;  // in memory
  std::atomic<bool> is_short_{false};
  bool is_watched_ = false;  // the pass that runs
  Clock::duration wait_ = kFirstWait;
  Clock::duration next_wait_ = kFirstWait;  // after layers came back, should they go again
  Clock::time_point next_look_;
  Clock::time_point next_cache_look_ = Clock::time_point::min();
};

}  // namespace tael::engine
