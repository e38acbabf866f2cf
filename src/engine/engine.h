// A loaded model inside a memory budget, and the sessions that talk to it.
//
// Create() makes a plan (plan.h), refuses what does not fit before touching anything, and reserves
// every part. After it, memory grows only by KV blocks, inside what was reserved.
//
// Owned by one thread, as its sessions are; the team of threads inside is its own business.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "engine/plan.h"
#include "engine/weight_room.h"
#include "exec/cpu_set.h"
#include "exec/forward.h"
#include "exec/thread_team.h"
#include "exec/weight_pager.h"
#include "kv/block_pool.h"
#include "kv/prefix_index.h"
#include "kv/sequence.h"
#include "mem/memory_budget.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace tael::engine {

struct EngineOptions {
  std::string model_path;
  uint64_t budget_bytes = 0;    // 0: what the system can spare
  size_t num_threads = 0;       // 0: chosen; no more than can run at once (exec/cpu_set.h)
  bool oversubscribe = false;   // tests: all of num_threads, however few can run at once
  uint32_t context_length = 0;  // 0: min(trained, what fits)
  uint32_t max_sessions = 1;
  uint32_t chunk_tokens = 0;  // of a long prompt per forward pass; 0: by the budget
  uint32_t logit_rows = 1;    // a row per session at least
  // Tokens of a draft that one pass checks, at most; fewer where the kernels cannot check so many
  // without changing a bit of the answer. 0: no speculation.
  uint32_t draft_tokens = 0;
  exec::Compute compute = exec::Compute::kFast;
  std::optional<kernels::KvTypes> kv_type = {};  // none: f16, or f32 with kReference
  bool kv_auto = false;  // without kv_type on the fast path: by layer (kv_types.h)
  std::optional<KvSafety> kv_safety = {};  // what was measured of the model
  bool auto_on_reference = false;    // kv_auto on the reference path, too, which else keeps f32
  kv::WindowPolicy window = {};      // tokens kAuto: chosen (plan.h)
  kv::CompressPolicy compress = {};  // of prompts, in sessions that PlanCompression()
  uint64_t runtime_bytes = 0;        // of the process itself; 0: measured
  // Debugging: freed KV blocks, and activations behind their last consumer, read as NaN.
  bool poison_freed = false;
  bool commit_kv = false;  // all KV pages at start, instead of as tokens come
  mem::Backing kv_backing = mem::Backing::kPrivate;
  std::optional<exec::WarmUp> warm_up = {};  // none: chosen by whether a CPU is spare
  bool lock_weights = false;  // keep the kernel from dropping weights, where it lets us
  uint64_t server_bytes = 0;  // of who serves the engine: planned here, reserved by them
};

// The plan that Engine::Create() would make of these options, without reading a weight. Fails as
// Create() does, but for kOutOfBudget: the plan tells.
Result<MemoryPlan> ForecastPlan(const EngineOptions& options);

// The same, and what else people want to know of it.
struct Forecast {
  MemoryPlan plan;
  Capacity capacity;
  exec::Workspace::Report activations;   // of the plan's passes
  exec::Workspace::Report whole_prompt;  // if a prompt as long as the context were one pass
};
Result<Forecast> MakeForecast(const EngineOptions& options);

class Session;

class Engine {
 public:
  // Fails: kNotFound, kIo, kMalformed, kUnsupported (the model); kOutOfBudget, naming every part;
  // kInvalidArgument.
  static Result<std::unique_ptr<Engine>> Create(const EngineOptions& options);
  ~Engine();  // Requires: no session is alive.

  const model::Model& model() const { return *model_; }
  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }
  const MemoryPlan& plan() const { return plan_; }
  uint32_t context_length() const { return plan_.context_length; }
  // Tokens of a session at most: the context, but where a window drops what is old.
  static constexpr uint32_t kEndless = uint32_t{1} << 30;
  uint32_t max_length() const { return plan_.is_endless() ? kEndless : context_length(); }
  uint32_t max_draft_tokens() const { return plan_.draft_tokens; }
  size_t num_threads() const { return team_->size(); }
  const exec::CpuChoice& cpus() const { return cpus_; }  // which threads, and why
  mem::LedgerSnapshot Ledger() const { return budget_->Snapshot(); }
  mem::MemoryBudget& budget() const { return *budget_; }
  const kv::BlockPool& pool() const { return *pool_; }
  kv::BlockPool& pool() { return *pool_; }
  uint32_t max_batch_tokens() const { return forward_->max_tokens(); }  // of one pass

  Session NewSession();

  // Whether the system has no room for weights that the budget holds, and what it does then. Any
  // thread.
  const WeightRoom& weight_room() const { return *weight_room_; }
  WeightRoom& weight_room() { return *weight_room_; }  // its thread
  // Of the weights, kept from being dropped; 0 if not asked for, or refused (then why).
  uint64_t locked_bytes() const { return locked_bytes_; }
  const std::string& lock_refusal() const { return lock_refusal_; }

  // Gives the weights' pages back to the kernel, for a process that waits; the next pass reads them
  // again. Requires: no pass runs.
  void ReleaseWeights();

 private:
  friend class BatchPass;
  Engine() = default;
  Status Reserve();
  Status StartReading(exec::WarmUp warm_up);
  void LockWeights();

  // Members are destroyed bottom up: whoever holds a reservation goes before the budget.
  std::unique_ptr<mem::MemoryBudget> budget_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  MemoryPlan plan_;
  mem::Reservation weights_, tokenizer_bytes_, kernel_, runtime_, scores_;
  exec::CpuChoice cpus_;
  std::unique_ptr<exec::ThreadTeam> team_;
  std::unique_ptr<kv::BlockPool> pool_;
  std::unique_ptr<exec::WeightPager> pager_;
  std::unique_ptr<exec::Forward> forward_;
  std::unique_ptr<WeightRoom> weight_room_;
  uint64_t locked_bytes_ = 0;
  std::string lock_refusal_;
  std::vector<exec::SequenceChunk> chunks_;  // of the pass that runs (batch.cpp)
};

