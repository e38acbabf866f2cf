#include "exec/attention.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>

#include "exec/attention_pieces.h"
#include "exec/scores.h"
#include "kv/tail_scores.h"

namespace tael::exec {
namespace {

using model::Buffer;

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Result of attention over some keys, for `num_rows` rows of `dim` values each:
// row r at data + r * (dim + 2): [largest score, sum of weights, weighted values ...].
struct PieceView {
  float* data;
  size_t dim;
  float& max(size_t row) const { return data[row * (dim + 2)]; }
  float& sum(size_t row) const { return data[row * (dim + 2) + 1]; }
  float* values(size_t row) const { return data + row * (dim + 2) + 2; }
};

void MergeRow(const PieceView& into, const PieceView& piece, size_t row) {
  const float m = piece.max(row);
  if (m == kNothing) return;
  const float old = into.max(row);
  if (old == kNothing) {
    std::copy_n(piece.data + row * (piece.dim + 2), piece.dim + 2,
                into.data + row * (into.dim + 2));
    return;
  }
  const float top = std::max(m, old);
  const float a = std::exp(old - top);
  const float b = std::exp(m - top);
  into.max(row) = top;
  into.sum(row) = into.sum(row) * a + piece.sum(row) * b;
  float* x = into.values(row);
  const float* y = piece.values(row);
  for (size_t i = 0; i < into.dim; ++i) x[i] = x[i] * a + y[i] * b;
}

// Where a piece leaves exp(score - largest) of its keys: [rows, stride].
struct WeightsView {
  float* data;
  size_t stride;
};

// How many weights a row has, where they are kept: kKeysPerPiece for each piece.
size_t WeightStride(const Pass& pass) {
  return size_t{pass.workspace.most_pieces()} * kKeysPerPiece;
}

class LayerAttention {
 public:
  LayerAttention(const Pass& pass, uint32_t layer, size_t thread)
      : pass_(pass),
        model_(pass.description()),
        layer_(model_.layers[layer]),
        place_(pass.geometry.places[layer]),
        group_(pass.geometry.group(place_.group)),
        keys_(pass.kernels.kv[static_cast<size_t>(group_.shape.type.k)]),
        values_(pass.kernels.kv[static_cast<size_t>(group_.shape.type.v)]),
        scores_(ScoresOf(pass, keys_)),
        scratch_(pass.scratch(thread)) {}

  uint32_t group_size() const { return model_.num_heads / layer_.num_kv_heads; }
  uint32_t num_kv_heads() const { return layer_.num_kv_heads; }
  size_t head_dim() const { return model_.head_dim; }
  kv::Sequence::View ViewOf(const kv::Sequence& sequence) const {
    return sequence.Blocks(place_.group);
  }
  const ThreadScratch& scratch() const { return scratch_; }

  // In the thread's scratch where they are not what the tile has: pieces share the work.
  ReadyQueries Ready(const QueryTile& tile) const {
    return Pack(tile.queries, NumRows(tile), scratch_.queries);
  }

  // Attention of a tile, whose queries are Ready(), over one of its pieces, into `out`.
  void AttendPiece(const QueryTile& tile, const ReadyQueries& queries, const RunPiece& piece,
                   const WeightsView& weights, const PieceView& out) const {
    const bool sinks = piece.run.kind == Run::Kind::kSinks;
    AttendRun(piece, tile, sinks ? SinkQueries(tile, queries) : queries, weights, out);
  }

  // Whether the tile's sequence wants to know what its keys get.
  bool KeepsTail(const QueryTile& tile) const {
    return !tile.sequence->Masses(place_.group, index_in_group()).empty();
  }

