// Matrix products for CPUs with AVX2, FMA and F16C: the table, and which of the two regimes (one
// to four tokens; more) a call takes.
#include "kernels/isa/avx2_matmul_dequantize.h"
#include "kernels/isa/avx2_matmul_gemm.h"
#include "kernels/isa/avx2_matmul_gemv.h"
#include "kernels/isa/scalar_f32.h"

namespace tael::kernels {

extern const MatmulTable kAvx2Matmul;

namespace {

struct Lanes8 {
  using V = __m256;
  static constexpr size_t kWidth = 8, kRows = 3, kTokens = 4;
  static TAEL_INLINE V Zero() { return _mm256_setzero_ps(); }
  static TAEL_INLINE V Load(const float* p) { return _mm256_loadu_ps(p); }
  static TAEL_INLINE V LoadPart(const float* p, size_t n) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lanes));
  }
  static TAEL_INLINE V MulAdd(V a, V b, V acc) { return _mm256_fmadd_ps(a, b, acc); }
  static TAEL_INLINE float Sum(V v) { return SumOf8(v); }
};

size_t ScratchBytes(WeightType type, size_t num_tokens, size_t k) {
  if (IsFloatType(type)) return ScratchF32Bytes<Lanes8>(type, num_tokens, k);
  if (num_tokens <= kMostVectors) return 0;
  size_t bytes = 0;
  ForEachDecoder([&]<typename Decoder>() {
    if (Decoder::Format::kType == type) {
      bytes = kTilePanels * LayoutOf<Decoder>::PanelBytes(k);
    }
  });
  return bytes;
}

template <typename Decoder>
void Matmul(const MatmulCall& call) {
  if (call.num_tokens <= kMostVectors) {
    MatmulVectors<Decoder>(call);
  } else {
    MatmulTiles<Decoder>(call);
  }
}

constexpr MatmulTable MakeTable() {
  MatmulTable table{};
  table.act_format = &FormatFor;
  table.act_tile_tokens = &TileTokens;
  table.act_bytes = &ActBytes;
  table.pack_act = &PackAct;
  table.scratch_bytes = &ScratchBytes;
  SetF32<Lanes8, &DequantizeF32, true>(table, WeightType::kF32);
  SetF32<Lanes8, &DequantizeHalves>(table, WeightType::kF16);
  SetF32<Lanes8, &DequantizeBF16>(table, WeightType::kBF16);
  ForEachDecoder([&table]<typename Decoder>() {
    SetF32<Lanes8, &DequantizeDecoded<Decoder>>(table, Decoder::Format::kType);
    table.matmul[static_cast<size_t>(Decoder::Format::kType)] = &Matmul<Decoder>;
  });
  return table;
}

}  // namespace

constinit const MatmulTable kAvx2Matmul = MakeTable();

}  // namespace tael::kernels