struct FeedOptions {
  uint32_t num_logits = 1;                    // of the last so many tokens; at least 1
  const std::atomic<bool>* cancel = nullptr;  // looked at between chunks
};

// One conversation: the tokens' KV, and nothing else. Move-only; its engine outlives it.
class Session {
 public:
  Engine& engine() const { return *engine_; }
  uint32_t length() const { return sequence_.length(); }
  uint32_t remaining() const { return engine_->max_length() - length(); }

  // Called after each chunk with the number of tokens done.
  using Progress = exec::FunctionRef<void(uint32_t done)>;
  // Receives the logits of tokens[index].
  using Sink = exec::FunctionRef<void(size_t index, std::span<float> logits)>;

  // Computes `tokens` after what is there already, in chunks. Fails: kContextExceeded, naming both
  // numbers (nothing is computed); kNoFreeBlocks; kInvalidArgument for no tokens or ids outside the
  // vocabulary; kCancelled; kIo when the model file was cut
  // meanwhile (from then on always). After a failure the session holds what was computed before it.
  Status Feed(std::span<const TokenId> tokens, const FeedOptions& options, Sink sink,
              Progress progress);
  Status Feed(std::span<const TokenId> tokens, const FeedOptions& options, Sink sink);

  // Another session that has come as far as this one and shares its blocks; what the two do from
  // here on stays their own.
  Session Fork() const;
  // Begins with the longest prefix of `tokens` that `index` holds, at most `most` tokens of it;
  // returns how many tokens that is. The logits behind them are not there: leave at least one token
  // to Feed(). Requires: length() is 0; the index is of this engine's pool.
  uint32_t Adopt(kv::PrefixIndex& index, std::span<const TokenId> tokens, uint64_t salt,
                 uint32_t most) {
    return index.Adopt(tokens, salt, std::min(most, MostAdopted()), sequence_);
  }
  // Tokens of a prompt that may be taken over from others: those whose attention chooses what stays
  // are computed.
  uint32_t MostAdopted() const {
    return sequence_.observes() ? sequence_.observe_from() : UINT32_MAX;
  }

  // A prompt of so many tokens, of which the session holds the first length(), is compressed once
  // it is held, where the engine's options say so. May forget a few of the tokens that it holds, so
  // that they are computed again and looked at. Whoever feeds the prompt calls Compress() behind
  // it; otherwise that is done when more follows.
  void PlanCompression(uint32_t prompt_tokens);
  void Compress() { sequence_.Compress(); }
  // Tokens that compression has let go of (kv::Sequence says where).
  uint32_t compressed_tokens() const { return sequence_.compressed_tokens(); }

  // Forgets tokens from the end. Requires: CanTruncate(length).
  void Truncate(uint32_t length) { sequence_.Truncate(length); }
  // False where a sliding window has moved past keys that the next token would look at.
  bool CanTruncate(uint32_t length) const { return sequence_.CanTruncate(length); }
  // kv::Sequence says what these do.
  void PinFirst(uint32_t tokens) { sequence_.PinFirst(tokens); }
  void LimitWindow(uint32_t tokens) { sequence_.LimitWindow(tokens); }
  // In windows that grow (kv::WindowPolicy::start): makes this one as wide as it may be for
  // `num_tokens` more, now that so many bytes of the pool are idle besides those that are free.
  // Returns its tokens where that has changed them (dynamic_window.h).
  std::optional<uint32_t> AdaptWindow(uint32_t num_tokens, uint64_t idle_bytes = 0);
  // Narrows it to where it began; false where it was no wider.
  bool NarrowWindow();
  // Whether a pass may check guesses: none may decide when a window is looked at.
  bool MayDraft() const;
  // Tokens that one pass takes of this session at most.
  uint32_t MostAtOnce() const {
    return std::min(engine_->max_batch_tokens(), sequence_.MostAtOnce());
  }
  // Tokens that the last one saw in no layer because the user's window had dropped them. (Windows
  // that the model itself was trained with drop nothing that it would have looked at.)
  uint32_t dropped_tokens() const {
    return engine_->plan().is_endless() ? sequence_.hidden_tokens() : 0;
  }
  const kv::Sequence& sequence() const { return sequence_; }
  // Takes over where the pool has moved blocks to (BlockPool::Compact).
  void Follow(std::span<const kv::BlockPool::Move> moves) { sequence_.Follow(moves); }

 private:
  friend class Engine;
  friend class BatchPass;
  Session(Engine& engine, kv::Sequence sequence)
      : engine_(&engine), sequence_(std::move(sequence)) {}
  Engine* engine_;
  kv::Sequence sequence_;
};

// kInvalidArgument for no tokens and for ids outside the vocabulary.
Status CheckTokens(const Engine& engine, std::span<const TokenId> tokens);
// kContextExceeded, naming both numbers, if the session has no place for so many more.
Status CheckRemaining(const Session& session, size_t num_tokens);

}  // namespace tael::engine
