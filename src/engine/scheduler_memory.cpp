// What the scheduler gives back when blocks run out, or somebody asks (the order: reclaim.h).
#include <algorithm>
#include <string>

#include "base/units.h"
#include "engine/scheduler_loop.h"

namespace tael::engine {
namespace {

// What cannot be moved may take so much of the pool: one part in two.
constexpr uint64_t kPinnedShare = 2;

}  // namespace

std::unique_ptr<kv::PrefixIndex> MakeIndex(Engine& engine, uint64_t max_bytes) {
  constexpr uint64_t kLeastRows = 16;
  const uint64_t least = kLeastRows * engine.plan().geometry.RowBytes();
  if (max_bytes == 0) max_bytes = engine.pool().Stats().capacity_bytes;
  // Its table of rows is small beside them, but a budget may have nothing left at all.
  for (; max_bytes >= least; max_bytes /= 2) {
    auto index = kv::PrefixIndex::Create(engine.budget(), engine.plan().geometry, engine.pool(),
                                         {.max_bytes = max_bytes});
    if (index) return *std::move(index);
  }
  return nullptr;
}

// A pass found no blocks.
void SchedulerLoop::FindRoom() {
  const uint64_t bytes = plan_.CountNewRows() * account_.row_bytes();
  const uint64_t preemptions = stats_.preemptions;
  const uint64_t freed = Reclaim(*this, bytes, ReclaimStep::kPreempt);
  if (freed > 0 || stats_.preemptions > preemptions) return;
  // Nothing is left to take, and one request is too large. Admission keeps this from happening.
  Choice& choice = *plan_.parts().back().choice;
  Log("no room for a request of " + std::to_string(choice.writer->history().size()) + " tokens");
  choice.writer->Finish(FinishReason::kMemory);
  Settle(choice);
  ForgetDone();
}

uint64_t SchedulerLoop::EvictIdleRows(uint64_t bytes) {
  if (index_ == nullptr) return 0;
  const uint64_t freed = index_->Evict(bytes);
  if (freed == 0) return 0;
  ++room_version_;
  stats_.evicted_bytes += freed;
  Log("reclaim: " + FormatSize(freed) + " of idle prefix rows");
  return freed;
}

// Those that are due last first. A window that was narrowed stays so until its answer is complete.
uint64_t SchedulerLoop::ShrinkWindows(uint64_t bytes) {
  if (!engine_.plan().is_endless()) return 0;
  const kv::WindowPolicy& window = engine_.plan().window;
  // What has grown shrinks first, to where it began.
  uint64_t freed = window.start != 0 ? LimitWindows(window.start, bytes) : 0;
  const bool narrows = window.start == 0 || window.floor < window.start;
  if (narrows && freed < bytes) freed += LimitWindows(window.floor, bytes - freed);
  if (freed > 0) ++room_version_;
  return freed;
}

// Of running sequences, until they have given back so many bytes; returns how many they gave.
uint64_t SchedulerLoop::LimitWindows(uint32_t tokens, uint64_t bytes) {
  const uint64_t before = BytesInUse();
  uint64_t freed = 0;
  for (auto job = active_.rbegin(); job != active_.rend() && freed < bytes; ++job) {
    for (const auto& choice : (*job)->choices) {
      if (choice->state != State::kRuns) continue;
      const uint32_t limit = choice->session->sequence().window_limit();
      if (limit == 0 || limit > tokens) choice->session->LimitWindow(tokens);
    }
    freed = before - BytesInUse();
  }
  if (freed > 0) {
    Log("reclaim: " + FormatSize(freed) + " of windows, which hold " + std::to_string(tokens) +
        " tokens now");
  }
  return freed;
}

// Windows that grow: how wide each may be in the pass that comes. Idle rows go before windows do.
void SchedulerLoop::AdaptWindows() {
  if (engine_.plan().window.start == 0) return;
  const uint64_t idle_bytes = index_ != nullptr ? index_->Stats().idle_bytes : 0;
  for (const PassPlan::Part& part : plan_.parts()) {
    const kv::Sequence& sequence = part.choice->session->sequence();
    const uint32_t before = sequence.window_limit();
    const auto tokens = static_cast<uint32_t>(part.feed.tokens.size());
    const auto window = part.choice->session->AdaptWindow(tokens, idle_bytes);
    if (!window || (before != 0 && *window > before)) continue;
    Log("a window is narrowed to " + std::to_string(*window) + " tokens");
  }
}

// The sequence that is due last; of those whose readers are slow, if there are any.
bool SchedulerLoop::PreemptLast(uint64_t& freed_bytes) {
  Choice* last = nullptr;
  for (const auto& job : active_) {
    for (const auto& choice : job->choices) {
      if (choice->state != State::kRuns) continue;
      const bool spared = last != nullptr && last->job.full_since && !job->full_since;
      if (!spared) last = choice.get();
    }
  }
  if (last == nullptr || NumRunning() == 1) return false;
  const uint64_t before = BytesInUse();
  Preempt(*last);
  freed_bytes = before - BytesInUse();
  return true;
}

// Its rows become idle ones, so that what nobody needs meanwhile is there when it goes on.
void SchedulerLoop::Preempt(Choice& choice) {
  Publish(choice);
  Log("reclaim: a sequence of " + std::to_string(choice.held()) + " tokens is preempted");
  choice.session.reset();
  choice.state = State::kPreempted;
  choice.computes_for_us = 0;
  ++stats_.preemptions;
  ++room_version_;
}

// Moves blocks together where that frees a slab, whose pages then go back to the kernel.
void SchedulerLoop::Compact() {
  const kv::PoolStats pool = engine_.pool().Stats();
  const uint64_t in_slabs = pool.num_slabs_in_use * pool.slab_bytes;
  if (pool.block_bytes_in_use + pool.slab_bytes > in_slabs) return;
  const std::vector<kv::BlockPool::Move> moves = engine_.pool().Compact();
  if (moves.empty()) return;
  for (const auto& job : active_) {
    for (const auto& choice : job->choices) {
      if (choice->session) choice->session->Follow(moves);
    }
  }
  if (index_ != nullptr) index_->Follow(moves);
  stats_.moved_blocks += moves.size();
  Log("reclaim: " + std::to_string(moves.size()) + " blocks moved together");
}

uint64_t SchedulerLoop::Trim(TrimLevel level) {
  const bool critical = level == TrimLevel::kCritical;
  const uint64_t before = BytesInUse();
  if (critical) pressure_until_ = Clock::now() + options_.pressure_hold;
  Reclaim(*this, ~uint64_t{0}, critical ? ReclaimStep::kPreempt : ReclaimStep::kIdlePrefixRows);
  Compact();
  const uint64_t freed = before - BytesInUse();
  ++stats_.trims;
  stats_.trimmed_bytes += freed;
  Log(std::string("trim: ") + (critical ? "critical" : "moderate") + " gave back " +
      FormatSize(freed));
  TellStats(true);
  return freed;
}

// A prompt that was to stay has been computed. False, after its answer has failed, if it cannot.
bool SchedulerLoop::KeepPinned(const Choice& choice) {
  const std::vector<TokenId>& prompt = choice.job.request.prompt;
  KvAccount::Blocks pinned = account_.For(static_cast<uint32_t>(prompt.size()), 0);
  Add(pinned, pinned_);
  KvAccount::Blocks shared = account_.None();
  for (uint64_t i = 0; i < kPinnedShare; ++i) Add(shared, pinned);
  const uint64_t whole_rows = prompt.size() - prompt.size() % kernels::kBlockTokens;
  if (account_.Fit(shared)) {
    if (index_->Pin(prompt, choice.job.request.salt) == whole_rows) {
      pinned_ = std::move(pinned);
      return true;
    }
    index_->Unpin(prompt, choice.job.request.salt);
  }
  choice.job.dropped = true;
  ++stats_.failed;
  choice.job.answer->Fail({ErrorCode::kOutOfBudget, "the pinned prompt is too large",
                           std::to_string(prompt.size()) +
                               " tokens; pinned prompts may take half of the KV pool in all: "
                               "shorten it or raise the budget"});
  return false;
}

}  // namespace tael::engine