  // What a piece's keys got, to the sequence. `exclusive`: no other thread tells of them meanwhile.
  void AddMasses(const QueryTile& tile, const RunPiece& piece, const float* sums,
                 bool exclusive) const {
    const size_t first_slot = piece.run.first_slot + piece.begin - piece.run.first_token;
    const std::span<int64_t> masses = tile.sequence->Masses(place_.group, index_in_group())
                                          .subspan(first_slot, piece.end - piece.begin);
    if (exclusive) {
      for (size_t k = 0; k < masses.size(); ++k) masses[k] += kv::TailScores::ToUnits(sums[k]);
      return;
    }
    for (size_t k = 0; k < masses.size(); ++k) {
      std::atomic_ref(masses[k]).fetch_add(kv::TailScores::ToUnits(sums[k]),
                                           std::memory_order_relaxed);
    }
  }

  // A merged row as it leaves attention: quantised values were stored rotated.
  void Finish(const PieceView& merged, size_t row, float* out) const {
    const float inverse = 1.0f / merged.sum(row);
    const float* values = merged.values(row);
    for (size_t i = 0; i < merged.dim; ++i) out[i] = values[i] * inverse;
    if (IsQuantised(group_.shape.type.v)) pass_.kernels.vec.hadamard(out, merged.dim);
  }

 private:
  size_t index_in_group() const { return place_.layer_offset / group_.layer_bytes; }

  size_t NumRows(const QueryTile& tile) const { return size_t{tile.num_tokens} * group_size(); }

  ReadyQueries Pack(const float* queries, size_t rows, float* out) const {
    return PackQueries(keys_, queries, rows, head_dim(), out);
  }

  void AttendRun(const RunPiece& piece, const QueryTile& tile, const ReadyQueries& queries,
                 const WeightsView& weights, const PieceView& out) const {
    const auto& [run, begin, end] = piece;
    const size_t rows = NumRows(tile);
    if (begin >= end) {
      for (size_t r = 0; r < rows; ++r) out.max(r) = kNothing;
      return;
    }
    kernels::AttendCall call{};
    call.blocks = run.blocks.data() + (begin - run.first_token) / kernels::kBlockTokens;
    call.tile_offset = place_.layer_offset + tile.kv_head * group_.head_bytes;
    call.num_tokens = end - begin;
    call.head_dim = head_dim();
    call.num_rows = rows;
    call.q = queries.data;
    call.q_stride = queries.stride;
    call.scores = weights.data;
    call.score_stride = weights.stride;
    scores_(call);
    const std::span<const float> biases = BiasesOf(piece, tile);
    size_t r = 0;
    for (uint32_t t = 0; t < tile.num_tokens; ++t) {
      const uint32_t position = tile.first_position + t;
      uint32_t first = run.begin;
      if (run.kind == Run::Kind::kRecent) first = std::max(first, tile.view.FirstVisible(position));
      for (uint32_t head = 0; head < group_size(); ++head, ++r) {
        SoftmaxRow(weights.data + r * weights.stride, {begin, end, biases}, {first, position + 1},
                   out, r);
      }
    }
    call.tile_offset += group_.k_tile_bytes;
    call.out = out.values(0);
    call.out_stride = head_dim() + 2;
    values_.values(call);
  }

  // Of the keys of a piece, those of a tail that merges; else none.
  std::span<const float> BiasesOf(const RunPiece& piece, const QueryTile& tile) const {
    if (piece.run.kind != Run::Kind::kTail) return {};
    const std::span<const float> biases = tile.sequence->TailBiases(place_.group, index_in_group());
    if (biases.empty()) return {};
    const size_t first = piece.run.first_slot + piece.begin - piece.run.first_token;
    return biases.subspan(first, piece.end - piece.begin);
  }

  struct Keys {
    uint32_t begin;
    uint32_t end;
    std::span<const float> biases{};  // of each, or none
  };
  struct Visible {
    uint32_t begin;
    uint32_t end;
  };

