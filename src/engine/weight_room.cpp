#include "engine/weight_room.h"

#include <algorithm>
#include <utility>

#include "mem/system_memory.h"

namespace tael::engine {
namespace {

// One part in so many of the room stays free.
constexpr uint64_t kSpareShare = 8;

WeightRoom::System Filled(WeightRoom::System system) {
  if (!system.group_room) system.group_room = [] { return mem::FileRoomBytes(); };
  if (!system.available) system.available = [] { return mem::SystemAvailableBytes(); };
  if (!system.now) system.now = [] { return WeightRoom::Clock::now(); };
  return system;
}

}  // namespace

WeightRoom::WeightRoom(exec::WeightPager& pager, exec::ThrashGuard guard, System system)
    : pager_(pager),
      guard_(std::move(guard)),
      system_(Filled(std::move(system))),
      planned_layers_(pager.resident_layers()) {}

// Only a pass that should find its weights in memory can tell that they are taken away: the first
// ones read them. Where all layers are streamed by plan there is nothing to give up, and a pass
// that reads more than its layers is no reason to turn anybody away: who joins it costs no more
// reading.
void WeightRoom::BeforePass() {
  if (pager_.streams()) LookAtCache();
  is_watched_ = planned_layers_ > 0 && (pager_.complete() || pager_.streams());
  if (is_watched_) guard_.Begin();
}

void WeightRoom::AfterPass() {
  if (is_watched_ && guard_.End()) {
    GiveWay();
  } else {
    Look();
  }
}

void WeightRoom::GiveWay() {
  if (!is_short()) {
    wait_ = next_wait_;
    next_wait_ = std::min<Clock::duration>(2 * wait_, kLongestWait);
  }
  next_look_ = system_.now() + wait_;
  is_short_.store(true, std::memory_order_relaxed);
  const uint32_t resident = pager_.resident_layers();
  if (resident == 0) return;
  // What the system calls available counts pages that others are using: it is no measure here.
  const std::optional<uint64_t> room = system_.group_room();
  const std::optional<uint32_t> fitting = room ? pager_.LayersWithin(*room) : std::nullopt;
  pager_.SetResident(std::min(fitting.value_or(resident / 2), resident - 1));
}

uint32_t WeightRoom::LayersWithRoom() const {
  const uint64_t room =
      std::min(system_.group_room().value_or(UINT64_MAX), system_.available().value_or(0));
  return pager_.LayersWithin(room - room / kSpareShare).value_or(0);
}

void WeightRoom::LookAtCache() {
  if (system_.now() < next_cache_look_) return;
  next_cache_look_ = system_.now() + kFirstWait;
  pager_.KeepInCache(LayersWithRoom() == pager_.num_layers());
}

// All of them or none: a few more would be read again for every further step.
void WeightRoom::Look() {
  if (!is_short() || system_.now() < next_look_) return;
  next_look_ = system_.now() + kFirstWait;
  if (LayersWithRoom() < planned_layers_) return;
  pager_.SetResident(planned_layers_);
  is_short_.store(false, std::memory_order_relaxed);
}

std::string WeightRoom::Why() const {
  if (!is_short()) return "";
  const uint32_t layers = pager_.num_layers();
  return "the system has no room for the weights: " +
         std::to_string(layers - pager_.resident_layers()) + " of " + std::to_string(layers) +
         " layers are read from the file for every token; free memory, or give a budget below what "
         "the system can spare";
}

}  // namespace tael::engine
