// Matrix products for 64-bit ARM with matrix multiply instructions for bytes (Cortex-A510, A710,
// Neoverse V1, N2 and later): up to sixteen tokens on rows in the file's layout, panels for more.
//
// One token goes the same way, as a pair with nothing, so a token gets the same bits in any
// company. docs/arm.md says what that is predicted to cost against SDOT.
#include "kernels/isa/i8mm_pairs.h"
#include "kernels/isa/i8mm_panel.h"

namespace tael::kernels {

extern const MatmulTable kI8mmMatmul;

namespace {

constexpr size_t kMostTokensOnRows = 16;

ActFormat I8mmFormatFor(WeightType type, size_t num_tokens) {
  return IsFloatType(type) ? FormatFor(type, num_tokens) : kPairs;
}

size_t I8mmTileTokens(ActFormat format) { return format == kPairs ? 2 : TileTokens(format); }

size_t I8mmActBytes(ActFormat format, size_t num_tokens, size_t k) {
  if (format != kPairs) return ActBytes(format, num_tokens, k);
  return (num_tokens + 1) / 2 * PairBytes(k);
}

void I8mmPackAct(ActFormat format, const PackCall& call) {
  return format == kPairs ? PackPairs(call) : PackAct(format, call);
}

size_t I8mmScratchBytes(WeightType type, size_t num_tokens, size_t k) {
  if (IsFloatType(type)) return ScratchBytes(type, num_tokens, k);
  return num_tokens <= kMostTokensOnRows ? 0 : PanelScratchBytes<SmmlaPanel>(type, k);
}

template <typename Format>
void I8mmMatmul(const MatmulCall& call) {
  switch ((call.num_tokens + 1) / 2) {
    case 1:
      return RowsByPairs<Format, 1>(call);
    case 2:
      return RowsByPairs<Format, 2>(call);
    case 3:
      return RowsByPairs<Format, 3>(call);
    case 4:
      return RowsByPairs<Format, 4>(call);
    case 5:
    case 6:
      return RowsByPairs<Format, 6>(call);
    case 7:
    case 8:
      return RowsByPairs<Format, 8>(call);
    default:
      return PanelMatmul<SmmlaPanel, Format>(call);
  }
}

static_assert(kMostTokensOnRows == 16, "I8mmMatmul() names each count of pairs");

constexpr MatmulTable MakeTable() {
  MatmulTable table = MakeFloatTable();
  table.act_format = &I8mmFormatFor;
  table.act_tile_tokens = &I8mmTileTokens;
  table.act_bytes = &I8mmActBytes;
  table.pack_act = &I8mmPackAct;
  table.scratch_bytes = &I8mmScratchBytes;
  ForEachFormat([&table]<typename Format>() {
    table.matmul[static_cast<size_t>(Format::kType)] = &I8mmMatmul<Format>;
  });
  return table;
}

}  // namespace

constinit const MatmulTable kI8mmMatmul = MakeTable();

}  // namespace tael::kernels