  // Masks, softcaps, biases and exponentiates the scores of `keys` for one row.
  void SoftmaxRow(float* scores, const Keys& keys, Visible visible, const PieceView& out,
                  size_t row) const {
    const uint32_t lo = std::clamp(visible.begin, keys.begin, keys.end) - keys.begin;
    const uint32_t hi = std::clamp(visible.end, keys.begin + lo, keys.end) - keys.begin;
    const uint32_t count = keys.end - keys.begin;
    std::fill(scores, scores + lo, kNothing);
    std::fill(scores + hi, scores + count, kNothing);
    std::fill_n(out.values(row), head_dim(), 0.0f);
    if (lo == hi) {
      out.max(row) = kNothing;
      out.sum(row) = 0;
      std::fill(scores, scores + count, 0.0f);
      return;
    }
    const kernels::VectorTable& vec = pass_.kernels.vec;
    if (model_.attention_softcap > 0) {
      vec.softcap(scores + lo, model_.attention_softcap, hi - lo);
    }
    if (!keys.biases.empty()) vec.add(scores + lo, keys.biases.data() + lo, hi - lo);
    out.max(row) = vec.max(scores + lo, hi - lo);
    out.sum(row) = vec.exp_sum(scores, out.max(row), count);
  }

  // The tile's queries as the sinks see them. Past the trained context the distance to the sinks
  // would grow on into rotations that the model has never met. Only the difference of two angles
  // counts, so the query is turned back to where it would be if the window followed the sinks:
  // position window - 1 (StreamingLLM's positions inside the cache, without rewriting a key).
  // Queries for keys that are stored transformed are so, too, and turned in their own space.
  ReadyQueries SinkQueries(const QueryTile& tile, const ReadyQueries& queries) const {
    const uint32_t trained = model_.trained_context;
    if (layer_.rope < 0 || group_.shape.window == 0 || tile.last_position() < trained) {
      return queries;
    }
    const size_t rows = NumRows(tile);
    std::copy_n(tile.queries, rows * head_dim(), scratch_.sink_queries);
    const auto rotate = model_.rope_layout == model::RopeLayout::kPairs
                            ? pass_.kernels.vec.rope_pairs
                            : pass_.kernels.vec.rope_halves;
    const size_t half = model_.rope_dims / 2;
    const bool transformed = IsQuantised(group_.shape.type.k);
    for (uint32_t t = 0; t < tile.num_tokens; ++t) {
      if (tile.first_position + t < trained) continue;
      FillTurn(tile.first_row + t, scratch_.head);
      for (size_t r = 0; r < group_size(); ++r) {
        float* query = scratch_.sink_queries + (t * group_size() + r) * head_dim();
        if (transformed) pass_.kernels.vec.hadamard(query, head_dim());
        rotate(query, scratch_.head, scratch_.head + half, half);
        if (transformed) pass_.kernels.vec.hadamard(query, head_dim());
      }
    }
    return Pack(scratch_.sink_queries, rows, scratch_.sink_queries + rows * head_dim());
  }

  // cos and sin of the angle from a row's position to the one that its sinks see; both tables carry
  // the rotation's magnitude, which the query has already.
  void FillTurn(size_t row, float* turn) const {
    const size_t dims = model_.rope_dims, half = dims / 2;
    const auto rope = static_cast<size_t>(layer_.rope);
    const size_t group = static_cast<size_t>(place_.group);
    const float* from = pass_.floats(Buffer::kRope) + (rope * pass_.rows.size() + row) * dims;
    const float* to = pass_.sink_ropes.data() + (group * model_.ropes.size() + rope) * dims;
    const float magnitude = model_.ropes[rope].magnitude;
    const float scale = 1.0f / (magnitude * magnitude);
    for (size_t i = 0; i < half; ++i) {
      turn[i] = (to[i] * from[i] + to[half + i] * from[half + i]) * scale;
      turn[half + i] = (to[half + i] * from[i] - to[i] * from[half + i]) * scale;
    }
  }

