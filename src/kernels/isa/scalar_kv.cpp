// Attention over one KV head's tiles in plain C++: the definition of correct for every ISA.
//
//   K tile  [head_dim][16 slots]   V tile  [16 slots][head_dim]   elements f32 or f16
//
// Each row's sum runs in one fixed order (over dimensions for scores, over tokens for values,
// starting from what `out` holds), so neither the number of rows nor a split of the tokens over
// several calls changes a result.
#include "kernels/kernels.h"

namespace tael::kernels {
namespace {

constexpr float kMaxF16 = 65504.0f;

struct F32 {
  using Element = float;
  static float Load(const float* p) { return *p; }
  static void Store(float value, float* p) { *p = value; }
};

// IEEE binary16 by integer arithmetic: this file is built without F16C.
struct F16 {
  using Element = uint16_t;

  static float Load(const uint16_t* p) {
    const uint32_t sign = (*p & 0x8000u) << 16;
    const uint32_t exponent = (*p >> 10) & 0x1fu;
    const uint32_t mantissa = *p & 0x3ffu;
    if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact in f32
      const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
      return sign != 0 ? -magnitude : magnitude;
    }
    const uint32_t high = exponent == 31 ? 0xffu : exponent + (127 - 15);
    return __builtin_bit_cast(float, sign | (high << 23) | (mantissa << 13));
  }

  // Round to nearest even; beyond +-65504 (infinity too) saturates; a NaN stays a NaN.
  static void Store(float value, uint16_t* p) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    *p = static_cast<uint16_t>(sign | Magnitude(magnitude));
  }

 private:
  static uint32_t Magnitude(uint32_t magnitude) {
    if (magnitude > 0x7f800000u) return 0x7e00u;
    const float value = __builtin_bit_cast(float, magnitude);
    if (value >= kMaxF16) return 0x7bffu;
    if (value < 0x1p-14f) {
      // Adding 0.5 leaves an ulp of 2^-24, the step of f16 subnormals: the FPU does the rounding.
      return __builtin_bit_cast(uint32_t, value + 0.5f) - __builtin_bit_cast(uint32_t, 0.5f);
    }
    // Rebias the exponent, then round the 13 bits that go: half an f16 ulp, less one when even.
    const uint32_t rebased = magnitude - ((127u - 15u) << 23);
    const uint32_t odd = (rebased >> 13) & 1u;
    return (rebased + 0xfffu + odd) >> 13;
  }
};

template <typename Kind>
size_t TileBytes(size_t head_dim) {
  return kBlockTokens * head_dim * sizeof(typename Kind::Element);
}

template <typename Kind>
void StoreK(const float* k, size_t head_dim, size_t slot, std::byte* tile) {
  auto* out = reinterpret_cast<typename Kind::Element*>(tile) + slot;
  for (size_t d = 0; d < head_dim; ++d) Kind::Store(k[d], out + d * kBlockTokens);
}

template <typename Kind>
void StoreV(const float* v, size_t head_dim, size_t slot, std::byte* tile) {
  auto* out = reinterpret_cast<typename Kind::Element*>(tile) + slot * head_dim;
  for (size_t d = 0; d < head_dim; ++d) Kind::Store(v[d], out + d);
}

template <typename Kind>
const typename Kind::Element* Tile(const AttendCall& call, size_t block) {
  return reinterpret_cast<const typename Kind::Element*>(call.blocks[block] + call.tile_offset);
}

template <typename Kind>
void Scores(const AttendCall& call) {
  for (size_t t = 0; t < call.num_tokens; ++t) {
    const auto* k = Tile<Kind>(call, t / kBlockTokens) + t % kBlockTokens;
    for (size_t r = 0; r < call.num_rows; ++r) {
      const float* q = call.q + r * call.q_stride;
      float sum = 0.0f;
      for (size_t d = 0; d < call.head_dim; ++d) sum += q[d] * Kind::Load(k + d * kBlockTokens);
      call.scores[r * call.score_stride + t] = sum;
    }
  }
}

template <typename Kind>
void Values(const AttendCall& call) {
  for (size_t t = 0; t < call.num_tokens; ++t) {
    const auto* v = Tile<Kind>(call, t / kBlockTokens) + t % kBlockTokens * call.head_dim;
    for (size_t r = 0; r < call.num_rows; ++r) {
      const float weight = call.scores[r * call.score_stride + t];
      float* out = call.out + r * call.out_stride;
      for (size_t d = 0; d < call.head_dim; ++d) out[d] += weight * Kind::Load(v + d);
    }
  }
}

template <typename Kind>
constexpr KvTable MakeTable() {
  return {.k_tile_bytes = TileBytes<Kind>,
          .v_tile_bytes = TileBytes<Kind>,
          .pack_q = nullptr,
          .store_k = StoreK<Kind>,
          .store_v = StoreV<Kind>,
          .scores = Scores<Kind>,
          .exact_scores = nullptr,
          .values = Values<Kind>};
}

}  // namespace

extern const KvTable kScalarKv[kNumFloatKvTypes];
const KvTable kScalarKv[kNumFloatKvTypes] = {MakeTable<F32>(), MakeTable<F16>()};

}  // namespace tael::kernels
