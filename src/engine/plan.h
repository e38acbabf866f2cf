// What will be needed, before anything is loaded: the memory of each part, and the context and
// sessions that fit a budget. Engine::Create() reserves exactly this plan.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "engine/kv_safety.h"
#include "exec/workspace.h"
#include "kernels/kernels.h"
#include "kv/layer_group.h"
#include "kv/prompt_compression.h"
#include "kv/window_policy.h"
#include "mem/memory_budget.h"
#include "model/model.h"

namespace tael::engine {

// Of the part `runtime`, what is there for small heap that a request may want: reserved, not used.
inline constexpr uint64_t kRuntimeHeadroom = uint64_t{768} << 10;

struct PlanRequest {
  uint64_t budget_bytes = 0;    // 0: what the system can spare
  uint32_t context_length = 0;  // 0: min(trained, what fits)
  uint32_t max_sessions = 1;
  uint32_t chunk_tokens = 0;  // tokens per forward pass of a long prompt; 0: by the budget
  uint32_t logit_rows = 1;    // rows of logits held at a time; a row per session at least
  uint32_t draft_tokens = 0;  // asked for (EngineOptions)
  size_t num_threads = 1;
  exec::Compute compute = exec::Compute::kFast;
  std::optional<kernels::KvTypes> kv_type = {};  // none: f16, or f32 with --compute reference
  bool kv_auto = false;  // without kv_type on the fast path: by layer (kv_types.h)
  std::optional<KvSafety> kv_safety = {};  // with kv_auto: what was measured of the model
  bool auto_on_reference = false;  // kv_auto on the reference path, too, which else keeps f32
  // kAuto: as long as the context that fits, and uniform where that is all the model was trained
  // for; `best` then decides about eviction.
  kv::WindowPolicy window = {};
  kv::CompressPolicy compress = {};  // of prompts
  uint64_t tokenizer_bytes = 0;
  uint64_t runtime_bytes = 0;  // 0: measured; tests inject, so that budgets are the same each time
  uint64_t server_bytes = 0;   // part `server`
};

struct MemoryPlan {
  uint64_t budget_bytes = 0;
  bool budget_is_auto = false;
  std::array<uint64_t, mem::kNumMemoryTags> parts{};  // by MemoryTag
  uint64_t needed_bytes = 0;                          // sum of parts
  // Needed for the shortest context that is worth running (or the one asked for).
  uint64_t min_budget_bytes = 0;
  // The same with as few layers of weights in memory as can be: two, and what is in no layer.
  uint64_t min_streamed_bytes = 0;
  // Layers whose weights stay in memory; those behind them are read from the file for every token.
  uint32_t resident_layers = 0;
  uint32_t num_layers = 0;
  uint32_t trained_context = 0;
  uint32_t context_length = 0;
  uint32_t max_sessions = 1;
  uint32_t draft_tokens = 0;    // that a pass can check exactly
  kv::WindowPolicy window;      // as asked for; where that was kAuto, with what was chosen
  kv::CompressPolicy compress;  // of prompts, as asked for
  kv::Geometry geometry;        // with the windows of the policy and the KV types of each layer
  KvReason kv_reason = KvReason::kAsked;
  uint64_t kv_capacity_bytes = 0;
  // Scores of all sessions' tails (kv/tail_scores.h) or prompts (kv/prompt_compression.h); in the
  // part `kv`.
  uint64_t score_bytes = 0;
  uint64_t slab_bytes = 0;
  exec::WorkspaceShape workspace;

  uint64_t part(mem::MemoryTag tag) const { return parts[static_cast<size_t>(tag)]; }
  bool fits() const { return needed_bytes <= budget_bytes; }
  // Sequences may grow beyond the context: every layer has a window.
  bool is_endless() const { return window.tokens != 0; }
  bool streams() const { return resident_layers < num_layers; }
  // "weights 98.4 MB, kv 5.9 MB (256 tokens), ...": one line, for messages.
  std::string Breakdown() const;
};

// The plan for this request, whether it fits or not (fits() tells).
// Fails: kInvalidArgument for a context or a window of more tokens than the model was trained for,
// as CheckWindow(), and for prompts that are compressed inside a window.
Result<MemoryPlan> MakePlan(const model::Model& model, const PlanRequest& request);

// How far the budget of a plan reaches; zeros for one that does not fit.
struct Capacity {
  uint32_t max_context = 0;   // longest, with the plan's number of sessions
  uint32_t max_sessions = 0;  // most, of the plan's context each
};
Capacity CapacityOf(const model::Model& model, const PlanRequest& request, const MemoryPlan& plan);

// What `bytes` of KV hold. Blocks are counted at the size of the largest group's; a row is 16
// tokens of all layers.
struct KvShape {
  uint64_t block_bytes = 0;
  uint64_t blocks = 0;
  uint64_t rows = 0;
};
KvShape KvShapeOf(const MemoryPlan& plan, uint64_t bytes);

// kOutOfBudget, naming every part and the smallest budget that works.
Error DoesNotFit(const MemoryPlan& plan);

}  // namespace tael::engine
