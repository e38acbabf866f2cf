// Matrix products for 64-bit ARM, written once over a dot product of bytes (Dot): VMULL in
// neon_matmul.cpp, SDOT in dotprod_matmul.cpp. Internal linkage only.
//
// Rows are decoded in registers and multiplied at once; nothing is unpacked to memory. Two rows
// far apart share the activations of up to four tokens: each stream of weights stays sequential,
// which is what prefetchers follow.
//
//   Dot: static int32x4_t Add(int32x4_t acc, int8x16_t w, int8x16_t x): four sums of products
//
// Packed activations, format kRows, per token:
//   q[k] int8 | scale[k / 32] | sum[k / 32] | sum16[k / 16]     sums of scale * q, all f32
// padded to 64 bytes. A minimum of the weights costs one product with such a sum.
//
// One accumulator vector per (row, token) and one order of summation, whatever stands beside it.
#pragma once

#include <arm_neon.h>

#include "kernels/isa/neon_formats.h"
#include "kernels/isa/scalar_f32.h"

namespace tael::kernels {
namespace {

constexpr ActFormat kRows{1};
constexpr size_t kActBlock = 32;
constexpr size_t kMostTokens = 4;         // accumulators: 2 rows x 4 tokens
constexpr size_t kChunkBytes = 64 << 10;  // of weights: stays in L2 while the tokens pass by

constexpr size_t TokenBytes(size_t k) {
  return (k + k / kActBlock * 4 * sizeof(float) + 63) / 64 * 64;
}

// Where the parts of one token lie.
struct ActRow {
  const int8_t* q;
  const float* scale;
  const float* sum;
  const float* sum16;
};

TAEL_INLINE ActRow TokenAt(const std::byte* act, size_t token, size_t k) {
  const auto* q = reinterpret_cast<const int8_t*>(act + token * TokenBytes(k));
  const auto* scale = reinterpret_cast<const float*>(q + k);
  return {q, scale, scale + k / kActBlock, scale + 2 * (k / kActBlock)};
}

// ---- activations ----

ActFormat FormatFor(WeightType type, size_t /*num_tokens*/) {
  return IsFloatType(type) ? ActFormat::kF32Rows : kRows;
}

size_t TileTokens(ActFormat /*format*/) { return 1; }

size_t ActBytes(ActFormat format, size_t num_tokens, size_t k) {
  return num_tokens * (format == ActFormat::kF32Rows ? k * sizeof(float) : TokenBytes(k));
}

// Quantises 32 values: returns the scale.
float QuantizeBlock(const float* x, int8_t* q) {
  float32x4_t v[8];
  float32x4_t max = vdupq_n_f32(0.0f);
  for (size_t i = 0; i < 8; ++i) {
    v[i] = vld1q_f32(x + 4 * i);
    max = vmaxnmq_f32(max, vabsq_f32(v[i]));
  }
  const float most = vmaxvq_f32(max);
  const bool any = most >= kLeastActivation;
  const float32x4_t factor = vdupq_n_f32(any ? 127.0f / most : 0.0f);
  for (size_t i = 0; i < 4; ++i) {
    const int32x4_t low = vcvtnq_s32_f32(vmulq_f32(v[2 * i], factor));
    const int32x4_t high = vcvtnq_s32_f32(vmulq_f32(v[2 * i + 1], factor));
    vst1_s8(q + 8 * i, vqmovn_s16(vcombine_s16(vqmovn_s32(low), vqmovn_s32(high))));
  }
  return any ? most / 127.0f : 0.0f;
}

void PackToken(const float* x, size_t k, std::byte* out) {
  const ActRow row = TokenAt(out, 0, k);
  auto* q = const_cast<int8_t*>(row.q);
  auto* scale = const_cast<float*>(row.scale);
  auto* sum = const_cast<float*>(row.sum);
  auto* sum16 = const_cast<float*>(row.sum16);
  for (size_t i = 0; i < k / kActBlock; ++i) {
    const float d = QuantizeBlock(x + i * kActBlock, q + i * kActBlock);
    const int first = vaddlvq_s8(vld1q_s8(q + i * kActBlock));
    const int second = vaddlvq_s8(vld1q_s8(q + i * kActBlock + 16));
    scale[i] = d;
    sum[i] = d * static_cast<float>(first + second);
    sum16[2 * i] = d * static_cast<float>(first);
    sum16[2 * i + 1] = d * static_cast<float>(second);
  }
}

void PackAct(ActFormat format, const PackCall& call) {
  for (size_t t = call.token_begin; t < call.token_end; ++t) {
    const float* x = call.x + t * call.x_stride;
    if (format == ActFormat::kF32Rows) {
      const size_t bytes = call.k * sizeof(float);
      __builtin_memcpy(call.out + t * bytes, x, bytes);
    } else {
      PackToken(x, call.k, call.out + t * TokenBytes(call.k));
    }
  }
}

// ---- products ----

// Sums of two rows and kTokens tokens: `lanes` holds four partial sums each, `rest` what is added
// value by value.
template <size_t kTokens>
struct Sums {
  float32x4_t lanes[2][kTokens];
  float rest[2][kTokens];
};

// Minimums of one block times the sums of its activations.
template <typename Format, size_t kTokens>
TAEL_INLINE void AddMins(const float (*min)[kMaxBlock / kGroup], const ActRow* act, size_t column,
                         Sums<kTokens>& sums) {
  constexpr size_t kPer = Format::kTwoScales ? 16 : 32;
  constexpr size_t kMins = kShapeOf<Format>.elements / kPer;
#pragma GCC unroll 4
  for (size_t t = 0; t < kTokens; ++t) {
    const float* sum = (Format::kTwoScales ? act[t].sum16 : act[t].sum) + column / kPer;
#pragma GCC unroll 2
    for (size_t r = 0; r < 2; ++r) {
      if constexpr (kMins == 1) {
        sums.rest[r][t] = __builtin_fmaf(min[r][0], sum[0], sums.rest[r][t]);
      } else {
        for (size_t i = 0; i < kMins; i += 4) {
          sums.lanes[r][t] = vfmaq_f32(sums.lanes[r][t], vld1q_f32(min[r] + i), vld1q_f32(sum + i));
        }
      }
    }
  }
}

// 32 columns of one row and one token.
template <typename Dot, bool kTwoScales>
TAEL_INLINE float32x4_t AddProduct(float32x4_t acc, Values32 w, Values32 x, const float* scale,
                                   float act_scale) {
  const int32x4_t zero = vdupq_n_s32(0);
  if constexpr (kTwoScales) {
    const int32x4_t lo = Dot::Add(zero, w.lo, x.lo), hi = Dot::Add(zero, w.hi, x.hi);
    acc = vfmaq_n_f32(acc, vcvtq_f32_s32(lo), scale[0] * act_scale);
    return vfmaq_n_f32(acc, vcvtq_f32_s32(hi), scale[1] * act_scale);
  } else {
    const int32x4_t sum = Dot::Add(Dot::Add(zero, w.lo, x.lo), w.hi, x.hi);
    return vfmaq_n_f32(acc, vcvtq_f32_s32(sum), scale[0] * act_scale);
  }
}

// Where a stream of weights will be: 1-4 KB ahead are all alike, 8 KB are no better. A prefetch
// past the last row of a mapping does nothing.
constexpr size_t kPrefetchBytes = 2048;

template <size_t kBytes>
TAEL_INLINE void PrefetchAhead(const uint8_t* p) {
#pragma GCC unroll 4
  for (size_t i = 0; i < kBytes; i += kCacheLine) __builtin_prefetch(p + kPrefetchBytes + i, 0, 3);
}

template <typename Dot, typename Format, size_t kTokens>
void TwoRows(const uint8_t* const (&rows)[2], size_t k, const ActRow* act, float* const (&y)[2],
             size_t y_stride) {
  using Block = NeonBlock<Format>;
  constexpr BlockShape kShape = kShapeOf<Format>;
  constexpr size_t kScales = Format::kTwoScales ? 2 : 1;  // per 32 values
  Sums<kTokens> sums{};
  const uint8_t* b[2] = {rows[0], rows[1]};
  for (size_t column = 0; column < k; column += kShape.elements) {
    float scale[2][kMaxBlock / kGroup], min[2][kMaxBlock / kGroup];
    for (size_t r = 0; r < 2; ++r) {
      PrefetchAhead<kShape.bytes>(b[r]);
      Block::Scales(b[r], scale[r], min[r]);
    }
    if constexpr (Format::kHasMin) AddMins<Format>(min, act, column, sums);
    for (size_t s = 0; s < kShape.elements / 32; ++s) {
      const Values32 w[2] = {Block::Values(b[0], s), Block::Values(b[1], s)};
      const size_t i = column + 32 * s;
#pragma GCC unroll 4
      for (size_t t = 0; t < kTokens; ++t) {
        const Values32 x{vld1q_s8(act[t].q + i), vld1q_s8(act[t].q + i + 16)};
        const float act_scale = act[t].scale[i / kActBlock];
#pragma GCC unroll 2
        for (size_t r = 0; r < 2; ++r) {
          sums.lanes[r][t] = AddProduct<Dot, Format::kTwoScales>(sums.lanes[r][t], w[r], x,
                                                                 scale[r] + kScales * s, act_scale);
        }
      }
    }
    b[0] += kShape.bytes;
    b[1] += kShape.bytes;
  }
  for (size_t r = 0; r < 2; ++r) {
    for (size_t t = 0; t < kTokens; ++t) {
      y[r][t * y_stride] = vaddvq_f32(sums.lanes[r][t]) + sums.rest[r][t];
    }
  }
}

// Calls visit(first, second) for `count` rows in pairs of a row of the first half and its fellow of
// the second. An odd row out is computed twice, in place of a kernel for one row.
template <typename Visitor>
TAEL_INLINE void ForEachFarPair(size_t begin, size_t count, const Visitor& visit) {
  const size_t half = (count + 1) / 2;
  for (size_t i = begin; i < begin + half; ++i) visit(i, i + half < begin + count ? i + half : i);
}

// Rows [begin, begin + count) and kTokens tokens from `token` on.
template <typename Dot, typename Format, size_t kTokens>
void Rows(const MatmulCall& call, size_t begin, size_t count, size_t token) {
  ActRow act[kTokens];
  for (size_t t = 0; t < kTokens; ++t) act[t] = TokenAt(call.act, token + t, call.k);
  const auto* w = reinterpret_cast<const uint8_t*>(call.w);
  float* y = call.y + token * call.y_stride;
  ForEachFarPair(begin, count, [&](size_t first, size_t second) {
    TwoRows<Dot, Format, kTokens>({w + first * call.row_bytes, w + second * call.row_bytes}, call.k,
                                  act, {y + first, y + second}, call.y_stride);
  });
}

template <typename Dot, typename Format>
void Matmul(const MatmulCall& call) {
  const size_t fitting =
      call.num_tokens <= kMostTokens ? call.row_end - call.row_begin : kChunkBytes / call.row_bytes;
  const size_t chunk = fitting < 2 ? 2 : fitting;
  for (size_t begin = call.row_begin; begin < call.row_end; begin += chunk) {
    const size_t left = call.row_end - begin;
    const size_t count = left < chunk ? left : chunk;
    size_t t = 0;
    for (; t + 4 <= call.num_tokens; t += 4) Rows<Dot, Format, 4>(call, begin, count, t);
    // One walk over the weights for what is left.
    if (call.num_tokens - t == 3) Rows<Dot, Format, 3>(call, begin, count, t);
    if (call.num_tokens - t == 2) Rows<Dot, Format, 2>(call, begin, count, t);
    if (call.num_tokens - t == 1) Rows<Dot, Format, 1>(call, begin, count, t);
  }
}

// ---- f32 activations ----

struct NeonLanes {
  using V = float32x4_t;
  static constexpr size_t kWidth = 4, kRows = 4, kTokens = 4;
  static V Zero() { return vdupq_n_f32(0.0f); }
  static V Load(const float* p) { return vld1q_f32(p); }
  static V LoadPart(const float* p, size_t n) {
    float lanes[4] = {};
    for (size_t i = 0; i < n; ++i) lanes[i] = p[i];
    return vld1q_f32(lanes);
  }
  static V MulAdd(V a, V b, V acc) { return vfmaq_f32(acc, a, b); }
  static float Sum(V v) { return vaddvq_f32(v); }
};

// 16 values q * scale + min, rounded after each step as the definition does.
TAEL_INLINE void Dequantize16(int8x16_t q, float scale, float min, bool has_min, float* out) {
  Widen16(q, scale, out);
  if (!has_min) return;
  for (size_t i = 0; i < 16; i += 4) {
    vst1q_f32(out + i, vaddq_f32(vld1q_f32(out + i), vdupq_n_f32(min)));
  }
}

template <typename Format>
void NeonDequantizeRow(const std::byte* bytes, size_t k, float* out) {
  using Block = NeonBlock<Format>;
  constexpr BlockShape kShape = kShapeOf<Format>;
  constexpr size_t kScales = Format::kTwoScales ? 2 : 1;
  const auto* b = reinterpret_cast<const uint8_t*>(bytes);
  for (size_t column = 0; column < k; column += kShape.elements, b += kShape.bytes) {
    float scale[kMaxBlock / kGroup], min[kMaxBlock / kGroup] = {};
    Block::Scales(b, scale, min);
    for (size_t s = 0; s < kShape.elements / 32; ++s, out += 32) {
      const Values32 v = Block::Values(b, s);
      const size_t lo = kScales * s, hi = kScales * s + kScales - 1;
      Dequantize16(v.lo, scale[lo], min[lo], Format::kHasMin, out);
      Dequantize16(v.hi, scale[hi], min[hi], Format::kHasMin, out + 16);
    }
  }
}

void NeonDequantizeF16(const std::byte* bytes, size_t k, float* out) {
  const auto* p = reinterpret_cast<const uint8_t*>(bytes);
  size_t i = 0;
  for (; i + 4 <= k; i += 4) {
    float16x4_t half;
    __builtin_memcpy(&half, p + 2 * i, sizeof half);
    vst1q_f32(out + i, vcvt_f32_f16(half));
  }
  for (; i < k; ++i) out[i] = HalfAt(p + 2 * i);
}

size_t ScratchBytes(WeightType type, size_t num_tokens, size_t k) {
  return IsFloatType(type) ? ScratchF32Bytes<NeonLanes>(type, num_tokens, k) : 0;
}

// All but the products of quantised weights.
constexpr MatmulTable MakeFloatTable() {
  MatmulTable table{};
  table.act_format = &FormatFor;
  table.act_tile_tokens = &TileTokens;
  table.act_bytes = &ActBytes;
  table.pack_act = &PackAct;
  table.scratch_bytes = &ScratchBytes;
  FillF32Columns<NeonLanes>(table);
  ForEachFormat([&table]<typename Format>() {
    constexpr auto kIndex = static_cast<size_t>(Format::kType);
    table.matmul_f32[kIndex] = &MatmulF32<NeonLanes, &NeonDequantizeRow<Format>, false>;
    table.dequantize_row[kIndex] = &NeonDequantizeRow<Format>;
  });
  constexpr auto kHalf = static_cast<size_t>(WeightType::kF16);
  table.matmul[kHalf] = &MatmulF32<NeonLanes, &NeonDequantizeF16, false>;
  table.matmul_f32[kHalf] = table.matmul[kHalf];
  table.dequantize_row[kHalf] = &NeonDequantizeF16;
  return table;
}

template <typename Dot>
constexpr MatmulTable MakeMatmulTable() {
  MatmulTable table = MakeFloatTable();
  ForEachFormat([&table]<typename Format>() {
    table.matmul[static_cast<size_t>(Format::kType)] = &Matmul<Dot, Format>;
  });
  return table;
}

}  // namespace
}  // namespace tael::kernels