  const Pass& pass_;
  const model::ModelDescription& model_;
  const model::LayerDescription& layer_;
  const kv::LayerPlace& place_;
  const kv::LayerGroup& group_;
  const kernels::KvTable& keys_;
  const kernels::KvTable& values_;
  const ScoreKernel scores_;
  const ThreadScratch& scratch_;
};

// Tells the sequence of a tile what its keys got, once the tile's rows are merged. Of each query's
// attention only so much counts as is left of it when the chunk is over.
void CollectTile(const Pass& pass, const LayerAttention& attention, const QueryTile& tile,
                 const Pieces& pieces, const PieceView& merged) {
  const ThreadScratch& scratch = attention.scratch();
  const uint32_t group = attention.group_size();
  const size_t rows = size_t{tile.num_tokens} * group;
  const size_t most_pieces = pass.workspace.most_pieces(), stride = WeightStride(pass);
  for (size_t r = 0; r < rows; ++r) {
    const size_t behind = tile.end_position - tile.first_position - 1 - r / group;
    const double fade = std::pow(kv::TailScores::kDecay, static_cast<double>(behind));
    scratch.shares[r] = static_cast<float>(fade) / merged.sum(r);
  }
  for (uint32_t p = pieces.num_sinks; p < pieces.count; ++p) {
    const RunPiece piece = PieceOf(tile, pieces, p);
    const size_t num_keys = piece.num_keys();
    std::fill_n(scratch.key_sums, num_keys, 0.0f);
    for (size_t r = 0; r < rows; ++r) {
      const float max = scratch.piece_max[r * most_pieces + p];
      if (max == kNothing) continue;
      const float share = scratch.shares[r] * std::exp(max - merged.max(r));
      const float* weights = scratch.weights + r * stride + size_t{p} * kKeysPerPiece;
      for (size_t k = 0; k < num_keys; ++k) scratch.key_sums[k] += share * weights[k];
    }
    if (num_keys > 0) attention.AddMasses(tile, piece, scratch.key_sums, false);
  }
}

// A tile's whole context, piece after piece; finished rows go to kAttended.
void AttendTile(const Pass& pass, const LayerAttention& attention, const QueryTile& tile) {
  const size_t dim = attention.head_dim();
  const uint32_t group = attention.group_size();
  const size_t rows = size_t{tile.num_tokens} * group;
  const PieceView merged{attention.scratch().merged, dim};
  const PieceView piece{attention.scratch().piece, dim};
  for (size_t r = 0; r < rows; ++r) merged.max(r) = kNothing;
  const ReadyQueries queries = attention.Ready(tile);
  const Pieces pieces = PiecesOf(tile);
  const bool keeps_tail = attention.KeepsTail(tile);
  const ThreadScratch& scratch = attention.scratch();
  WeightsView weights{scratch.scores, kKeysPerPiece};
  for (uint32_t p = 0; p < pieces.count; ++p) {
    if (keeps_tail) weights = {scratch.weights + size_t{p} * kKeysPerPiece, WeightStride(pass)};
    attention.AttendPiece(tile, queries, PieceOf(tile, pieces, p), weights, piece);
    for (size_t r = 0; r < rows; ++r) {
      if (keeps_tail) scratch.piece_max[r * pass.workspace.most_pieces() + p] = piece.max(r);
      MergeRow(merged, piece, r);
    }
  }
  if (keeps_tail) CollectTile(pass, attention, tile, pieces, merged);
  const size_t width = size_t{pass.description().num_heads} * dim;
  for (size_t r = 0; r < rows; ++r) {
    const size_t token = tile.first_row + r / group;
    const size_t head = tile.kv_head * group + r % group;
    attention.Finish(merged, r, pass.floats(Buffer::kAttended) + token * width + head * dim);
  }
}

void AttendBatch(const Pass& pass, const LayerAttention& attention, size_t thread) {
  const uint32_t group = attention.group_size();
  const uint32_t tokens_per_tile = std::max(1u, kQueryRowsPerTile / group);
  size_t unit = 0;
  size_t chunk_row = 0;
  for (const SequenceChunk& chunk : pass.chunks) {
    const auto num_tokens = static_cast<uint32_t>(chunk.tokens.size());
    const kv::Sequence::View view = attention.ViewOf(*chunk.sequence);
    for (uint32_t t = 0; t < num_tokens; t += tokens_per_tile) {
      for (uint32_t h = 0; h < attention.num_kv_heads(); ++h, ++unit) {
        if (unit % pass.team.size() != thread) continue;
        const size_t row = chunk_row + t;
        const size_t query = (h * pass.rows.size() + row) * group * attention.head_dim();
        const QueryTile tile{.sequence = chunk.sequence,
                             .view = view,
                             .queries = pass.floats(Buffer::kQueries) + query,
                             .first_row = row,
                             .first_position = pass.rows[row].position,
                             .end_position = pass.rows[chunk_row].position + num_tokens,
                             .num_tokens = std::min(tokens_per_tile, num_tokens - t),
                             .kv_head = h};
        AttendTile(pass, attention, tile);
      }
    }
    chunk_row += num_tokens;
  }
}

QueryTile SingleRowTile(const Pass& pass, const LayerAttention& attention, uint32_t kv_head) {
  const size_t query = size_t{kv_head} * attention.group_size() * attention.head_dim();
  return {.sequence = pass.chunks[0].sequence,
          .view = attention.ViewOf(*pass.chunks[0].sequence),
          .queries = pass.floats(Buffer::kQueries) + query,
          .first_row = 0,
          .first_position = pass.rows[0].position,
          .end_position = pass.rows[0].position + 1,
          .num_tokens = 1,
          .kv_head = kv_head};
}

// Where piece `index` of a KV head leaves its result for a batch of one row.
PieceView PartialOf(const Pass& pass, const LayerAttention& attention, uint32_t kv_head,
                    size_t index) {
  const size_t dim = attention.head_dim();
  const size_t slot = index * attention.num_kv_heads() + kv_head;
  return {pass.floats(Buffer::kPartials) + slot * attention.group_size() * (dim + 2), dim};
}

// The weights that a batch of one row keeps: of piece `index`, for the heads of a KV head.
WeightsView WeightsOf(const Pass& pass, const LayerAttention& attention, uint32_t kv_head,
                      size_t index) {
  const size_t pieces = pass.workspace.most_pieces() * size_t{attention.num_kv_heads()};
  const size_t partials = pieces * attention.group_size() * (attention.head_dim() + 2);
  const size_t head = size_t{kv_head} * attention.group_size();
  return {
      pass.floats(Buffer::kPartials) + partials + head * WeightStride(pass) + index * kKeysPerPiece,
      WeightStride(pass)};
}

void AttendSingleRow(const Pass& pass, const LayerAttention& attention, size_t thread) {
  QueryTile tile = SingleRowTile(pass, attention, 0);
  const Pieces pieces = PiecesOf(tile);
  const bool keeps_tail = attention.KeepsTail(tile);
  KeyShares shares(NumKeys(tile, pieces) * attention.num_kv_heads(), pass.team.size());
  WeightsView weights{attention.scratch().scores, kKeysPerPiece};
  for (uint32_t h = 0; h < attention.num_kv_heads(); ++h) {
    tile = SingleRowTile(pass, attention, h);
    std::optional<ReadyQueries> queries;
    for (uint32_t p = 0; p < pieces.count; ++p) {
      const RunPiece piece = PieceOf(tile, pieces, p);
      if (shares.Next(piece.num_keys()) != thread) continue;
      if (!queries) queries = attention.Ready(tile);
      if (keeps_tail) weights = WeightsOf(pass, attention, h, p);
      attention.AttendPiece(tile, *queries, piece, weights, PartialOf(pass, attention, h, p));
    }
  }
}

// What the keys of a piece got of a single row, all heads together: into key_sums. `shares` is one
// for each head.
void SumPiece(const Pass& pass, const LayerAttention& attention, uint32_t index, size_t num_keys) {
  constexpr size_t kAtOnce = 16;  // in registers, while the heads go by
  static_assert(kKeysPerPiece % kAtOnce == 0);
  const ThreadScratch& scratch = attention.scratch();
  const size_t num_heads = pass.description().num_heads, group = attention.group_size();
  float* shares = scratch.head;
  for (size_t head = 0; head < num_heads; ++head) {
    const auto kv_head = static_cast<uint32_t>(head / group);
    const float max = PartialOf(pass, attention, kv_head, index).max(head % group);
    shares[head] = scratch.shares[head] * std::exp(max - scratch.piece_max[head]);
  }
  const WeightsView weights = WeightsOf(pass, attention, 0, index);  // the other heads' follow
  for (size_t k = 0; k < num_keys; k += kAtOnce) {  // the rest of the last ones are nobody's
    std::array<float, kAtOnce> sums{};
    for (size_t head = 0; head < num_heads; ++head) {
      const float* some = weights.data + head * weights.stride + k;
      for (size_t i = 0; i < kAtOnce; ++i) sums[i] += shares[head] * some[i];
    }
    std::ranges::copy(sums, scratch.key_sums + k);
  }
}

}  // namespace

void Attend(const Pass& pass, uint32_t layer, size_t thread) {
  const LayerAttention attention(pass, layer, thread);
  if (pass.rows.size() == 1) {
    AttendSingleRow(pass, attention, thread);
  } else {
    AttendBatch(pass, attention, thread);
  }
}

void MergeSingleRow(const Pass& pass, uint32_t layer, size_t thread, float* out) {
  const LayerAttention attention(pass, layer, thread);
  const size_t dim = attention.head_dim();
  const uint32_t group = attention.group_size();
  const QueryTile tile = SingleRowTile(pass, attention, 0);
  const uint32_t count = PiecesOf(tile).count;
  const bool keeps_tail = attention.KeepsTail(tile);
  const ThreadScratch& scratch = attention.scratch();
  const PieceView merged{scratch.merged, dim};
  for (uint32_t h = 0; h < attention.num_kv_heads(); ++h) {
    for (uint32_t r = 0; r < group; ++r) {
      merged.max(r) = kNothing;
      for (uint32_t p = 0; p < count; ++p) {
        MergeRow(merged, PartialOf(pass, attention, h, p), r);
      }
      const size_t head = size_t{h} * group + r;
      if (keeps_tail) {  // for CollectSingleRow()
        scratch.piece_max[head] = merged.max(r);
        scratch.shares[head] = 1 / merged.sum(r);
      }
      attention.Finish(merged, r, out + head * dim);
    }
  }
}

// Pieces are dealt out, each with all of its heads: nobody else adds to its keys. The totals of
// the heads are those of MergeSingleRow().
void CollectSingleRow(const Pass& pass, uint32_t layer, size_t thread) {
  const LayerAttention attention(pass, layer, thread);
  const QueryTile tile = SingleRowTile(pass, attention, 0);
  if (!attention.KeepsTail(tile)) return;
  const Pieces pieces = PiecesOf(tile);
  const ThreadScratch& scratch = attention.scratch();
  KeyShares shares(NumKeys(tile, pieces, pieces.num_sinks), pass.team.size());
  for (uint32_t p = pieces.num_sinks; p < pieces.count; ++p) {
    const RunPiece piece = PieceOf(tile, pieces, p);
    if (shares.Next(piece.num_keys()) != thread || piece.num_keys() == 0) continue;
    SumPiece(pass, attention, p, piece.num_keys());
    attention.AddMasses(tile, piece, scratch.key_sums, true);
  }
}

}  // namespace tael::exec
