// Every matrix product of every ISA against an oracle in double that is written from the format
// definitions value by value and shares no code with a kernel.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace tael::kernels {
namespace {

constexpr WeightType kQuantisedTypes[] = {
    WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0,   WeightType::kQ5_1,
    WeightType::kQ8_0, WeightType::kQ2_K, WeightType::kQ3_K,   WeightType::kQ4_K,
    WeightType::kQ5_K, WeightType::kQ6_K, WeightType::kIQ4_NL, WeightType::kIQ4_XS};
constexpr WeightType kFloatTypes[] = {WeightType::kF32, WeightType::kF16, WeightType::kBF16};

const char* Name(WeightType type) {
  static constexpr const char* kNames[kNumWeightTypes] = {
      "F32",  "F16",    "Q4_0", "Q4_1", "?", "?", "Q5_0", "Q5_1", "Q8_0", "?",      "Q2_K",
      "Q3_K", "Q4_K",   "Q5_K", "Q6_K", "?", "?", "?",    "?",    "?",    "IQ4_NL", "?",
      "?",    "IQ4_XS", "?",    "?",    "?", "?", "?",    "?",    "BF16"};
  return kNames[static_cast<size_t>(type)];
}

size_t Index(WeightType type) { return static_cast<size_t>(type); }
BlockShape Shape(WeightType type) { return kBlockShapes[Index(type)]; }
size_t RowBytes(WeightType type, size_t k) { return k / Shape(type).elements * Shape(type).bytes; }

// ---- The oracle ------------------------------------------------------------------------------

double Half(const uint8_t* p) {
  const int bits = p[0] | p[1] << 8, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

int Bit(const uint8_t* p, size_t i) { return (p[i / 8] >> (i % 8)) & 1; }
int Nibble(const uint8_t* p, size_t i) { return i < 16 ? p[i] & 15 : p[i - 16] >> 4; }

constexpr int kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                             1,    13,   25,  38,  53,  69,  89,  113};

// Sub-block s of Q4_K and Q5_K: scale in .first, minimum in .second.
std::pair<double, double> ScaleMinK4(const uint8_t* b, size_t s) {
  const uint8_t* p = b + 4;
  const int scale = s < 4 ? p[s] & 63 : (p[s + 4] & 15) + ((p[s - 4] >> 6) << 4);
  const int min = s < 4 ? p[s + 4] & 63 : (p[s + 4] >> 4) + ((p[s] >> 6) << 4);
  return {Half(b) * scale, Half(b + 2) * min};
}

// Value i of a float, or of the block of 32 at b.
double WeightInSmallBlock(WeightType type, const uint8_t* b, size_t i) {
  switch (type) {
    case WeightType::kF32: {
      float v;
      std::memcpy(&v, b, sizeof v);
      return v;
    }
    case WeightType::kF16:
      return Half(b);
    case WeightType::kBF16: {
      const uint32_t bits = static_cast<uint32_t>(b[0]) << 16 | static_cast<uint32_t>(b[1]) << 24;
      float v;
      std::memcpy(&v, &bits, sizeof v);
      return v;
    }
    case WeightType::kQ4_0:
      return Half(b) * (Nibble(b + 2, i) - 8);
    case WeightType::kQ4_1:
      return Half(b) * Nibble(b + 4, i) + Half(b + 2);
    case WeightType::kQ5_0:
      return Half(b) * (Nibble(b + 6, i) + 16 * Bit(b + 2, i) - 16);
    case WeightType::kQ5_1:
      return Half(b) * (Nibble(b + 8, i) + 16 * Bit(b + 4, i)) + Half(b + 2);
    case WeightType::kQ8_0:
      return Half(b) * static_cast<int8_t>(b[2 + i]);
    case WeightType::kIQ4_NL:
      return Half(b) * kLevels[Nibble(b + 2, i)];
    default:
      return 0;
  }
}

// Value i of the block of 256 at b.
double WeightInBlockOf256(WeightType type, const uint8_t* b, size_t i) {
  const size_t half = i / 128, quarter = i % 128 / 32, in32 = i % 32;
  switch (type) {
    case WeightType::kQ2_K: {
      const int q = (b[16 + half * 32 + in32] >> (2 * quarter)) & 3;
      return Half(b + 80) * (b[i / 16] & 15) * q - Half(b + 82) * (b[i / 16] >> 4);
    }
    case WeightType::kQ3_K: {
      const size_t g = i / 16;
      const int low = g < 8 ? b[96 + g] & 15 : b[96 + g - 8] >> 4;
      const int scale = low + (((b[104 + g % 4] >> (g / 4 * 2)) & 3) << 4) - 32;
      const int q = (b[32 + half * 32 + in32] >> (2 * quarter)) & 3;
      const int high = (b[in32] >> (i / 32)) & 1;
      return Half(b + 108) * scale * (q - (high ? 0 : 4));
    }
    case WeightType::kQ4_K: {
      const auto [scale, min] = ScaleMinK4(b, i / 32);
      const uint8_t byte = b[16 + i / 64 * 32 + in32];
      return scale * (i % 64 < 32 ? byte & 15 : byte >> 4) - min;
    }
    case WeightType::kQ5_K: {
      const auto [scale, min] = ScaleMinK4(b, i / 32);
      const uint8_t byte = b[48 + i / 64 * 32 + in32];
      const int high = (b[16 + in32] >> (i / 32)) & 1;
      return scale * ((i % 64 < 32 ? byte & 15 : byte >> 4) + 16 * high) - min;
    }
    case WeightType::kQ6_K: {
      const uint8_t byte = b[half * 64 + i % 64];
      const int low = quarter < 2 ? byte & 15 : byte >> 4;
      const int high = (b[128 + half * 32 + in32] >> (2 * quarter)) & 3;
      return Half(b + 208) * static_cast<int8_t>(b[192 + i / 16]) * (low + 16 * high - 32);
    }
    case WeightType::kIQ4_XS: {
      const size_t s = i / 32;
      const int low = (b[4 + s / 2] >> (4 * (s % 2))) & 15;
      const int high = ((b[2] | b[3] << 8) >> (2 * s)) & 3;
      return Half(b) * (low + 16 * high - 32) * kLevels[Nibble(b + 8 + 16 * s, in32)];
    }
    default:
      return 0;
  }
}

double Weight(WeightType type, const uint8_t* row, size_t i) {
  const BlockShape shape = Shape(type);
  const uint8_t* block = row + i / shape.elements * shape.bytes;
  return shape.elements == 256 ? WeightInBlockOf256(type, block, i % 256)
                               : WeightInSmallBlock(type, block, i % shape.elements);
}

// Activations as the contract of pack_act() defines them, dequantised.
std::vector<double> QuantisedActivations(const std::vector<float>& x) {
  std::vector<double> out(x.size());
  for (size_t i = 0; i < x.size(); i += 32) {
    float max = 0;
    for (size_t j = i; j < i + 32; ++j) max = std::max(max, std::fabs(x[j]));
    if (max < kLeastActivation) continue;
    for (size_t j = i; j < i + 32; ++j) {
      out[j] = double{max / 127.0f} * std::nearbyint(x[j] * (127.0f / max));
    }
  }
  return out;
}

struct Product {
  std::vector<double> value, magnitude;  // [tokens][rows]
};

Product Multiply(const std::vector<double>& w, size_t num_rows, const std::vector<double>& x,
                 size_t num_tokens, size_t k) {
  Product product{std::vector<double>(num_tokens * num_rows),
                  std::vector<double>(num_tokens * num_rows)};
  for (size_t t = 0; t < num_tokens; ++t) {
    for (size_t r = 0; r < num_rows; ++r) {
      double value = 0, magnitude = 0;
      for (size_t i = 0; i < k; ++i) {
        const double term = w[r * k + i] * x[t * k + i];
        value += term;
        magnitude += std::fabs(term);
      }
      product.value[t * num_rows + r] = value;
      product.magnitude[t * num_rows + r] = magnitude;
    }
  }
  return product;
}

// ---- Data ------------------------------------------------------------------------------------

// Where each type keeps its f16 scales; every other byte of a block may have any value.
std::vector<size_t> HalfOffsets(WeightType type) {
  switch (type) {
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      return {0, 2};
    case WeightType::kQ2_K:
      return {80, 82};
    case WeightType::kQ3_K:
      return {108};
    case WeightType::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

// Rows back to back with the slack the contract promises and not a byte more, so that
// AddressSanitizer sees a load that reaches further.
struct Weights {
  Weights(WeightType weight_type, size_t rows, size_t columns, uint32_t seed)
      : type(weight_type),
        k(columns),
        row_bytes(RowBytes(type, k)),
        bytes(rows * row_bytes + kWeightSlackBytes) {
    std::mt19937 rng(seed);
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(rng());
    const size_t payload = rows * row_bytes;
    if (type == WeightType::kF32 || type == WeightType::kBF16) {
      const size_t size = Shape(type).bytes;  // sign and a moderate exponent in the upper bytes
      for (size_t i = 0; i < payload; i += size) {
        bytes[i + size - 1] = static_cast<uint8_t>((rng() & 1) << 7 | 0x3d);
      }
      return;
    }
    for (size_t i = 0; i < payload; i += Shape(type).bytes) {
      for (const size_t offset : HalfOffsets(type)) {  // 2^-9 .. 2^-5, either sign
        bytes[i + offset + 1] = static_cast<uint8_t>((rng() & 1) << 7 | 0x18 | (rng() & 15));
      }
    }
  }

  const uint8_t* Row(size_t r) const { return bytes.data() + r * row_bytes; }

  std::vector<double> Values(size_t rows) const {
    std::vector<double> w(rows * k);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t i = 0; i < k; ++i) w[r * k + i] = Weight(type, Row(r), i);
    }
    return w;
  }

  WeightType type;
  size_t k;
  size_t row_bytes;
  std::vector<uint8_t> bytes;
};

std::vector<float> RandomActivations(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  for (size_t i = 0; i < n; i += 97) x[i] *= 20;  // outliers, as real models have them
  if (n >= 64) std::fill(x.begin() + 32, x.begin() + 64, 0.0f);  // a block without a scale
  return x;
}

struct AlignedBytes {
  explicit AlignedBytes(size_t n)
      : data(static_cast<std::byte*>(std::aligned_alloc(64, (n + 127) / 64 * 64))) {
    std::memset(data, 0xee, (n + 127) / 64 * 64);  // not zeros: a kernel must not rely on them
  }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  ~AlignedBytes() { std::free(data); }
  std::byte* data;
};

// ---- Running a kernel ------------------------------------------------------------------------

enum class Activations { kQuantised, kF32 };

constexpr float kUntouched = -12345.0f;

struct Multiplication {
  const MatmulTable* table;
  const Weights* weights;
  const std::vector<float>* x;
  size_t num_tokens;
  size_t y_stride;
  Activations activations = Activations::kQuantised;
  // Rows are given to the kernel in these ranges: cuts.front() .. cuts.back().
  std::vector<size_t> cuts;
};

std::vector<float> Execute(const Multiplication& run) {
  const MatmulTable& table = *run.table;
  const WeightType type = run.weights->type;
  const size_t k = run.weights->k;
  const bool f32 = run.activations == Activations::kF32;
  const ActFormat format = f32 ? ActFormat::kF32Rows : table.act_format(type, run.num_tokens);
  const AlignedBytes packed(f32 ? 0 : table.act_bytes(format, run.num_tokens, k));
  const std::byte* act = reinterpret_cast<const std::byte*>(run.x->data());
  if (format != ActFormat::kF32Rows) {
    table.pack_act(format, {run.x->data(), k, 0, run.num_tokens, run.num_tokens, k, packed.data});
    act = packed.data;
  }
  const AlignedBytes scratch(f32 ? table.scratch_f32_bytes(type, run.num_tokens, k)
                                 : table.scratch_bytes(type, run.num_tokens, k));
  std::vector<float> y(run.num_tokens * run.y_stride, kUntouched);
  for (size_t i = 0; i + 1 < run.cuts.size(); ++i) {
    const MatmulCall call{reinterpret_cast<const std::byte*>(run.weights->bytes.data()),
                          run.weights->row_bytes,
                          k,
                          run.cuts[i],
                          run.cuts[i + 1],
                          act,
                          run.num_tokens,
                          y.data(),
                          run.y_stride,
                          scratch.data};
    (f32 ? table.matmul_f32 : table.matmul)[Index(type)](call);
  }
  return y;
}

constexpr size_t kRowCounts[] = {1, 15, 16, 17, 33, 50};
constexpr size_t kTokenCounts[] = {1, 2, 3, 7, 8, 15, 16, 17, 33, 40, 130};
constexpr size_t kMostRows = 50, kMostTokens = 130;

std::vector<size_t> WidthsOf(WeightType type) {
  if (Shape(type).elements == 256) return {256, 512, 768};
  if (Shape(type).elements == 32) return {32, 64, 96, 576, 640, 1536};
  return {32, 50, 576};
}

// Checks one kernel at every row and token count against one oracle.
void CheckAllShapes(const MatmulTable& table, WeightType type, size_t k, Activations activations) {
  const Weights weights(type, kMostRows, k, static_cast<uint32_t>(k));
  const std::vector<float> x = RandomActivations(kMostTokens * k, 7);
  const bool quantised = activations == Activations::kQuantised && Shape(type).elements > 1;
  const Product want =
      Multiply(weights.Values(kMostRows), kMostRows,
               quantised ? QuantisedActivations(x) : std::vector<double>(x.begin(), x.end()),
               kMostTokens, k);
  for (const size_t num_tokens : kTokenCounts) {
    for (const size_t num_rows : kRowCounts) {
      const size_t y_stride = num_rows + 3;
      const std::vector<float> y =
          Execute({&table, &weights, &x, num_tokens, y_stride, activations, {0, num_rows}});
      for (size_t t = 0; t < num_tokens; ++t) {
        for (size_t r = 0; r < y_stride; ++r) {
          const float got = y[t * y_stride + r];
          const size_t i = t * kMostRows + r;
          const bool ok = r >= num_rows
                              ? got == kUntouched
                              : std::fabs(got - want.value[i]) <= 1e-5 * want.magnitude[i];
          ASSERT_TRUE(ok) << Name(type) << " k " << k << ", " << num_rows << " rows, " << num_tokens
                          << " tokens: y[" << t << "][" << r << "] is " << got << ", want "
                          << (r < num_rows ? want.value[i] : kUntouched);
        }
      }
    }
  }
}

class Matmul : public testing::TestWithParam<const KernelTable*> {
 protected:
  const MatmulTable& table() const { return GetParam()->matmul; }
};

TEST_P(Matmul, MatchesTheOracleAtEveryShape) {
  for (const WeightType type : kQuantisedTypes) {
    for (const size_t k : WidthsOf(type)) {
      CheckAllShapes(table(), type, k, Activations::kQuantised);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Matmul, FloatWeightsUseF32Activations) {
  for (const WeightType type : kFloatTypes) {
    for (const size_t num_tokens : kTokenCounts) {
      EXPECT_EQ(table().act_format(type, num_tokens), ActFormat::kF32Rows) << Name(type);
    }
    for (const size_t k : WidthsOf(type)) {
      CheckAllShapes(table(), type, k, Activations::kQuantised);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Matmul, TheF32ProductMatchesTheOracleForEveryType) {
  for (const WeightType type : kQuantisedTypes) {
    CheckAllShapes(table(), type, WidthsOf(type).back() == 768 ? 256 : 96, Activations::kF32);
    if (HasFatalFailure()) return;
  }
  CheckAllShapes(table(), WeightType::kQ4_1, 576, Activations::kF32);
  for (const WeightType type : kFloatTypes) CheckAllShapes(table(), type, 50, Activations::kF32);
}

TEST_P(Matmul, ASplitOfTheRowsChangesNoBitAndTouchesNoOtherRow) {
  for (const WeightType type : kQuantisedTypes) {
    const size_t k = WidthsOf(type)[1];
    const Weights weights(type, 83, k, 3);
    for (const size_t num_tokens : {1u, 5u, 40u}) {
      const std::vector<float> x = RandomActivations(num_tokens * k, 11);
      Multiplication run{&table(), &weights, &x, num_tokens, 83, Activations::kQuantised, {2, 80}};
      for (const Activations activations : {Activations::kQuantised, Activations::kF32}) {
        run.activations = activations;
        run.cuts = {2, 80};
        const std::vector<float> whole = Execute(run);
        run.cuts = {2, 3, 20, 20, 37, 69, 80};
        const std::vector<float> split = Execute(run);
        EXPECT_EQ(0, std::memcmp(whole.data(), split.data(), whole.size() * sizeof(float)))
            << Name(type) << ", " << num_tokens << " tokens";
        for (size_t t = 0; t < num_tokens; ++t) {
          for (const size_t r : {0u, 1u, 80u, 81u, 82u}) {
            ASSERT_EQ(whole[t * 83 + r], kUntouched) << Name(type) << " row " << r;
          }
        }
      }
    }
  }
}

TEST_P(Matmul, ATokenDoesNotDependOnTheOthers) {
  for (const WeightType type : kQuantisedTypes) {
    const size_t k = WidthsOf(type)[1], num_rows = 19;
    const Weights weights(type, num_rows, k, 5);
    const std::vector<float> x = RandomActivations(130 * k, 13);
    const std::vector<float> many =
        Execute({&table(), &weights, &x, 130, num_rows, Activations::kQuantised, {0, num_rows}});
    for (const size_t num_tokens : {1u, 2u, 5u, 10u, 14u, 18u, 129u}) {
      if (table().act_format(type, num_tokens) != table().act_format(type, 130)) continue;
      const std::vector<float> few = Execute(
          {&table(), &weights, &x, num_tokens, num_rows, Activations::kQuantised, {0, num_rows}});
      EXPECT_EQ(0, std::memcmp(few.data(), many.data(), few.size() * sizeof(float)))
          << Name(type) << ", " << num_tokens << " tokens";
    }
  }
}

TEST_P(Matmul, UpToMaxExactTokensATokenGetsTheBitsItGetsAlone) {
  const size_t most = std::min<size_t>(MaxExactTokens(table()), 8), num_rows = 19;
  ASSERT_GE(most, 4u);
  for (const WeightType type : kQuantisedTypes) {
    const size_t k = WidthsOf(type)[1];
    const Weights weights(type, num_rows, k, 5);
    const auto x = RandomActivations(most * k, 13);
    const auto products = [&](const std::vector<float>& of, size_t tokens) {
      return Execute(
          {&table(), &weights, &of, tokens, num_rows, Activations::kQuantised, {0, num_rows}});
    };
    for (size_t tokens = 2; tokens <= most; ++tokens) {
      const std::vector<float> together = products(x, tokens);
      for (size_t t = 0; t < tokens; ++t) {
        const std::vector<float> alone = products({x.data() + t * k, x.data() + (t + 1) * k}, 1);
        const std::vector<float> among(&together[t * num_rows], &together[(t + 1) * num_rows]);
        EXPECT_EQ(alone, among) << Name(type) << ", token " << t << " of " << tokens;
      }
    }
  }
}

TEST_P(Matmul, PackingInPiecesEqualsPackingAtOnce) {
  constexpr size_t kTokens = 37, kWidth = 160, kStride = 171;
  const std::vector<float> x = RandomActivations(kTokens * kStride, 17);
  for (const WeightType type : {WeightType::kQ4_0, WeightType::kQ6_K}) {
    const ActFormat format = table().act_format(type, kTokens);
    const size_t bytes = table().act_bytes(format, kTokens, kWidth);
    const size_t tile = table().act_tile_tokens(format);
    const AlignedBytes once(bytes), pieces(bytes);
    table().pack_act(format, {x.data(), kStride, 0, kTokens, kTokens, kWidth, once.data});
    for (size_t t = 0; t < kTokens; t += tile) {
      table().pack_act(format, {x.data(), kStride, t, std::min(t + tile, kTokens), kTokens, kWidth,
                                pieces.data});
    }
    EXPECT_EQ(0, std::memcmp(once.data, pieces.data, bytes)) << Name(type);
  }
}

// Weights at their largest magnitude and activations at +-127 in patterns that add up: an
// intermediate of 16 bits would saturate or wrap.
TEST_P(Matmul, ExtremesDoNotSaturate) {
  constexpr size_t kWidth = 512;
  for (const WeightType type : kQuantisedTypes) {
    for (const int fill : {0x00, 0xff, 0x80, 0x7f}) {
      Weights weights(type, 17, kWidth, 1);
      std::fill(weights.bytes.begin(), weights.bytes.end(), static_cast<uint8_t>(fill));
      for (size_t i = 0; i < 17 * weights.row_bytes; i += Shape(type).bytes) {
        for (const size_t offset : HalfOffsets(type)) {
          weights.bytes[i + offset] = 0;
          weights.bytes[i + offset + 1] = 0x3c;  // 1.0
        }
      }
      for (const size_t num_tokens : {1u, 3u, 16u}) {
        std::vector<float> x(num_tokens * kWidth);
        for (size_t i = 0; i < x.size(); ++i) {
          const size_t t = i / kWidth;
          x[i] = t % 3 == 0 ? 127.0f : (t % 3 == 1 ? -127.0f : (i % 2 == 0 ? 127.0f : -127.0f));
        }
        const Product want =
            Multiply(weights.Values(17), 17, QuantisedActivations(x), num_tokens, kWidth);
        const std::vector<float> y =
            Execute({&table(), &weights, &x, num_tokens, 17, Activations::kQuantised, {0, 17}});
        for (size_t i = 0; i < y.size(); ++i) {
          ASSERT_NEAR(y[i], want.value[i], 1e-6 * want.magnitude[i])
              << Name(type) << " fill " << fill << ", " << num_tokens << " tokens";
        }
      }
    }
  }
}

TEST_P(Matmul, TinyAndHugeActivationsStayInRange) {
  constexpr size_t kWidth = 64;
  const Weights weights(WeightType::kQ8_0, 3, kWidth, 1);
  for (const float factor : {1e-44f, 1e-38f, 1e-30f, 1e34f}) {
    std::vector<float> x = RandomActivations(2 * kWidth, 19);
    for (float& v : x) v *= factor;
    const std::vector<float> y =
        Execute({&table(), &weights, &x, 2, 3, Activations::kQuantised, {0, 3}});
    for (const float v : y) EXPECT_TRUE(std::isfinite(v)) << factor;
  }
}

TEST_P(Matmul, DequantizedRowsEqualTheScalarOnesBitForBit) {
  const MatmulTable& scalar = (*Runnable().begin())->matmul;
  const auto check = [&](WeightType type) {
    for (const size_t k : WidthsOf(type)) {
      const Weights weights(type, 1, k, 23);
      std::vector<float> got(k + 1, kUntouched), want(k);
      const auto* row = reinterpret_cast<const std::byte*>(weights.bytes.data());
      table().dequantize_row[Index(type)](row, k, got.data());
      scalar.dequantize_row[Index(type)](row, k, want.data());
      EXPECT_EQ(0, std::memcmp(got.data(), want.data(), k * sizeof(float))) << Name(type);
      EXPECT_EQ(got[k], kUntouched) << Name(type);
    }
  };
  for (const WeightType type : kQuantisedTypes) check(type);
  for (const WeightType type : kFloatTypes) check(type);
}

TEST_P(Matmul, IdsThatAreNoTypeHaveNoKernel) {
  for (size_t i = 0; i < kNumWeightTypes; ++i) {
    const bool is_type = kBlockShapes[i].elements != 0;
    EXPECT_EQ(table().matmul[i] != nullptr, is_type) << i;
    EXPECT_EQ(table().matmul_f32[i] != nullptr, is_type) << i;
    EXPECT_EQ(table().dequantize_row[i] != nullptr, is_type) << i;
  }
}

TEST(F16, EveryFiniteValueIsExact) {
  const DequantizeRowFn scalar =
      (*Runnable().begin())->matmul.dequantize_row[Index(WeightType::kF16)];
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7c00) == 0x7c00) continue;
    const uint8_t bytes[2] = {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)};
    float got;
    scalar(reinterpret_cast<const std::byte*>(bytes), 1, &got);
    ASSERT_EQ(got, Half(bytes)) << bits;
    ASSERT_EQ(std::signbit(got), bits >= 0x8000) << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(, Matmul, testing::ValuesIn(Runnable().begin(), Runnable().end()),
                         [](const auto& p) { return p.param->isa; });

}  // namespace
}  // namespace tael::kernels
