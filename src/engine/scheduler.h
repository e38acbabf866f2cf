// Serves many requests with one engine: continuous batching on one thread.
//
// Each pass over the weights takes a token of every answer that is being written, then fills up
// with the prompt that is due first: a long prompt delays the others' tokens by one pass at most.
//
//   order      by due time: arrival, later by 1 ms per token of the prompt (short prompts first,
//              and nobody starves), later by 30 s for background requests
//   admission  a request starts when the pool holds its prompt and the next 256 tokens of its
//              answer (or all of it, if that is less), beside the same of those that run; rows that
//              are shared count once, idle rows of the prefix index are free. Room for the longest
//              possible answer would keep most requests waiting for tokens that never come
//   memory     when blocks run out all the same: idle prefix rows go, then windows are narrowed to
//              their floor, then the request that is due last is put back into the queue; it is
//              computed again later and goes on where it was, nothing is sent twice. An answer is
//              never given up for memory
//   sharing    what prompts have in common is computed once, in rows of 16 tokens, also while the
//              first request that has them is still at it; the last row may be shared in part
//   pinned     a system prompt stays in memory
//
// What can never run is refused before it starts; what cannot run now waits in a bounded queue.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "engine/answer.h"
#include "engine/engine.h"
#include "engine/request.h"

namespace tael::kv {
class PrefixIndex;
}  // namespace tael::kv

namespace tael::engine {

struct SchedulerOptions {
  uint32_t max_queued = 32;
  // Sequences (choices) at a time; 0: the plan's max_sessions. More than those share the KV that
  // was planned for fewer; at most Engine::max_batch_tokens().
  uint32_t max_running = 0;
  bool prefix_cache = true;
  // Of the KV pool, at most so many bytes are known to the index, whether others use them too or
  // not; 0: all of it.
  uint64_t prefix_cache_bytes = 0;
  // Tokens of an answer beyond those it has that are promised room.
  uint32_t reserved_tokens = 256;
  // Tokens that wait for the reader before its answer pauses, and how long it may.
  uint32_t buffer_tokens = 256;
  std::chrono::milliseconds slow_reader_timeout{30000};
  // Without work for so long, weights are given back to the kernel; 0: never.
  std::chrono::milliseconds idle_release{0};
  // After Trim(kCritical) one sequence runs at a time for so long.
  std::chrono::milliseconds pressure_hold{5000};
  // Receives one line, without its end, for each step of reclaim; on the scheduler's thread.
  std::function<void(std::string_view)> log = {};
};

enum class TrimLevel : uint8_t {
  kModerate,  // idle prefix rows, and what is left is moved together
  kCritical,  // windows too, and all sequences but the one that is due first, for a while
};

// A snapshot: gauges first, then counters since Create().
struct SchedulerStats {
  uint32_t queued = 0;     // wait to start
  uint32_t running = 0;    // sequences that hold KV
  uint32_t preempted = 0;  // sequences that wait to go on
  uint32_t paused = 0;     // of the running: their readers are slow
  bool under_pressure = false;
  bool weights_released = false;
  uint32_t retry_after_s = 1;  // when to come back, should the queue be full

  uint64_t prefix_rows = 0;
  uint64_t prefix_bytes = 0;
  uint64_t prefix_idle_bytes = 0;
  uint64_t prefix_hits = 0;
  uint64_t prefix_hit_tokens = 0;
  uint64_t prefix_rejected_hits = 0;  // equal hashes of unequal tokens
  uint64_t prefix_evicted_rows = 0;

  uint64_t submitted = 0;  // accepted by Submit()
  uint64_t refused_busy = 0;
  uint64_t finished = 0;
  uint64_t cancelled = 0;
  uint64_t slow_readers = 0;  // of the cancelled
  uint64_t failed = 0;
  uint64_t passes = 0;
  uint64_t abandoned_passes = 0;   // of them: those for whom they were had gone
  uint64_t prompt_tokens = 0;      // computed: without what was shared
  uint64_t generated_tokens = 0;   // sent
  uint64_t recomputed_tokens = 0;  // after preemption
  uint64_t preemptions = 0;
  uint64_t resumptions = 0;
  uint64_t evicted_bytes = 0;  // idle prefix rows, for somebody who needed the room
  uint64_t trims = 0;
  uint64_t trimmed_bytes = 0;
  uint64_t moved_blocks = 0;   // so that slabs become empty
  uint64_t idle_releases = 0;  // of weights
};

class SchedulerLoop;

// Any thread may call anything. From Create() until the scheduler is gone the engine is its own,
// but for Engine's const functions that read what never changes (model, tokenizer, plan, limits)
// or say that any thread may call them (Ledger, pool().Stats()).
class Scheduler {
 public:
  // Starts the thread. `engine` outlives the scheduler. Where the budget has no room for the table
  // of a prefix cache, it is smaller, or there is none. Fails: kInvalidArgument (options); kIo if
  // there is no thread to be had.
  static Result<std::unique_ptr<Scheduler>> Create(Engine& engine, const SchedulerOptions& options);
  ~Scheduler();  // ends every answer as cancelled; answers may outlive it
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Fails: kInvalidArgument (no prompt, ids outside the vocabulary, options, more choices than can
  // run); kContextExceeded, naming the numbers, where prompt and answer are longer than the
  // context; kBusy where the queue is full (see RetryAfterSeconds), or where others are answered
  // while the system has no room for the weights. Later failures are the answer's error():
  // kOutOfBudget, before it starts, where pinned prompts or what sampling needs leave no room even
  // for this request alone; kIo when the model file was cut; kCancelled when its reader was too
  // slow.
  Result<std::shared_ptr<Answer>> Submit(Request request);
  // When a request that was refused with kBusy might be taken: a guess from how long requests took.
  uint32_t RetryAfterSeconds() const;
  // Tokens that the context has left behind a prompt: max_tokens of who wants all. In a window,
  // which has no end, as many as the context.
  uint32_t MostNewTokens(size_t prompt_tokens) const;

  // Computes the prompt's full rows and keeps them for requests with this salt until the scheduler
  // is gone. Fails: as Submit(); kOutOfBudget where it needs more than half the pool;
  // kInvalidArgument without a prefix cache. Blocks: until it is done.
  Status Pin(std::vector<TokenId> prompt, uint64_t salt);

  // Gives memory back, bytes of KV; see TrimLevel. Blocks: until the pass that runs is over.
  uint64_t Trim(TrimLevel level);

  // Calls `body` on the scheduler's thread, between two passes, with the index of prefixes (null:
  // none) to save it or to fill it. Blocks: until it has returned.
  void WithPrefixIndex(const std::function<void(kv::PrefixIndex*)>& body);

  SchedulerStats Stats() const;  // as of the end of the last pass

 private:
  explicit Scheduler(std::unique_ptr<SchedulerLoop> loop);
  Result<std::shared_ptr<Answer>> Submit(Request request, bool pin);
  Status CheckWeightRoom();
  bool Do(std::function<void()> body);  // false, doing nothing, when the scheduler stops
  std::unique_ptr<SchedulerLoop> loop_;
};

}  // namespace tael::engine
