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
  const float* queries;     // [num_tokens * group, query_stride]
  size_t query_stride;      // head_dim, or what LayerAttention::Ready() made of it
  uint32_t first_position;  // of the first token
  uint32_t num_tokens;
  uint32_t kv_head;
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

  // First key that the query at `position` sees.
  uint32_t FirstVisible(uint32_t position) const {
    const uint32_t window = layer_.window;
    return window != 0 && position + 1 > window ? position + 1 - window : 0;
  }

  // The tile with its queries as the keys' type wants them, in the thread's scratch where that is
  // not what they are: pieces share the work.
  QueryTile Ready(QueryTile tile) const {
    if (keys_.pack_q == nullptr) return tile;
    const size_t stride = kernels::PackedQueryFloats(head_dim());
    for (size_t r = 0; r < size_t{tile.num_tokens} * group_size(); ++r) {
      keys_.pack_q(tile.queries + r * tile.query_stride, head_dim(), scratch_.queries + r * stride);
    }
    tile.queries = scratch_.queries;
    tile.query_stride = stride;
    return tile;
  }

  // Attention of a tile that is Ready() over one piece of its context, into `out`.
  void AttendPiece(const QueryTile& tile, uint32_t piece, const PieceView& out) const {
    const kv::Sequence::View view = tile.sequence->Blocks(place_.group);
    const uint32_t last = tile.first_position + tile.num_tokens - 1;
    const uint32_t begin = std::max(piece * kKeysPerPiece, view.first_token);
    const uint32_t end = std::min((piece + 1) * kKeysPerPiece, last + 1);
    const size_t rows = size_t{tile.num_tokens} * group_size();
    if (begin >= end) {
      for (size_t r = 0; r < rows; ++r) out.max(r) = kNothing;
      return;
    }
    kernels::AttendCall call{};
    call.blocks = view.blocks.data() + (begin - view.first_token) / kernels::kBlockTokens;
    call.tile_offset = place_.layer_offset + tile.kv_head * group_.head_bytes;
    call.num_tokens = end - begin;
    call.head_dim = head_dim();
    call.num_rows = rows;
    call.q = tile.queries;
    call.q_stride = tile.query_stride;
    call.scores = scratch_.scores;
    call.score_stride = kKeysPerPiece;
    scores_(call);
    for (size_t r = 0; r < rows; ++r) {
      const auto position = tile.first_position + static_cast<uint32_t>(r) / group_size();
      SoftmaxRow(call.scores + r * kKeysPerPiece, begin, end, position, out, r);
    }
    call.tile_offset += group_.k_tile_bytes;
    call.out = out.values(0);
    call.out_stride = head_dim() + 2;
    values_.values(call);
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

  // Masks, softcaps and exponentiates the scores of keys [begin, end) for one row.
  void SoftmaxRow(float* scores, uint32_t begin, uint32_t end, uint32_t position,
                  const PieceView& out, size_t row) const {
    const uint32_t lo = std::clamp(FirstVisible(position), begin, end);
    const uint32_t hi = std::clamp(position + 1, lo, end);
    std::fill(scores, scores + (lo - begin), kNothing);
    std::fill(scores + (hi - begin), scores + (end - begin), kNothing);
    std::fill_n(out.values(row), head_dim(), 0.0f);
    if (lo == hi) {
      out.max(row) = kNothing;
      out.sum(row) = 0;
      std::fill(scores, scores + (end - begin), 0.0f);
      return;
    }
    const kernels::VectorTable& vec = pass_.kernels.vec;
    if (model_.attention_softcap > 0) {
      vec.softcap(scores + (lo - begin), model_.attention_softcap, hi - lo);
    }
    out.max(row) = vec.max(scores + (lo - begin), hi - lo);
    out.sum(row) = vec.exp_sum(scores, out.max(row), end - begin);
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
void AttendTile(const Pass& pass, const LayerAttention& attention, const QueryTile& queries,
                size_t first_row) {
  const QueryTile tile = attention.Ready(queries);
  const size_t dim = attention.head_dim();
  const uint32_t group = attention.group_size();
  const size_t rows = size_t{tile.num_tokens} * group;
  const PieceView merged{attention.scratch().merged, dim};
  const PieceView piece{attention.scratch().piece, dim};
  for (size_t r = 0; r < rows; ++r) merged.max(r) = kNothing;
  const uint32_t first = attention.FirstVisible(tile.first_position) / kKeysPerPiece;
  const uint32_t last = (tile.first_position + tile.num_tokens - 1) / kKeysPerPiece;
  for (uint32_t p = first; p <= last; ++p) {
    attention.AttendPiece(tile, p, piece);
    for (size_t r = 0; r < rows; ++r) MergeRow(merged, piece, r);
  }
  const size_t width = size_t{pass.description().num_heads} * dim;
  for (size_t r = 0; r < rows; ++r) {
    const size_t token = first_row + r / group;
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
                             .query_stride = attention.head_dim(),
                             .first_position = pass.rows[row].position,
                             .num_tokens = std::min(tokens_per_tile, num_tokens - t),
                             .kv_head = h};
        AttendTile(pass, attention, tile, row);
      }
    }
    chunk_row += num_tokens;
  }
}

QueryTile SingleRowTile(const Pass& pass, const LayerAttention& attention, uint32_t kv_head) {
  const size_t query = size_t{kv_head} * attention.group_size() * attention.head_dim();
  return {.sequence = pass.chunks[0].sequence,
          .queries = pass.floats(Buffer::kQueries) + query,
          .query_stride = attention.head_dim(),
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
  const uint32_t position = pass.rows[0].position;
  const uint32_t first = attention.FirstVisible(position) / kKeysPerPiece;
  const uint32_t last = position / kKeysPerPiece;
  size_t unit = 0;
  for (uint32_t h = 0; h < attention.num_kv_heads(); ++h) {
    std::optional<QueryTile> tile;
    for (uint32_t p = first; p <= last; ++p, ++unit) {
      if (unit % pass.team.size() != thread) continue;
      if (!tile) tile = attention.Ready(SingleRowTile(pass, attention, h));
      attention.AttendPiece(*tile, p, PartialOf(pass, attention, h, p - first));
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
  const uint32_t position = pass.rows[0].position;
  const uint32_t first = attention.FirstVisible(position) / kKeysPerPiece;
  const uint32_t count = position / kKeysPerPiece - first + 1;
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
