// Memory of the forward pass: one arena placed by the planner, and private scratch per thread.
// All of it is reserved and mapped once; nothing is allocated while tokens are computed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "kernels/kernels.h"
#include "kv/layer_group.h"
#include "mem/arena_planner.h"
#include "mem/mapping.h"
#include "mem/memory_budget.h"
#include "model/model.h"
#include "model/op_list.h"

namespace tael::exec {

enum class Compute : uint8_t {
  kFast,       // 8-bit activations where the weights are quantised
  kReference,  // f32 activations everywhere
};

struct WorkspaceShape {
  uint32_t max_tokens = 128;  // rows of one batch
  uint32_t max_context = 0;   // longest sequence
  // Where every layer has a window: its widest. Sequences may be longer than max_context then.
  uint32_t max_window = 0;
  // Most slots of a tail's scores that a query sees (kv/tail_scores.h); 0: nobody keeps a tail.
  uint32_t most_slots = 0;
  uint32_t logit_rows = 1;  // rows of logits held at a time
  size_t num_threads = 1;
  Compute compute = Compute::kFast;
  bool large_pages = false;  // for the arena, where the system has them
  bool poison_dead = false;  // debugging: a buffer reads as NaN behind its last consumer
};

// Keys that one piece of attention covers. Pieces start at multiples of it, so what is added to
// what does not depend on how a prompt was cut into chunks or on the number of threads.
inline constexpr uint32_t kKeysPerPiece = 128;
// Query rows (tokens x heads of a group) that attend together.
inline constexpr uint32_t kQueryRowsPerTile = 32;
// Different packings that the matrices sharing one input may ask for.
inline constexpr size_t kMaxPackings = 4;

// Largest sizes over all matrices that multiply one kind of input.
struct PackingNeeds {
  uint64_t batch_bytes = 0;   // all packings of a whole batch
  uint64_t single_bytes = 0;  // all packings of one row
};

struct ThreadScratch {
  std::byte* matmul = nullptr;    // kernels' own
  std::byte* packed = nullptr;    // one row, packed
  float* row = nullptr;           // one row of the widest input
  float* head = nullptr;          // a row of all heads
  float* queries = nullptr;       // [rows, PackedQueryFloats(head_dim)]: for quantised keys
  float* sink_queries = nullptr;  // [rows, head_dim], and packed: as sinks see them (max_window)
  float* scores = nullptr;        // [kQueryRowsPerTile + group, kKeysPerPiece]
  float* piece = nullptr;         // [rows, head_dim + 2]: one piece's result
  float* merged = nullptr;        // [rows, head_dim + 2]: merged so far
  // Of layers with a tail, whose keys are told what they got once a row's sum is known:
  float* weights = nullptr;    // [rows, most_pieces * kKeysPerPiece]: exp(score - piece_max)
  float* piece_max = nullptr;  // [rows, most_pieces]
  float* shares = nullptr;     // [rows]
  float* key_sums = nullptr;   // [kKeysPerPiece]
};

class Workspace {
 public:
  // What Create() will reserve, in bytes: for `tael plan`.
  static uint64_t PlanBytes(const model::Model& model, const WorkspaceShape& shape);

  // The same activations, told in ways that reports want.
  struct Report {
    uint64_t kept_bytes = 0;       // if every layer's results stayed until the pass is over
    uint64_t peak_live_bytes = 0;  // of those that somebody still needs: no arena is smaller
    uint64_t arena_bytes = 0;      // without the threads' scratch
  };
  static Report ReportOf(const model::Model& model, const WorkspaceShape& shape);

  // Fails: kOutOfBudget; kIo.
  static Result<std::unique_ptr<Workspace>> Create(const model::Model& model,
                                                   const WorkspaceShape& shape,
                                                   mem::MemoryBudget& budget);

  const WorkspaceShape& shape() const { return shape_; }
  // Pieces of attention that one row has at most, where layers have windows.
  uint32_t most_pieces() const { return most_pieces_; }
  std::byte* bytes(model::Buffer buffer) const {
    return arena_.data() + plan_.offsets[static_cast<size_t>(buffer)];
  }
  float* floats(model::Buffer buffer) const { return reinterpret_cast<float*>(bytes(buffer)); }
  uint64_t size_bytes(model::Buffer buffer) const { return sizes_[static_cast<size_t>(buffer)]; }
  const ThreadScratch& scratch(size_t thread) const { return scratch_[thread]; }
  // Fills the buffers whose last consumer is this op of model::OpList() with NaN.
  void PoisonAfter(uint32_t op);
  const mem::ArenaPlan& plan() const { return plan_; }
  uint64_t total_bytes() const { return arena_.size(); }

 private:
  Workspace() = default;

  WorkspaceShape shape_;
  uint32_t most_pieces_ = 0;
  std::array<uint64_t, model::kNumBuffers> sizes_{};
  mem::ArenaPlan plan_;
  mem::Reservation reservation_;
  mem::AnonymousMapping arena_;  // buffers, then the scratch of each thread
  std::vector<ThreadScratch> scratch_;
};

}  // namespace tael::exec
