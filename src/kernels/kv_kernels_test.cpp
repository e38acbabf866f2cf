// Storing keys and values and attending over them: every ISA that this CPU runs, against sums in
// double precision over what the tiles hold by the layout that kernels.h promises.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace tael::kernels {
namespace {

constexpr double kRounding = 0x1p-24;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kHeadDims[] = {8, 16, 24, 32, 48, 64, 80, 96, 128, 256};
constexpr size_t kRowCounts[] = {1, 2, 3, 4, 5, 7, 8, 16, 17, 33};
constexpr size_t kTokenCounts[] = {1, 15, 16, 17, 31, 32, 33, 100, 300};
constexpr size_t kMaxRows = 33;
constexpr size_t kTileOffset = 24;  // tiles need no alignment beyond that of an element

double HalfToDouble(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  const double sign = (half & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa != 0 ? double{kNaN} : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

size_t ElementBytes(KvType type) { return type == KvType::kF32 ? 4 : 2; }

double Element(KvType type, const std::byte* tile, size_t index) {
  if (type == KvType::kF32) {
    float value;
    std::memcpy(&value, tile + index * 4, 4);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, tile + index * 2, 2);
  return HalfToDouble(half);
}

std::vector<float> Normals(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> values(n);
  for (float& v : values) v = normal(rng);
  return values;
}

// A cache of num_tokens in blocks of their own allocations, so that a sanitizer sees every read
// outside; slots that hold no token are NaN, as a reused block may be.
class Cache {
 public:
  Cache(const KvTable& kv, KvType type, size_t head_dim, size_t num_tokens)
      : type_(type), head_dim_(head_dim), num_tokens_(num_tokens) {
    const size_t k_bytes = kv.k_tile_bytes(head_dim), v_bytes = kv.v_tile_bytes(head_dim);
    for (size_t b = 0; b < (num_tokens + 15) / 16; ++b) {
      blocks_.push_back(std::make_unique<std::byte[]>(kTileOffset + k_bytes + v_bytes));
      std::memset(blocks_.back().get(), 0xff, kTileOffset + k_bytes + v_bytes);
      addresses_.push_back(blocks_.back().get());
    }
    v_offset_ = kTileOffset + k_bytes;
    const auto keys = Normals(num_tokens * head_dim, 1), values = Normals(num_tokens * head_dim, 2);
    for (size_t t = 0; t < num_tokens; ++t) {
      std::byte* block = blocks_[t / 16].get();
      kv.store_k(keys.data() + t * head_dim, head_dim, t % 16, block + kTileOffset);
      kv.store_v(values.data() + t * head_dim, head_dim, t % 16, block + v_offset_);
    }
  }

  double Key(size_t token, size_t d) const {
    return Element(type_, addresses_[token / 16] + kTileOffset, d * 16 + token % 16);
  }
  double Value(size_t token, size_t d) const {
    return Element(type_, addresses_[token / 16] + v_offset_, token % 16 * head_dim_ + d);
  }
  AttendCall KeyCall() const { return Call(kTileOffset); }
  AttendCall ValueCall() const { return Call(v_offset_); }
  size_t score_stride() const { return blocks_.size() * 16; }

 private:
  AttendCall Call(size_t offset) const {
    AttendCall call{};
    call.blocks = addresses_.data();
    call.tile_offset = offset;
    call.num_tokens = num_tokens_;
    call.head_dim = head_dim_;
    call.score_stride = score_stride();
    return call;
  }

  KvType type_;
  size_t head_dim_, num_tokens_, v_offset_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::vector<const std::byte*> addresses_;
};

// A sum and the sum of its terms' magnitudes: the scale of a tolerance when terms cancel.
struct Sum {
  double value = 0.0;
  double magnitude = 0.0;
  void Add(double term) {
    value += term;
    magnitude += std::abs(term);
  }
};

double Tolerance(const Sum& sum, size_t num_terms) {
  return (2.0 + std::sqrt(static_cast<double>(num_terms))) * kRounding * sum.magnitude;
}

using Param = std::tuple<const KernelTable*, KvType>;

class KvKernels : public testing::TestWithParam<Param> {
 protected:
  KvType type() const { return std::get<1>(GetParam()); }
  const KvTable& kv() const { return std::get<0>(GetParam())->kv[static_cast<size_t>(type())]; }
  // Rows of queries or results, with a canary after each.
  static constexpr size_t kGap = 3;
};

TEST_P(KvKernels, ATileHoldsSixteenVectors) {
  for (size_t head_dim : kHeadDims) {
    EXPECT_EQ(kv().k_tile_bytes(head_dim), 16 * head_dim * ElementBytes(type()));
    EXPECT_EQ(kv().v_tile_bytes(head_dim), 16 * head_dim * ElementBytes(type()));
  }
}

TEST_P(KvKernels, AStoreFillsItsSlotAndNoOther) {
  for (size_t head_dim : kHeadDims) {
    const auto vector = Normals(head_dim, 3);
    for (size_t slot = 0; slot < 16; ++slot) {
      std::vector<std::byte> k(kv().k_tile_bytes(head_dim), std::byte{0xff});
      std::vector<std::byte> v(kv().v_tile_bytes(head_dim), std::byte{0xff});
      kv().store_k(vector.data(), head_dim, slot, k.data());
      kv().store_v(vector.data(), head_dim, slot, v.data());
      for (size_t d = 0; d < head_dim; ++d) {
        const double precision = type() == KvType::kF32 ? 0.0 : std::abs(vector[d]) * 0x1p-11;
        for (size_t s = 0; s < 16; ++s) {
          const double key = Element(type(), k.data(), d * 16 + s);
          const double value = Element(type(), v.data(), s * head_dim + d);
          if (s == slot) {
            ASSERT_NEAR(key, vector[d], precision + 0x1p-25);
            ASSERT_EQ(key, value);
          } else {
            ASSERT_TRUE(std::isnan(key) && std::isnan(value)) << "slot " << s << " was touched";
          }
        }
      }
    }
  }
}

// Stores n values (a multiple of 8) as one vector and returns the halves.
std::vector<uint16_t> StoreHalves(const KvTable& kv, const std::vector<float>& values) {
  std::vector<std::byte> tile(kv.v_tile_bytes(values.size()));
  kv.store_v(values.data(), values.size(), 0, tile.data());
  std::vector<uint16_t> halves(values.size());
  std::memcpy(halves.data(), tile.data(), halves.size() * 2);
  std::vector<std::byte> k_tile(kv.k_tile_bytes(values.size()));
  kv.store_k(values.data(), values.size(), 5, k_tile.data());
  for (size_t d = 0; d < values.size(); ++d) {
    uint16_t half;
    std::memcpy(&half, k_tile.data() + (d * 16 + 5) * 2, 2);
    EXPECT_EQ(half, halves[d]);
  }
  return halves;
}

TEST_P(KvKernels, F16RoundsToTheNearestEven) {
  if (type() != KvType::kF16) return;
  for (uint16_t base = 0; base < 0x7c00; base += 32) {
    std::vector<float> values;
    std::vector<uint16_t> want;
    for (uint16_t half = base; half < base + 32; ++half) {
      const auto exact = static_cast<float>(HalfToDouble(half));
      values.push_back(exact);
      want.push_back(half);
      values.push_back(-exact);
      want.push_back(half | 0x8000);
      if (half == 0x7bff) continue;
      const uint16_t next = half + 1;
      const auto middle = static_cast<float>((exact + HalfToDouble(next)) / 2);
      values.insert(values.end(),
                    {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 70000.0f)});
      want.insert(want.end(), {half % 2 == 0 ? half : next, half, next});
    }
    while (values.size() % 8 != 0) {
      values.push_back(0.0f);
      want.push_back(0);
    }
    ASSERT_EQ(StoreHalves(kv(), values), want) << "halves from " << base;
  }
}

TEST_P(KvKernels, F16SaturatesAndKeepsNaN) {
  if (type() != KvType::kF16) return;
  const float infinity = std::numeric_limits<float>::infinity();
  const auto halves = StoreHalves(
      kv(), {65504.0f, 65519.9f, 65520.0f, 1e30f, infinity, -infinity, -65520.0f, kNaN});
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(halves[i], 0x7bff) << i;
  EXPECT_EQ(halves[5], 0xfbff);
  EXPECT_EQ(halves[6], 0xfbff);
  EXPECT_TRUE(std::isnan(HalfToDouble(halves[7])));
}

TEST_P(KvKernels, ScoresAreDotProductsWithEachKey) {
  for (size_t head_dim : kHeadDims) {
    const size_t q_stride = head_dim + kGap;
    const auto q = Normals(kMaxRows * q_stride, 4);
    for (size_t num_tokens : kTokenCounts) {
      const Cache cache(kv(), type(), head_dim, num_tokens);
      std::vector<Sum> want(kMaxRows * num_tokens);
      for (size_t r = 0; r < kMaxRows; ++r) {
        for (size_t t = 0; t < num_tokens; ++t) {
          Sum& sum = want[r * num_tokens + t];
          for (size_t d = 0; d < head_dim; ++d) sum.Add(q[r * q_stride + d] * cache.Key(t, d));
        }
      }
      for (size_t num_rows : kRowCounts) {
        AttendCall call = cache.KeyCall();
        std::vector<float> scores(num_rows * call.score_stride);
        call.num_rows = num_rows;
        call.q = q.data();
        call.q_stride = q_stride;
        call.scores = scores.data();
        kv().scores(call);
        for (size_t r = 0; r < num_rows; ++r) {
          for (size_t t = 0; t < num_tokens; ++t) {
            const Sum& sum = want[r * num_tokens + t];
            ASSERT_NEAR(scores[r * call.score_stride + t], sum.value, Tolerance(sum, head_dim))
                << "dim " << head_dim << " row " << r << "/" << num_rows << " token " << t << "/"
                << num_tokens;
          }
        }
      }
    }
  }
}

// Weights with NaN in the slots that hold no token, as `scores` may leave them.
std::vector<float> Weights(size_t num_tokens, size_t stride) {
  auto weights = Normals(kMaxRows * stride, 5);
  for (size_t r = 0; r < kMaxRows; ++r) {
    for (size_t t = num_tokens; t < stride; ++t) weights[r * stride + t] = kNaN;
  }
  return weights;
}

TEST_P(KvKernels, ValuesAddTheWeightedSumAndNoStaleSlot) {
  for (size_t head_dim : kHeadDims) {
    const size_t out_stride = head_dim + kGap;
    const auto before = Normals(kMaxRows * out_stride, 6);
    for (size_t num_tokens : kTokenCounts) {
      const Cache cache(kv(), type(), head_dim, num_tokens);
      AttendCall call = cache.ValueCall();
      auto weights = Weights(num_tokens, call.score_stride);
      call.scores = weights.data();
      call.out_stride = out_stride;
      std::vector<Sum> want(kMaxRows * head_dim);
      for (size_t r = 0; r < kMaxRows; ++r) {
        for (size_t d = 0; d < head_dim; ++d) {
          Sum& sum = want[r * head_dim + d];
          sum.Add(before[r * out_stride + d]);
          for (size_t t = 0; t < num_tokens; ++t) {
            sum.Add(weights[r * call.score_stride + t] * cache.Value(t, d));
          }
        }
      }
      for (size_t num_rows : kRowCounts) {
        auto out = before;
        call.num_rows = num_rows;
        call.out = out.data();
        kv().values(call);
        for (size_t r = 0; r < kMaxRows; ++r) {
          for (size_t d = 0; d < out_stride; ++d) {
            const size_t i = r * out_stride + d;
            if (r >= num_rows || d >= head_dim) {
              ASSERT_EQ(out[i], before[i]) << "touched outside its rows";
              continue;
            }
            const Sum& sum = want[r * head_dim + d];
            ASSERT_NEAR(out[i], sum.value, Tolerance(sum, num_tokens))
                << "dim " << d << "/" << head_dim << " row " << r << "/" << num_rows << " tokens "
                << num_tokens;
          }
        }
      }
    }
  }
}

TEST_P(KvKernels, ARowDoesNotDependOnTheRowsBesideIt) {
  constexpr size_t kTokens = 100;
  for (size_t head_dim : {24u, 64u, 80u, 256u}) {
    const Cache cache(kv(), type(), head_dim, kTokens);
    const auto q = Normals(kMaxRows * head_dim, 7);
    const size_t stride = cache.score_stride();
    auto weights = Weights(kTokens, stride);
    const auto run = [&](size_t row, size_t num_rows, float* scores, float* out) {
      AttendCall call = cache.KeyCall();
      call.num_rows = num_rows;
      call.q = q.data() + row * head_dim;
      call.q_stride = head_dim;
      call.scores = scores;
      kv().scores(call);
      call.tile_offset = cache.ValueCall().tile_offset;
      call.scores = weights.data() + row * stride;
      call.out = out;
      call.out_stride = head_dim;
      kv().values(call);
    };
    std::vector<float> alone_scores(kMaxRows * stride), alone(kMaxRows * head_dim);
    for (size_t r = 0; r < kMaxRows; ++r) {
      run(r, 1, alone_scores.data() + r * stride, alone.data() + r * head_dim);
    }
    for (size_t num_rows = 2; num_rows <= kMaxRows; ++num_rows) {
      std::vector<float> scores(num_rows * stride), out(num_rows * head_dim);
      run(0, num_rows, scores.data(), out.data());
      for (size_t r = 0; r < num_rows; ++r) {
        ASSERT_EQ(0, std::memcmp(&scores[r * stride], &alone_scores[r * stride], kTokens * 4))
            << "scores of row " << r << " of " << num_rows << ", dim " << head_dim;
        ASSERT_EQ(0, std::memcmp(&out[r * head_dim], &alone[r * head_dim], head_dim * 4))
            << "values of row " << r << " of " << num_rows << ", dim " << head_dim;
      }
    }
  }
}

TEST_P(KvKernels, ValuesOverTwoCallsEqualOneCall) {
  constexpr size_t kTokens = 300;
  for (size_t head_dim : {24u, 64u, 256u}) {
    const Cache cache(kv(), type(), head_dim, kTokens);
    auto weights = Weights(kTokens, cache.score_stride());
    AttendCall call = cache.ValueCall();
    call.num_rows = 5;
    call.scores = weights.data();
    call.out_stride = head_dim;
    std::vector<float> whole(5 * head_dim), parts(5 * head_dim);
    call.out = whole.data();
    kv().values(call);
    for (size_t split : {16u, 160u, 288u}) {
      std::fill(parts.begin(), parts.end(), 0.0f);
      call.out = parts.data();
      call.num_tokens = split;
      kv().values(call);
      AttendCall rest = call;
      rest.blocks = call.blocks + split / 16;
      rest.scores = weights.data() + split;
      rest.num_tokens = kTokens - split;
      kv().values(rest);
      ASSERT_EQ(whole, parts) << "split at " << split << ", dim " << head_dim;
    }
  }
}

std::string ParamName(const testing::TestParamInfo<Param>& info) {
  const bool f32 = std::get<1>(info.param) == KvType::kF32;
  return std::string(std::get<0>(info.param)->isa) + (f32 ? "_f32" : "_f16");
}

INSTANTIATE_TEST_SUITE_P(, KvKernels,
                         testing::Combine(testing::ValuesIn(Runnable().begin(), Runnable().end()),
                                          testing::Values(KvType::kF32, KvType::kF16)),
                         ParamName);

}  // namespace
}  // namespace tael::kernels
