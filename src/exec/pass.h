// What the operations of one forward pass share. Every thread of the team runs every op; an op
// works on its thread's part and Forward puts a barrier between ops.
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"
#include "exec/thread_team.h"
#include "exec/workspace.h"
#include "kernels/kernels.h"
#include "kv/layer_group.h"
#include "kv/sequence.h"
#include "model/model.h"

namespace tael::exec {

// Tokens of one sequence in a batch. The sequence has room for them (Sequence::Extend) and is
// committed by the caller afterwards.
struct SequenceChunk {
  kv::Sequence* sequence = nullptr;
  std::span<const TokenId> tokens;
  uint32_t num_logits = 1;  // logits are wanted for the last so many tokens
};

struct Row {
  TokenId token{};
  uint32_t position = 0;
  uint32_t chunk = 0;
};

struct Pass {
  const model::Model& model;
  const kv::Geometry& geometry;
  const kernels::KernelTable& kernels;
  ThreadTeam& team;
  const Workspace& workspace;
  std::span<const SequenceChunk> chunks;
  std::span<const Row> rows;  // all tokens of all chunks, in order
  // By layer group and rope: rotation of the last token of the group's window, [cos half | sin
  // half]. Read for groups with sinks only.
  std::span<const float> sink_ropes;

  const model::ModelDescription& description() const { return model.description(); }
  float* floats(model::Buffer buffer) const { return workspace.floats(buffer); }
  const ThreadScratch& scratch(size_t thread) const { return workspace.scratch(thread); }
};

}  // namespace tael::exec
