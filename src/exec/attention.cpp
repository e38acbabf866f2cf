#include "exec/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/checked.h"

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

// Consecutive queries of one sequence and one KV head: rows are (token, head of the group).
struct QueryTile {
  const kv::Sequence* sequence;
  const float* queries;     // [num_tokens * group, head_dim]
  size_t first_row;         // of the batch
  uint32_t first_position;  // of the first token
  uint32_t num_tokens;
  uint32_t kv_head;

  uint32_t last_position() const { return first_position + num_tokens - 1; }
};

// A tile's queries as the keys' type wants them, row after row.
struct ReadyQueries {
  const float* data;
  size_t stride;
};

// The pieces that a tile looks at: those of the sinks, where the layer has a window, and those of
// the recent tokens. Sinks have pieces of their own from the first token on, so that what is added
// to what is the same before and after tokens between the two were dropped.
struct Pieces {
  uint32_t num_sinks = 0;     // pieces of sinks
  uint32_t first_recent = 0;  // piece [first_recent * kKeysPerPiece, ...) follows them
  uint32_t count = 0;         // of both
};

// The sinks, or what follows them. Blocks lie side by side; the first holds token `first_token`.
struct Run {
  bool sinks;
  std::span<const std::byte* const> blocks;
  uint32_t first_token;
  uint32_t begin;  // tokens [begin, end)
  uint32_t end;
};

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
  const ThreadScratch& scratch() const { return scratch_; }

  Pieces PiecesOf(const QueryTile& tile) const {
    const uint32_t sinks = NumSinks(tile);
    const uint32_t last = tile.last_position();
    const uint32_t first = std::max(FirstVisible(tile, tile.first_position), sinks);
    Pieces pieces{.num_sinks = CeilDiv(std::min(sinks, last + 1), kKeysPerPiece),
                  .first_recent = first / kKeysPerPiece};
    pieces.count = pieces.num_sinks;
    if (first <= last) pieces.count += last / kKeysPerPiece + 1 - pieces.first_recent;
    return pieces;
  }

  // In the thread's scratch where they are not what the tile has: pieces share the work.
  ReadyQueries Ready(const QueryTile& tile) const {
    return Pack(tile.queries, NumRows(tile), scratch_.queries);
  }

  // Attention of a tile, whose queries are Ready(), over its piece `index`, into `out`.
  void AttendPiece(const QueryTile& tile, const ReadyQueries& queries, const Pieces& pieces,
                   uint32_t index, const PieceView& out) const {
    const kv::Sequence::View view = tile.sequence->Blocks(place_.group);
    const uint32_t sinks = NumSinks(tile);
    if (index < pieces.num_sinks) {
      AttendRun({true, view.sinks, 0, 0, sinks}, tile, SinkQueries(tile, queries), index, out);
    } else {
      const uint32_t piece = pieces.first_recent + index - pieces.num_sinks;
      const Run run{false, view.blocks, view.first_token, sinks, UINT32_MAX};
      AttendRun(run, tile, queries, piece, out);
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
  // Queries are activations: of 8 bits or, on the reference path, with all their bits.
  static auto ScoresOf(const Pass& pass, const kernels::KvTable& keys)
      -> void (*)(const kernels::AttendCall&) {
    const bool exact = pass.workspace.shape().compute == Compute::kReference;
    return exact && keys.exact_scores != nullptr ? keys.exact_scores : keys.scores;
  }

  size_t NumRows(const QueryTile& tile) const { return size_t{tile.num_tokens} * group_size(); }

  // Queries of [rows, head_dim] into `out`, if they have to be packed.
  ReadyQueries Pack(const float* queries, size_t rows, float* out) const {
    if (keys_.pack_q == nullptr) return {queries, head_dim()};
    const size_t stride = kernels::PackedQueryFloats(head_dim());
    for (size_t r = 0; r < rows; ++r) {
      keys_.pack_q(queries + r * head_dim(), head_dim(), out + r * stride);
    }
    return {out, stride};
  }

  uint32_t NumSinks(const QueryTile& tile) const {
    return tile.sequence->window(place_.group).sinks;
  }
  uint32_t FirstVisible(const QueryTile& tile, uint32_t position) const {
    return tile.sequence->FirstVisible(place_.group, position);
  }

  void AttendRun(const Run& run, const QueryTile& tile, const ReadyQueries& queries, uint32_t piece,
                 const PieceView& out) const {
    const uint32_t run_begin = run.begin - run.begin % uint32_t{kernels::kBlockTokens};
    const uint32_t begin = std::max({piece * kKeysPerPiece, run.first_token, run_begin});
    const uint32_t end = std::min({(piece + 1) * kKeysPerPiece, tile.last_position() + 1, run.end});
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
    call.scores = scratch_.scores;
    call.score_stride = kKeysPerPiece;
    scores_(call);
    size_t r = 0;
    for (uint32_t t = 0; t < tile.num_tokens; ++t) {
      const uint32_t position = tile.first_position + t;
      uint32_t first = run.begin;
      if (!run.sinks) first = std::max(first, FirstVisible(tile, position));
      for (uint32_t head = 0; head < group_size(); ++head, ++r) {
        SoftmaxRow(call.scores + r * kKeysPerPiece, {begin, end}, {first, position + 1}, out, r);
      }
    }
    call.tile_offset += group_.k_tile_bytes;
    call.out = out.values(0);
    call.out_stride = head_dim() + 2;
    values_.values(call);
  }

  struct Keys {
    uint32_t begin;
    uint32_t end;
  };

  // Masks, softcaps and exponentiates the scores of `keys` for one row, which sees `visible`.
  void SoftmaxRow(float* scores, Keys keys, Keys visible, const PieceView& out, size_t row) const {
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
  void (*const scores_)(const kernels::AttendCall&);
  const ThreadScratch& scratch_;
};

// A tile's whole context, piece after piece; finished rows go to kAttended.
void AttendTile(const Pass& pass, const LayerAttention& attention, const QueryTile& tile) {
  const size_t dim = attention.head_dim();
  const uint32_t group = attention.group_size();
  const size_t rows = size_t{tile.num_tokens} * group;
  const PieceView merged{attention.scratch().merged, dim};
  const PieceView piece{attention.scratch().piece, dim};
  for (size_t r = 0; r < rows; ++r) merged.max(r) = kNothing;
  const ReadyQueries queries = attention.Ready(tile);
  const Pieces pieces = attention.PiecesOf(tile);
  for (uint32_t p = 0; p < pieces.count; ++p) {
    attention.AttendPiece(tile, queries, pieces, p, piece);
    for (size_t r = 0; r < rows; ++r) MergeRow(merged, piece, r);
  }
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
    for (uint32_t t = 0; t < num_tokens; t += tokens_per_tile) {
      for (uint32_t h = 0; h < attention.num_kv_heads(); ++h, ++unit) {
        if (unit % pass.team.size() != thread) continue;
        const size_t row = chunk_row + t;
        const size_t query = (h * pass.rows.size() + row) * group * attention.head_dim();
        const QueryTile tile{.sequence = chunk.sequence,
                             .queries = pass.floats(Buffer::kQueries) + query,
                             .first_row = row,
                             .first_position = pass.rows[row].position,
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
          .queries = pass.floats(Buffer::kQueries) + query,
          .first_row = 0,
          .first_position = pass.rows[0].position,
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

void AttendSingleRow(const Pass& pass, const LayerAttention& attention, size_t thread) {
  size_t unit = 0;
  for (uint32_t h = 0; h < attention.num_kv_heads(); ++h) {
    const QueryTile tile = SingleRowTile(pass, attention, h);
    const Pieces pieces = attention.PiecesOf(tile);
    std::optional<ReadyQueries> queries;
    for (uint32_t p = 0; p < pieces.count; ++p, ++unit) {
      if (unit % pass.team.size() != thread) continue;
      if (!queries) queries = attention.Ready(tile);
      attention.AttendPiece(tile, *queries, pieces, p, PartialOf(pass, attention, h, p));
    }
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
  const uint32_t count = attention.PiecesOf(SingleRowTile(pass, attention, 0)).count;
  const PieceView merged{attention.scratch().merged, dim};
  for (uint32_t h = 0; h < attention.num_kv_heads(); ++h) {
    for (uint32_t r = 0; r < group; ++r) {
      merged.max(r) = kNothing;
      for (uint32_t p = 0; p < count; ++p) {
        MergeRow(merged, PartialOf(pass, attention, h, p), r);
      }
      attention.Finish(merged, r, out + (size_t{h} * group + r) * dim);
    }
  }
}

}  // namespace tael::exec
