#include "exec/workspace.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "exec/packing.h"

namespace tael::exec {
namespace {

using kernels::KernelTable;
using model::Buffer;

constexpr uint64_t kAlignment = 64;

struct Dims {
  uint64_t model, ffn, heads, head_dim, attended, max_kv_heads, qkv, vocab, ropes, rope_dims;
};

Dims DimsOf(const model::ModelDescription& d) {
  uint64_t max_kv = 0;
  for (const auto& layer : d.layers) max_kv = std::max<uint64_t>(max_kv, layer.num_kv_heads);
  const uint64_t attended = uint64_t{d.num_heads} * d.head_dim;
  return {d.model_dim,
          d.ffn_dim,
          d.num_heads,
          d.head_dim,
          attended,
          max_kv,
          attended + 2 * max_kv * d.head_dim,
          d.vocab_size,
          d.ropes.size(),
          d.rope_dims};
}

// Needs of the three kinds of matmul input, and the kernels' scratch over all matrices.
struct KernelNeeds {
  PackingNeeds model, attended, ffn;
  uint64_t matmul_scratch = 0;
};

void Widen(PackingNeeds& needs, std::initializer_list<const model::Matrix*> matrices,
           const WorkspaceShape& shape) {
  for (uint32_t tokens = 1; tokens <= shape.max_tokens; ++tokens) {
    const uint64_t bytes = PackedBytes(matrices, tokens, shape.compute);
    needs.batch_bytes = std::max(needs.batch_bytes, bytes);
    if (tokens == 1) needs.single_bytes = std::max(needs.single_bytes, bytes);
  }
}

// Whether both layers need the same: types and widths decide.
bool NeedTheSame(const model::LayerWeights& a, const model::LayerWeights& b) {
  using W = model::LayerWeights;
  for (const auto matrix : {&W::q, &W::k, &W::v, &W::output, &W::gate, &W::up, &W::down}) {
    if ((a.*matrix).type != (b.*matrix).type || (a.*matrix).cols != (b.*matrix).cols) return false;
  }
  return true;
}

KernelNeeds NeedsOf(const model::Model& model, const WorkspaceShape& shape) {
  const KernelTable& kernels = kernels::Active();
  KernelNeeds needs;
  const auto scratch = [&](const model::Matrix& m) {
    for (uint32_t tokens = 1; tokens <= shape.max_tokens; ++tokens) {
      const auto fn = shape.compute == Compute::kReference ? kernels.matmul.scratch_f32_bytes
                                                           : kernels.matmul.scratch_bytes;
      needs.matmul_scratch = std::max<uint64_t>(needs.matmul_scratch, fn(m.type, tokens, m.cols));
    }
  };
  std::vector<const model::LayerWeights*> seen;
  for (const model::LayerWeights& w : model.weights().layers) {
    if (std::ranges::any_of(seen, [&](const auto* other) { return NeedTheSame(*other, w); })) {
      continue;
    }
    seen.push_back(&w);
    Widen(needs.model, {&w.q, &w.k, &w.v}, shape);
    Widen(needs.model, {&w.gate, &w.up}, shape);
    Widen(needs.attended, {&w.output}, shape);
    Widen(needs.ffn, {&w.down}, shape);
    for (const auto* m : {&w.q, &w.k, &w.v, &w.output, &w.gate, &w.up, &w.down}) scratch(*m);
  }
  Widen(needs.model, {&model.weights().output}, shape);
  scratch(model.weights().output);
  return needs;
}

// Sinks and tails have pieces of their own, and a window may begin and end inside of one.
uint32_t MostPieces(const WorkspaceShape& shape) {
  const uint32_t window = std::max(shape.max_window, shape.most_slots);
  const uint32_t keys = window != 0 ? window : shape.max_context;
  return CeilDiv(keys, kKeysPerPiece) + (shape.most_slots != 0 ? 4 : 2);
}

// A row's weights of all keys.
uint64_t WeightFloats(const WorkspaceShape& shape) {
  return shape.most_slots != 0 ? uint64_t{MostPieces(shape)} * kKeysPerPiece : 0;
}

// Results of a single row's pieces, and its weights behind them.
uint64_t PartialFloats(const Dims& d, const WorkspaceShape& shape) {
  return MostPieces(shape) * d.heads * (d.head_dim + 2) + d.heads * WeightFloats(shape);
}

struct Layout {
  std::array<uint64_t, model::kNumBuffers> sizes{};
  mem::ArenaPlan plan;
  // Bytes of a thread's scratch.
  uint64_t matmul, packed, row, head, queries, sink_queries, scores, piece;
  uint64_t weights, piece_max, shares, key_sums;
  uint64_t thread_bytes = 0;
  uint64_t total_bytes = 0;
};

void SizeBuffers(const Dims& d, const KernelNeeds& needs, const WorkspaceShape& shape,
                 Layout& out) {
  const uint64_t tokens = shape.max_tokens;
  const auto set = [&](Buffer buffer, uint64_t bytes) {
    out.sizes[static_cast<size_t>(buffer)] = bytes;
  };
  const uint64_t row = tokens * sizeof(float);
  set(Buffer::kResidual, row * d.model);
  set(Buffer::kRope, row * d.ropes * d.rope_dims);
  set(Buffer::kNormed, row * d.model);
  set(Buffer::kQkv, row * d.qkv);
  set(Buffer::kQueries, row * d.attended);
  set(Buffer::kPartials, PartialFloats(d, shape) * sizeof(float));
  set(Buffer::kAttended, row * d.attended);
  set(Buffer::kProjection, row * d.model);
  set(Buffer::kGate, row * d.ffn);
  set(Buffer::kUp, row * d.ffn);
  set(Buffer::kPackedModel, needs.model.batch_bytes);
  set(Buffer::kPackedAttended, needs.attended.batch_bytes);
  set(Buffer::kPackedFfn, needs.ffn.batch_bytes);
  set(Buffer::kLogits, shape.logit_rows * d.vocab * sizeof(float));
}

Layout MakeLayout(const model::Model& model, const WorkspaceShape& shape) {
  const Dims d = DimsOf(model.description());
  const KernelNeeds needs = NeedsOf(model, shape);
  Layout out;
  SizeBuffers(d, needs, shape, out);
  std::array<mem::BufferLifetime, model::kNumBuffers> lifetimes;
  for (size_t i = 0; i < model::kNumBuffers; ++i) {
    const model::Lifetime life = model::LifetimeOf(static_cast<Buffer>(i));
    lifetimes[i] = {out.sizes[i], life.first_op, life.last_consumer_op};
  }
  out.plan = mem::PlanArena(lifetimes, kAlignment);

  const auto aligned = [](uint64_t bytes) { return RoundUp(bytes, kAlignment); };
  // Tokens per tile times heads of a group never exceed this (attention.cpp).
  const uint64_t rows = std::max<uint64_t>(kQueryRowsPerTile, d.heads);
  out.matmul = aligned(needs.matmul_scratch);
  out.packed = aligned(
      std::max({needs.model.single_bytes, needs.attended.single_bytes, needs.ffn.single_bytes}));
  out.row = aligned(std::max({d.model, d.attended, d.ffn}) * sizeof(float));
  out.head = aligned((d.head_dim + d.qkv) * sizeof(float));
  const uint64_t packed_query = kernels::PackedQueryFloats(d.head_dim);
  out.queries = aligned(rows * packed_query * sizeof(float));
  out.sink_queries =
      shape.max_window != 0 ? aligned(rows * (d.head_dim + packed_query) * sizeof(float)) : 0;
  out.scores = aligned(rows * kKeysPerPiece * sizeof(float));
  out.piece = aligned(rows * (d.head_dim + 2) * sizeof(float));
  out.weights = aligned(rows * WeightFloats(shape) * sizeof(float));
  const bool keeps_weights = out.weights != 0;
  out.piece_max = keeps_weights ? aligned(rows * MostPieces(shape) * sizeof(float)) : 0;
  out.shares = keeps_weights ? aligned(rows * sizeof(float)) : 0;
  out.key_sums = keeps_weights ? aligned(kKeysPerPiece * sizeof(float)) : 0;
  out.thread_bytes = out.matmul + out.packed + out.row + out.head + out.queries + out.sink_queries +
                     out.scores + 2 * out.piece + out.weights + out.piece_max + out.shares +
                     out.key_sums;
  out.total_bytes = out.plan.total_bytes + shape.num_threads * out.thread_bytes;
  return out;
}

}  // namespace

uint64_t Workspace::PlanBytes(const model::Model& model, const WorkspaceShape& shape) {
  return MakeLayout(model, shape).total_bytes;
}

Workspace::Report Workspace::ReportOf(const model::Model& model, const WorkspaceShape& shape) {
  const Layout layout = MakeLayout(model, shape);
  Report report{.peak_live_bytes = layout.plan.peak_live_bytes,
                .arena_bytes = layout.plan.total_bytes};
  for (size_t i = 0; i < model::kNumBuffers; ++i) {  // counted where it is written first
    const model::Op& op = model::OpList()[model::LifetimeOf(static_cast<Buffer>(i)).first_op];
    report.kept_bytes += layout.sizes[i] * (op.per_layer ? model.description().num_layers : 1);
  }
  return report;
}

Result<std::unique_ptr<Workspace>> Workspace::Create(const model::Model& model,
                                                     const WorkspaceShape& shape,
                                                     mem::MemoryBudget& budget) {
  Layout layout = MakeLayout(model, shape);
  std::unique_ptr<Workspace> out(new Workspace());
  TAEL_ASSIGN_OR_RETURN(out->reservation_,
                        budget.Reserve(mem::MemoryTag::kActivations, layout.total_bytes));
  const size_t page = shape.large_pages ? mem::LargePageBytes() : 0;
  TAEL_ASSIGN_OR_RETURN(out->arena_, mem::AnonymousMapping::Create(
                                         layout.total_bytes, std::max<size_t>(page, kAlignment)));
  if (page != 0) out->arena_.UseLargePages();
  out->reservation_.SetUsed(layout.total_bytes);
  out->shape_ = shape;
  out->most_pieces_ = MostPieces(shape);
  out->sizes_ = layout.sizes;
  std::byte* next = out->arena_.data() + layout.plan.total_bytes;
  const auto take = [&next](uint64_t bytes) {
    return bytes == 0 ? nullptr : std::exchange(next, next + bytes);
  };
  const auto take_floats = [&](uint64_t bytes) { return reinterpret_cast<float*>(take(bytes)); };
  for (size_t i = 0; i < shape.num_threads; ++i) {
    ThreadScratch scratch;
    scratch.matmul = take(layout.matmul);
    scratch.packed = take(layout.packed);
    scratch.row = take_floats(layout.row);
    scratch.head = take_floats(layout.head);
    scratch.queries = take_floats(layout.queries);
    scratch.sink_queries = take_floats(layout.sink_queries);
    scratch.scores = take_floats(layout.scores);
    scratch.piece = take_floats(layout.piece);
    scratch.merged = take_floats(layout.piece);
    scratch.weights = take_floats(layout.weights);
    scratch.piece_max = take_floats(layout.piece_max);
    scratch.shares = take_floats(layout.shares);
    scratch.key_sums = take_floats(layout.key_sums);
    out->scratch_.push_back(scratch);
  }
  out->plan_ = std::move(layout.plan);
  return out;
}

void Workspace::PoisonAfter(uint32_t op) {
  for (size_t i = 0; i < model::kNumBuffers; ++i) {
    const auto buffer = static_cast<Buffer>(i);
    if (model::LifetimeOf(buffer).last_consumer_op == op) {
      std::memset(bytes(buffer), 0xff, sizes_[i]);
    }
  }
}

}  // namespace tael::exec
