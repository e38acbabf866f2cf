// Matrix products for 64-bit ARM with the dot product extension (Cortex-A55, A76 and later): rows
// decoded in registers for up to four tokens, panels from five on.
#include "kernels/isa/dotprod_panel.h"

namespace tael::kernels {

extern const MatmulTable kDotprodMatmul;

namespace {

struct SdotDot {
  TAEL_INLINE static int32x4_t Add(int32x4_t acc, int8x16_t w, int8x16_t x) {
    return vdotq_s32(acc, w, x);
  }
};

ActFormat DotprodFormatFor(WeightType type, size_t num_tokens) {
  if (IsFloatType(type) || num_tokens < kPanelTokens) return FormatFor(type, num_tokens);
  return kTiles;
}

size_t DotprodTileTokens(ActFormat format) {
  return format == kTiles ? kTileTokens : TileTokens(format);
}

size_t DotprodActBytes(ActFormat format, size_t num_tokens, size_t k) {
  if (format != kTiles) return ActBytes(format, num_tokens, k);
  return (num_tokens + kTileTokens - 1) / kTileTokens * (k / kActBlock) * kTileBlockBytes;
}

void DotprodPackAct(ActFormat format, const PackCall& call) {
  return format == kTiles ? PackTiles(call) : PackAct(format, call);
}

size_t DotprodScratchBytes(WeightType type, size_t num_tokens, size_t k) {
  if (IsFloatType(type) || num_tokens < kPanelTokens) return ScratchBytes(type, num_tokens, k);
  return PanelScratchBytes<SdotPanel>(type, k);
}

template <typename Format>
void DotprodMatmul(const MatmulCall& call) {
  return call.num_tokens < kPanelTokens ? Matmul<SdotDot, Format>(call)
                                        : PanelMatmul<SdotPanel, Format>(call);
}

constexpr MatmulTable MakeTable() {
  MatmulTable table = MakeMatmulTable<SdotDot>();
  table.act_format = &DotprodFormatFor;
  table.act_tile_tokens = &DotprodTileTokens;
  table.act_bytes = &DotprodActBytes;
  table.pack_act = &DotprodPackAct;
  table.scratch_bytes = &DotprodScratchBytes;
  ForEachFormat([&table]<typename Format>() {
    table.matmul[static_cast<size_t>(Format::kType)] = &DotprodMatmul<Format>;
  });
  return table;
}

}  // namespace

constinit const MatmulTable kDotprodMatmul = MakeTable();

}  // namespace tael::kernels
