#include "exec/observation.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>

#include "exec/scores.h"

namespace tael::exec {
namespace {

using model::Buffer;

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr uint32_t kTokens = kernels::kBlockTokens;

// Consecutive queries of one sequence and one KV head: rows are (token, head of the group).
struct Tile {
  kv::Sequence* sequence;
  const float* queries;  // [num_tokens * group, head_dim]
  uint32_t first_position;
  uint32_t num_tokens;
  uint32_t kv_head;
};

// Keys whose blocks lie side by side.
struct Piece {
  std::span<const std::byte* const> blocks;
  uint32_t num_keys;
  uint32_t slot;     // of the first
  int64_t position;  // of the first; before 0 where all are seen by everybody
};

class LayerObservation {
 public:
  LayerObservation(const Pass& pass, uint32_t layer, size_t thread)
      : pass_(pass),
        model_(pass.description()),
        place_(pass.geometry.places[layer]),
        group_(pass.geometry.group(place_.group)),
        heads_(model_.num_heads / model_.layers[layer].num_kv_heads),
        keys_(pass.kernels.kv[static_cast<size_t>(group_.shape.type.k)]),
        scores_(ScoresOf(pass, keys_)),
        scratch_(pass.scratch(thread)) {}

  // Tiles of the rows that count are dealt out to the threads.
  void Run(size_t thread) const {
    const uint32_t most = std::max(1u, kQueryRowsPerTile / heads_);
    const uint32_t num_kv_heads = group_.shape.num_kv_heads;
    size_t unit = 0, row = 0;
    for (const SequenceChunk& chunk : pass_.chunks) {
      const auto count = static_cast<uint32_t>(chunk.tokens.size());
      const uint32_t begin = pass_.rows[row].position;
      const bool asks = !chunk.sequence->Observed(place_.group).empty();
      const uint32_t from = asks ? std::max(chunk.sequence->observe_from(), begin) - begin : count;
      for (uint32_t t = from; t < count; t += most) {
        for (uint32_t h = 0; h < num_kv_heads; ++h, ++unit) {
          if (unit % pass_.team.size() != thread) continue;
          const size_t query = (h * pass_.rows.size() + row + t) * heads_ * model_.head_dim;
          Observe({.sequence = chunk.sequence,
                   .queries = pass_.floats(Buffer::kQueries) + query,
                   .first_position = begin + t,
                   .num_tokens = std::min(most, count - t),
                   .kv_head = h});
        }
      }
      row += count;
    }
  }

 private:
  size_t NumRows(const Tile& tile) const { return size_t{tile.num_tokens} * heads_; }

  // Of a row: its largest score, and the sum of exp(score - largest).
  float& max(size_t row) const { return scratch_.merged[2 * row]; }
  float& sum(size_t row) const { return scratch_.merged[2 * row + 1]; }

  void Observe(const Tile& tile) const {
    const kernels::VectorTable& vec = pass_.kernels.vec;
    const kernels::AttendCall call = Ready(tile);
    for (size_t row = 0; row < NumRows(tile); ++row) {
      max(row) = kNothing;
      sum(row) = 0;
    }
    ForEachPiece(tile, [&](const Piece& piece) {
      Score(tile, piece, call, [&](size_t row, float* scores, size_t count) {
        const float before = max(row);
        max(row) = std::max(before, vec.max(scores, count));
        sum(row) = sum(row) * std::exp(before - max(row)) + vec.exp_sum(scores, max(row), count);
      });
    });
    ForEachPiece(tile, [&](const Piece& piece) {
      std::array<int64_t, kKeysPerPiece> masses{};
      Score(tile, piece, call, [&](size_t row, float* scores, size_t count) {
        const float unit = static_cast<float>(kv::PromptScores::kUnit) / sum(row);
        vec.exp_sum(scores, max(row), count);
        for (size_t k = 0; k < count; ++k) masses[k] += static_cast<int64_t>(scores[k] * unit);
      });
      const std::span<int64_t> all = tile.sequence->Observed(place_.group);
      for (uint32_t k = 0; k < piece.num_keys; ++k) {
        std::atomic_ref(all[piece.slot + k]).fetch_add(masses[k], std::memory_order_relaxed);
      }
    });
  }

  // The tile's queries as the keys' type wants them, and where scores go.
  kernels::AttendCall Ready(const Tile& tile) const {
    kernels::AttendCall call{};
    call.tile_offset = place_.layer_offset + tile.kv_head * group_.head_bytes;
    call.head_dim = model_.head_dim;
    call.num_rows = NumRows(tile);
    const ReadyQueries queries =
        PackQueries(keys_, tile.queries, call.num_rows, model_.head_dim, scratch_.queries);
    call.q = queries.data;
    call.q_stride = queries.stride;
    call.scores = scratch_.scores;
    call.score_stride = kKeysPerPiece;
    return call;
  }

  // The live blocks up to the tile's last token: what is left of a prompt before, then recent ones.
  template <class Visit>
  void ForEachPiece(const Tile& tile, const Visit& visit) const {
    const kv::Sequence::View view = tile.sequence->Blocks(place_.group);
    const auto kept = static_cast<uint32_t>(view.tail.size()) * kTokens;
    const uint32_t end = tile.first_position + tile.num_tokens - view.first_token;
    VisitPieces({view.tail, kept, view.tail_slot, -int64_t{kept}}, visit);
    VisitPieces({view.blocks, end, view.first_slot, view.first_token}, visit);
  }

  template <class Visit>
  static void VisitPieces(const Piece& all, const Visit& visit) {
    for (uint32_t at = 0; at < all.num_keys; at += kKeysPerPiece) {
      visit(Piece{.blocks = all.blocks.subspan(at / kTokens),
                  .num_keys = std::min(kKeysPerPiece, all.num_keys - at),
                  .slot = all.slot + at,
                  .position = all.position + at});
    }
  }

  // Gives each row its scores of those of the piece's keys that it sees.
  template <class Visit>
  void Score(const Tile& tile, const Piece& piece, kernels::AttendCall call,
             const Visit& visit) const {
    call.blocks = piece.blocks.data();
    call.num_tokens = piece.num_keys;
    scores_(call);
    for (size_t row = 0; row < call.num_rows; ++row) {
      const int64_t seen =
          int64_t{tile.first_position} + static_cast<int64_t>(row / heads_) + 1 - piece.position;
      if (seen <= 0) continue;
      const auto count = static_cast<size_t>(std::min<int64_t>(seen, piece.num_keys));
      float* scores = call.scores + row * call.score_stride;
      if (model_.attention_softcap > 0) {
        pass_.kernels.vec.softcap(scores, model_.attention_softcap, count);
      }
      visit(row, scores, count);
    }
  }

  const Pass& pass_;
  const model::ModelDescription& model_;
  const kv::LayerPlace& place_;
  const kv::LayerGroup& group_;
  const uint32_t heads_;  // query heads of a KV head
  const kernels::KvTable& keys_;
  const ScoreKernel scores_;
  const ThreadScratch& scratch_;
};

}  // namespace

void Observe(const Pass& pass, uint32_t layer, size_t thread) {
  const LayerObservation observation(pass, layer, thread);
  observation.Run(thread);
}

}  // namespace tael::exec
