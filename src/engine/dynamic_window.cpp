#include "engine/dynamic_window.h"

#include <algorithm>
#include <optional>

#include "base/checked.h"
#include "engine/engine.h"
#include "engine/speculation.h"

namespace tael::engine {
namespace {

constexpr uint32_t kTokens = kernels::kBlockTokens;

// Rows that a pass may add to a sequence: its tokens, and two blocks that it shares or begins.
uint64_t PassBytes(const Engine& engine) {
  const uint64_t rows = CeilDiv<uint64_t>(engine.max_batch_tokens(), kTokens) + 2;
  return rows * engine.plan().geometry.RowBytes();
}

double ShareOf(const Engine& engine, uint64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(engine.pool().Stats().capacity_bytes);
}

double FreeShare(const Engine& engine, uint64_t idle_bytes) {
  const kv::PoolStats pool = engine.pool().Stats();
  const uint64_t taken =
      pool.block_bytes_in_use - std::min(idle_bytes, pool.block_bytes_in_use) + PassBytes(engine);
  return ShareOf(engine, pool.capacity_bytes - std::min(taken, pool.capacity_bytes));
}

// That a group keeps.
uint32_t HeldTokens(const kv::Sequence& sequence, kv::GroupId group) {
  const uint32_t first = sequence.FirstVisible(group, sequence.length());
  const uint32_t recent = sequence.length() - std::min(sequence.length(), first);
  return recent + std::min(first, sequence.window(group).sinks);
}

// Of the layer that keeps most.
uint32_t HeldTokens(const kv::Sequence& sequence) {
  uint32_t held = 0;
  for (size_t i = 0; i < sequence.geometry().groups.size(); ++i) {
    held = std::max(held, HeldTokens(sequence, kv::GroupId{static_cast<uint32_t>(i)}));
  }
  return held;
}

// What a window takes that is not there yet.
uint64_t BytesToFill(const kv::Sequence& sequence, uint32_t window) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < sequence.geometry().groups.size(); ++i) {
    const kv::LayerGroup& group = sequence.geometry().groups[i];
    const uint64_t most = kv::MostRows(kv::Narrowed(group.shape, window), 0);
    const uint64_t held = HeldTokens(sequence, kv::GroupId{static_cast<uint32_t>(i)}) / kTokens;
    bytes += (most - std::min(most, held)) * group.block_bytes;
  }
  return bytes;
}

// A token and its guesses count alike.
uint32_t Brings(uint32_t coming) { return RoundUp(coming, kTokens) + kTokens; }

}  // namespace

uint32_t WiderWindow(uint32_t limit, uint32_t widest, uint32_t coming) {
  return std::min(widest, limit + std::max(kWindowStep, Brings(coming)));
}

uint32_t NextWindow(const WindowSituation& now) {
  if (now.free_share < kLittleFree) {
    // What it may keep, but does not, is nothing to give up.
    const uint32_t used = std::min(now.limit, now.held);
    return std::clamp(used - std::min(used, kWindowStep), now.start, now.limit);
  }
  // Before the first token is dropped.
  if (now.held + Brings(now.coming) <= now.limit || now.free_share < kPlentyFree) return now.limit;
  // What it will take must not be what makes it shrink again.
  if (now.free_share - now.share_to_widen < kLittleFree) return now.limit;
  return WiderWindow(now.limit, now.widest, now.coming);
}

std::optional<uint32_t> Session::AdaptWindow(uint32_t num_tokens, uint64_t idle_bytes) {
  const MemoryPlan& plan = engine_->plan();
  if (plan.window.start == 0) return std::nullopt;
  const uint32_t widest = plan.workspace.max_window;
  const uint32_t limit = sequence_.window_limit() != 0 ? sequence_.window_limit() : widest;
  if (limit < plan.window.start) return std::nullopt;  // under pressure: not ours to lift
  const uint64_t more = BytesToFill(sequence_, WiderWindow(limit, widest, num_tokens));
  const uint32_t next = NextWindow({.start = plan.window.start,
                                    .widest = widest,
                                    .limit = limit,
                                    .held = HeldTokens(sequence_),
                                    .coming = num_tokens,
                                    .free_share = FreeShare(*engine_, idle_bytes),
                                    .share_to_widen = ShareOf(*engine_, more)});
  if (next == limit) return std::nullopt;
  sequence_.LimitWindow(next == widest ? 0 : next);
  return next;
}

bool Session::NarrowWindow() {
  const uint32_t start = engine_->plan().window.start;
  const uint32_t limit = sequence_.window_limit();
  if (start == 0 || (limit != 0 && limit <= start)) return false;
  sequence_.LimitWindow(start);
  return true;
}

bool Session::MayDraft() const {
  const MemoryPlan& plan = engine_->plan();
  const uint32_t limit = sequence_.window_limit();
  if (plan.window.start == 0 || limit == 0 || limit < plan.window.start) return true;
  constexpr uint32_t kMostBrought = 1 + Speculation::kMostDraft + 2 * kTokens;
  return HeldTokens(sequence_) + kMostBrought <= limit;
}

}  // namespace tael::engine
