// The forward pass: runs the op list over a batch of tokens of one or more sequences.
//
// One call at a time. Nothing is allocated after Create(). KV is written into the sequences' blocks
// (the caller has made room and commits afterwards).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "exec/function_ref.h"
#include "exec/pass.h"
#include "exec/thread_team.h"
#include "exec/weight_pager.h"
#include "exec/workspace.h"
#include "kv/layer_group.h"
#include "mem/memory_budget.h"
#include "model/model.h"
#include "model/rope.h"

namespace tael::exec {

// Receives the logits [vocab_size] of one token: final ones, after the softcap. Called on the
// caller's thread, in order of tokens; the span is valid during the call and may be changed.
using LogitsSink =
    FunctionRef<void(uint32_t chunk, uint32_t token_in_chunk, std::span<float> logits)>;

// Asked after each layer, on the caller's thread: true ends the pass.
using StopCheck = FunctionRef<bool()>;

class Forward {
 public:
  // `model`, `geometry` and `team` outlive the Forward. Fails: kOutOfBudget; kIo.
  static Result<std::unique_ptr<Forward>> Create(const model::Model& model,
                                                 const kv::Geometry& geometry, ThreadTeam& team,
                                                 const WorkspaceShape& shape,
                                                 mem::MemoryBudget& budget);

  uint32_t max_tokens() const { return workspace_->shape().max_tokens; }

  // Requires: 1 <= total tokens <= max_tokens(); every token id < vocab_size; room in every
  // sequence; every position < max_context, but where every layer has a window.
  // False when `stop` ended it: then there are no logits, and what was written into the sequences'
  // room is of no use.
  bool Run(std::span<const SequenceChunk> chunks, LogitsSink sink, StopCheck stop);

  // Waits before each layer until its weights are mapped. `pager` outlives the Forward.
  void UsePager(WeightPager& pager) { pager_ = &pager; }

  const Workspace& workspace() const { return *workspace_; }

 private:
  Forward(const model::Model& model, const kv::Geometry& geometry, ThreadTeam& team)
      : model_(model), geometry_(geometry), team_(team) {}
  void ListRows(std::span<const SequenceChunk> chunks);

  const model::Model& model_;
  const kv::Geometry& geometry_;
  ThreadTeam& team_;
  WeightPager* pager_ = nullptr;
  std::unique_ptr<Workspace> workspace_;
  std::vector<model::RopeFrequencies> ropes_;
  std::vector<float> sink_ropes_;  // Pass::sink_ropes
  std::vector<Row> rows_;
  std::vector<uint32_t> logit_rows_;  // rows of the batch whose logits are wanted
};

}  // namespace tael::exec
