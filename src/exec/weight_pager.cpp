#include "exec/weight_pager.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/fault.h"

namespace tael::exec {

WeightPager::WeightPager(const mem::FileMapping& mapping, model::WeightExtents extents,
                         uint32_t resident_layers)
    : mapping_(mapping),
      extents_(std::move(extents)),
      resident_layers_(std::min(resident_layers, num_layers())),
      mapped_(num_layers() + 1, false) {}

Result<std::unique_ptr<WeightPager>> WeightPager::Create(const mem::FileMapping& mapping,
                                                         model::WeightExtents extents,
                                                         uint32_t resident_layers) {
  std::unique_ptr<WeightPager> pager(new WeightPager(mapping, std::move(extents), resident_layers));
  try {
    if (FaultHere(FaultKind::kThread)) throw std::system_error(EAGAIN, std::generic_category());
    pager->thread_ = std::thread([raw = pager.get()] { raw->Work(); });
  } catch (const std::system_error&) {
    return Error{ErrorCode::kIo, "cannot start the thread that reads weights",
                 "the system has no room for another thread; raise its limit (ulimit -u)"};
  }
  return pager;
}

WeightPager::~WeightPager() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
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
    } else if (mapped_[at]) {
      for (const model::Extent& extent : ExtentsOf(at)) mapping_.Drop(extent.offset, extent.bytes);
      mapped_[at] = false;
    }
  }
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
    changed_.notify_all();
  }
}

}  // namespace tael::exec
