#include "exec/attention_pieces.h"

#include "base/checked.h"
#include "kernels/kernels.h"

namespace tael::exec {
namespace {

uint32_t TailTokens(const QueryTile& tile) {
  return static_cast<uint32_t>(tile.view.tail.size() * kernels::kBlockTokens);
}

}  // namespace

Pieces PiecesOf(const QueryTile& tile) {
  const uint32_t sinks = tile.view.window.sinks;
  const uint32_t last = tile.last_position();
  const uint32_t first = std::max(tile.view.FirstVisible(tile.first_position), sinks);
  Pieces pieces{.num_sinks = CeilDiv(std::min(sinks, last + 1), kKeysPerPiece),
                .num_tail = CeilDiv(TailTokens(tile), kKeysPerPiece),
                .first_recent = first / kKeysPerPiece};
  pieces.count = pieces.num_sinks + pieces.num_tail;
  if (first <= last) pieces.count += last / kKeysPerPiece + 1 - pieces.first_recent;
  return pieces;
}

RunPiece PieceOf(const QueryTile& tile, const Pieces& pieces, uint32_t index) {
  const kv::Sequence::View& view = tile.view;
  const uint32_t sinks = view.window.sinks;
  Run run{Run::Kind::kSinks, view.sinks, 0, 0, sinks, 0};
  uint32_t piece = index;
  if (index >= pieces.num_sinks + pieces.num_tail) {
    run = {Run::Kind::kRecent, view.blocks, view.first_token, sinks, UINT32_MAX, view.first_slot};
    piece = pieces.first_recent + index - pieces.num_sinks - pieces.num_tail;
  } else if (index >= pieces.num_sinks) {
    run = {Run::Kind::kTail, view.tail, 0, 0, TailTokens(tile), view.tail_slot};
    piece = index - pieces.num_sinks;
  }
  const uint32_t run_begin = run.begin - run.begin % uint32_t{kernels::kBlockTokens};
  return {run, std::max({piece * kKeysPerPiece, run.first_token, run_begin}),
          std::min({(piece + 1) * kKeysPerPiece, tile.last_position() + 1, run.end})};
}

uint64_t NumKeys(const QueryTile& tile, const Pieces& pieces, uint32_t first) {
  uint64_t count = 0;
  for (uint32_t p = first; p < pieces.count; ++p) count += PieceOf(tile, pieces, p).num_keys();
  return count;
}

}  // namespace tael::exec
