// Matrix products in plain C++: the definition that the other ISAs are tested against, and what a
// CPU without vector extensions runs.
//
// Packed activations, format kInt8Rows, per token: q[k] int8 | scale[k / 32] f32, padded to 64
// bytes.
#include "kernels/isa/scalar_f32.h"

namespace tael::kernels {

extern const MatmulTable kScalarMatmul;

namespace {

constexpr ActFormat kInt8Rows{1};
constexpr size_t kActBlock = 32;  // activations that share a scale
constexpr size_t kRowsPerPass = 8;

constexpr size_t RoundUp64(size_t n) { return (n + 63) / 64 * 64; }

constexpr size_t TokenBytes(size_t k) { return RoundUp64(k + k / kActBlock * sizeof(float)); }

// Scratch for one decoded row: q[k] | scale[k / 16] | min[k / 16].
constexpr size_t DecodedBytes(size_t k) {
  return RoundUp64(k) + 2 * RoundUp64(k / kGroup * sizeof(float));
}

// Four floats in portable vector code; SSE2 and NEON both have it.
struct Lanes4 {
  typedef float V __attribute__((vector_size(16)));
  static constexpr size_t kWidth = 4, kRows = 2, kTokens = 4;
  static V Zero() { return V{}; }
  static V Load(const float* p) {
    V v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static V LoadPart(const float* p, size_t n) {
    V v{};
    __builtin_memcpy(&v, p, n * sizeof(float));
    return v;
  }
  static V MulAdd(V a, V b, V acc) { return acc + a * b; }
  static float Sum(V v) { return (v[0] + v[2]) + (v[1] + v[3]); }
};

ActFormat FormatFor(WeightType type, size_t /*num_tokens*/) {
  return IsFloatType(type) ? ActFormat::kF32Rows : kInt8Rows;
}

size_t TileTokens(ActFormat /*format*/) { return 1; }

size_t ActBytes(ActFormat format, size_t num_tokens, size_t k) {
  return num_tokens * (format == ActFormat::kF32Rows ? k * sizeof(float) : TokenBytes(k));
}

// Rounds to nearest even by pushing the fraction out of a float's mantissa: no call, and it
// vectorises. Requires: |v| <= 2^22.
int RoundToInt(float v) {
  const float shifted = v + 0x1.8p23f;
  int32_t bits;
  __builtin_memcpy(&bits, &shifted, sizeof bits);
  return bits - 0x4b400000;
}

void QuantizeBlock(const float* x, int8_t* q, float* scale) {
  float max = 0;
  for (size_t i = 0; i < kActBlock; ++i) {
    const float magnitude = __builtin_fabsf(x[i]);
    max = magnitude > max ? magnitude : max;
  }
  const bool any = max >= kLeastActivation;
  const float factor = any ? 127.0f / max : 0.0f;
  *scale = any ? max / 127.0f : 0.0f;
  for (size_t i = 0; i < kActBlock; ++i) {
    float v = x[i] * factor;
    v = v > 127.0f ? 127.0f : v;
    v = v < -127.0f ? -127.0f : v;
    q[i] = Int8(RoundToInt(v));
  }
}

void PackAct(ActFormat format, const PackCall& call) {
  const size_t k = call.k;
  for (size_t t = call.token_begin; t < call.token_end; ++t) {
    const float* x = call.x + t * call.x_stride;
    if (format == ActFormat::kF32Rows) {
      __builtin_memcpy(call.out + t * k * sizeof(float), x, k * sizeof(float));
      continue;
    }
    auto* q = reinterpret_cast<int8_t*>(call.out + t * TokenBytes(k));
    auto* scale = reinterpret_cast<float*>(q + k);
    for (size_t i = 0; i < k; i += kActBlock) QuantizeBlock(x + i, q + i, scale + i / kActBlock);
  }
}

size_t ScratchBytes(WeightType type, size_t num_tokens, size_t k) {
  if (IsFloatType(type)) return ScratchF32Bytes<Lanes4>(type, num_tokens, k);
  return kRowsPerPass * DecodedBytes(k);
}

struct GroupDot {
  int product = 0;
  int sum = 0;
};

GroupDot DotGroup(const int8_t* w, const int8_t* q) {
  GroupDot dot;
  for (size_t i = 0; i < kGroup; ++i) {
    dot.product += w[i] * q[i];
    dot.sum += q[i];
  }
  return dot;
}

template <bool kHasMin>
float DotRow(const int8_t* w, const float* scale, const float* min, size_t k, const int8_t* q,
             const float* act_scale) {
  float acc = 0;
  for (size_t g = 0; g < k / kGroup; ++g) {
    const GroupDot dot = DotGroup(w + g * kGroup, q + g * kGroup);
    float part = scale[g] * static_cast<float>(dot.product);
    if constexpr (kHasMin) part += min[g] * static_cast<float>(dot.sum);
    acc += act_scale[g / 2] * part;
  }
  return acc;
}

template <typename Format>
void Matmul(const MatmulCall& call) {
  const size_t k = call.k, scales_bytes = RoundUp64(k / kGroup * sizeof(float));
  const auto decoded = [&](size_t r) { return call.scratch + r * DecodedBytes(k); };
  for (size_t begin = call.row_begin; begin < call.row_end; begin += kRowsPerPass) {
    const size_t left = call.row_end - begin;
    const size_t num_rows = left < kRowsPerPass ? left : kRowsPerPass;
    for (size_t r = 0; r < num_rows; ++r) {
      const auto* row = reinterpret_cast<const uint8_t*>(call.w + (begin + r) * call.row_bytes);
      auto* scale = reinterpret_cast<float*>(decoded(r) + RoundUp64(k));
      auto* min = reinterpret_cast<float*>(decoded(r) + RoundUp64(k) + scales_bytes);
      DecodeRow<Format>(row, k, reinterpret_cast<int8_t*>(decoded(r)), scale, min);
    }
    for (size_t t = 0; t < call.num_tokens; ++t) {
      const auto* q = reinterpret_cast<const int8_t*>(call.act + t * TokenBytes(k));
      const auto* act_scale = reinterpret_cast<const float*>(q + k);
      for (size_t r = 0; r < num_rows; ++r) {
        const auto* scale = reinterpret_cast<const float*>(decoded(r) + RoundUp64(k));
        const auto* min = reinterpret_cast<const float*>(decoded(r) + RoundUp64(k) + scales_bytes);
        call.y[t * call.y_stride + begin + r] = DotRow<Format::kHasMin>(
            reinterpret_cast<const int8_t*>(decoded(r)), scale, min, k, q, act_scale);
      }
    }
  }
}

constexpr MatmulTable MakeTable() {
  MatmulTable table{};
  table.act_format = &FormatFor;
  table.act_tile_tokens = &TileTokens;
  table.act_bytes = &ActBytes;
  table.pack_act = &PackAct;
  table.scratch_bytes = &ScratchBytes;
  FillF32Columns<Lanes4>(table);
  ForEachFormat([&table]<typename Format>() {
    table.matmul[static_cast<size_t>(Format::kType)] = &Matmul<Format>;
  });
  return table;
}

}  // namespace

constinit const MatmulTable kScalarMatmul = MakeTable();

}  // namespace tael::kernels
