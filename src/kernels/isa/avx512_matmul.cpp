// Matrix products for CPUs with AVX-512 F, BW, VL, DQ, VBMI and VNNI: the table, and which of the
// two regimes (one to four tokens; more) a call takes.
#include "kernels/isa/avx512_matmul_dequantize.h"
#include "kernels/isa/avx512_matmul_gemm.h"
#include "kernels/isa/avx512_matmul_gemv.h"
#include "kernels/isa/scalar_f32.h"

namespace tael::kernels {

extern const MatmulTable kAvx512Matmul;

namespace {

struct Lanes16 {
  using V = __m512;
  static constexpr size_t kWidth = 16, kRows = 4, kTokens = 6;
  static TAEL_INLINE V Zero() { return _mm512_setzero_ps(); }
  static TAEL_INLINE V Load(const float* p) { return _mm512_loadu_ps(p); }
  static TAEL_INLINE V LoadPart(const float* p, size_t n) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
  }
  static TAEL_INLINE V MulAdd(V a, V b, V acc) { return _mm512_fmadd_ps(a, b, acc); }
  static TAEL_INLINE float Sum(V v) { return _mm512_reduce_add_ps(v); }
};

size_t ScratchBytes(WeightType type, size_t num_tokens, size_t k) {
  if (IsFloatType(type)) return ScratchF32Bytes<Lanes16>(type, num_tokens, k);
  if (num_tokens <= kMostVectors) return 0;
  size_t bytes = 0;
  ForEachFormat([&]<typename Format>() {
    if (Format::kType == type) {
      bytes = PanelsPerPass<Format>(num_tokens, k) * PanelBytes<Format>(k);
    }
  });
  return bytes;
}

template <typename Decoder, typename Unpacker>
void Matmul(const MatmulCall& call) {
  switch (call.num_tokens) {
    case 1:
      return MatmulVectors<Decoder, 1>(call);
    case 2:
      return MatmulVectors<Decoder, 2>(call);
    case 3:
      return MatmulVectors<Decoder, 3>(call);
    case 4:
      return MatmulVectors<Decoder, 4>(call);
    default:
      return MatmulTiles<typename Decoder::Format, Unpacker>(call);
  }
}

template <typename Decoder, typename Unpacker>
constexpr void SetType(MatmulTable& table) {
  constexpr WeightType kType = Decoder::Format::kType;
  table.matmul[static_cast<size_t>(kType)] = &Matmul<Decoder, Unpacker>;
  SetF32<Lanes16, &DequantizeDecoded<Decoder>>(table, kType);
}

static_assert(kMostVectors == 4, "Matmul() names each count");

constexpr MatmulTable MakeTable() {
  MatmulTable table{};
  table.act_format = &FormatFor;
  table.act_tile_tokens = &TileTokens;
  table.act_bytes = &ActBytes;
  table.pack_act = &PackAct;
  table.scratch_bytes = &ScratchBytes;
  SetF32<Lanes16, &DequantizeF32, true>(table, WeightType::kF32);
  SetF32<Lanes16, &DequantizeHalves>(table, WeightType::kF16);
  SetF32<Lanes16, &DequantizeBF16>(table, WeightType::kBF16);
  SetType<DecodeQ4_0, UnpackQ4_0>(table);
  SetType<DecodeQ4_1, UnpackQ4_1>(table);
  SetType<DecodeQ5_0, UnpackQ5_0>(table);
  SetType<DecodeQ5_1, UnpackQ5_1>(table);
  SetType<DecodeQ8_0, UnpackQ8_0>(table);
  SetType<DecodeQ2_K, UnpackQ2_K>(table);
  SetType<DecodeQ3_K, UnpackQ3_K>(table);
  SetType<DecodeQ4_K, UnpackQ4_K>(table);
  SetType<DecodeQ5_K, UnpackQ5_K>(table);
  SetType<DecodeQ6_K, UnpackQ6_K>(table);
  SetType<DecodeIQ4_NL, UnpackIQ4_NL>(table);
  SetType<DecodeIQ4_XS, UnpackIQ4_XS>(table);
  return table;
}

}  // namespace

constinit const MatmulTable kAvx512Matmul = MakeTable();

}  // namespace tael::kernels
