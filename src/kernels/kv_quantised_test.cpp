// Quantised keys and values: every ISA that this CPU runs against the scalar kernels, to the bit
// where they promise it, and against sums in double precision over what the tiles hold by the
// layouts that kernels.h draws; then attention through every pair of types against plain f32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace tael::kernels {
namespace {

constexpr size_t kHeadDims[] = {8, 24, 32, 64, 80, 96, 128, 256};
constexpr size_t kMaxRows = 33;
constexpr size_t kTileOffset = 32;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

const KernelTable& Scalar() { return **Runnable().begin(); }
const KvTable& Of(const KernelTable& table, KvType type) {
  return table.kv[static_cast<size_t>(type)];
}
bool Holds(KvType type, size_t head_dim) { return type != KvType::kQ4 || head_dim % kQ4Group == 0; }

double HalfAt(const std::byte* p) {
  uint16_t half;
  std::memcpy(&half, p, 2);
  const int exponent = (half >> 10) & 31, mantissa = half & 1023;
  const double sign = (half & 0x8000) != 0 ? -1.0 : 1.0;
  return sign *
         (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

int Int8At(const std::byte* p) { return static_cast<int8_t>(*p); }

double KeyScale(const std::byte* tile, size_t head_dim, size_t slot) {
  return HalfAt(tile + 16 * head_dim + slot * 2);
}
double Key(const std::byte* tile, size_t head_dim, size_t slot, size_t d) {
  return Int8At(tile + (d / 4 * 16 + slot) * 4 + d % 4) * KeyScale(tile, head_dim, slot);
}
double ValueScale(KvType type, const std::byte* tile, size_t slot, size_t d) {
  return HalfAt(tile + (type == KvType::kQ8 ? 0 : d / 32 * 32) + slot * 2);
}
double Value(KvType type, const std::byte* tile, size_t head_dim, size_t slot, size_t d) {
  const double scale = ValueScale(type, tile, slot, d);
  if (type == KvType::kQ8) return Int8At(tile + 32 + slot * head_dim + d) * scale;
  const auto both = static_cast<int>(tile[head_dim + slot * head_dim / 2 + d / 32 * 16 + d % 16]);
  return ((d % 32 < 16 ? both & 15 : both >> 4) - 8) * scale;
}

std::vector<float> Normals(size_t n, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(n);
  for (float& v : values) v = normal(rng);
  return values;
}

// Vectors of every magnitude that a scale can have, and some that strain it.
std::vector<std::vector<float>> StrainedVectors(size_t head_dim) {
  std::vector<std::vector<float>> out;
  for (int power = -44; power <= 30; ++power) {
    out.push_back(Normals(head_dim, static_cast<uint32_t>(power + 50), std::ldexp(1.0f, power)));
  }
  out.emplace_back(head_dim, 0.0f);
  out.emplace_back(head_dim, -2.5f);
  out.push_back(Normals(head_dim, 7));
  out.back()[head_dim / 2] = 1000.0f;
  out.push_back(Normals(head_dim, 8));
  out.back()[1] = -1000.0f;
  for (float ties : {0.5f, 1.5f, 63.5f}) {  // halfway between two integers
    out.emplace_back(head_dim, ties);
    out.back()[0] = 127.0f;
  }
  return out;
}

class QuantisedKv : public testing::TestWithParam<const KernelTable*> {
 protected:
  const KernelTable& table() const { return *GetParam(); }
  const KvTable& q8() const { return Of(table(), KvType::kQ8); }
  const KvTable& of(KvType type) const { return Of(table(), type); }
};

constexpr KvType kQuantised[] = {KvType::kQ8, KvType::kQ4};

TEST_P(QuantisedKv, TilesTakeHalfAndAQuarterOfF16AndTheirScales) {
  for (size_t head_dim : kHeadDims) {
    EXPECT_EQ(q8().k_tile_bytes(head_dim), 16 * head_dim + 32);
    EXPECT_EQ(q8().v_tile_bytes(head_dim), 16 * head_dim + 32);
    if (!Holds(KvType::kQ4, head_dim)) continue;
    EXPECT_EQ(of(KvType::kQ4).v_tile_bytes(head_dim), 8 * head_dim + head_dim);
  }
}

TEST_P(QuantisedKv, TilesAreTheSameToTheBitOnEveryIsa) {
  for (size_t head_dim : kHeadDims) {
    for (const std::vector<float>& vector : StrainedVectors(head_dim)) {
      for (size_t slot : {0u, 6u, 15u}) {
        const KvTable& want = Of(Scalar(), KvType::kQ8);
        std::vector<std::byte> a(want.k_tile_bytes(head_dim), std::byte{0x5a}), b = a;
        want.store_k(vector.data(), head_dim, slot, a.data());
        q8().store_k(vector.data(), head_dim, slot, b.data());
        ASSERT_EQ(a, b) << "keys of " << head_dim << " like " << vector[0];
        for (KvType type : kQuantised) {
          if (!Holds(type, head_dim)) continue;
          std::vector<std::byte> c(of(type).v_tile_bytes(head_dim), std::byte{0x5a}), d = c;
          Of(Scalar(), type).store_v(vector.data(), head_dim, slot, c.data());
          of(type).store_v(vector.data(), head_dim, slot, d.data());
          ASSERT_EQ(c, d) << "values of " << head_dim << " like " << vector[0];
        }
      }
    }
  }
}

TEST_P(QuantisedKv, PackedQueriesAreTheSameToTheBitOnEveryIsa) {
  for (size_t head_dim : kHeadDims) {
    for (const std::vector<float>& vector : StrainedVectors(head_dim)) {
      std::vector<float> want(PackedQueryFloats(head_dim)), got = want;
      Of(Scalar(), KvType::kQ8).pack_q(vector.data(), head_dim, want.data());
      q8().pack_q(vector.data(), head_dim, got.data());
      ASSERT_EQ(std::memcmp(want.data(), got.data(), want.size() * 4), 0)
          << head_dim << " like " << vector[0];
    }
  }
}

TEST_P(QuantisedKv, AStoreFillsItsSlotAndNoOther) {
  for (size_t head_dim : kHeadDims) {
    for (KvType type : kQuantised) {
      if (!Holds(type, head_dim)) continue;
      for (size_t slot = 0; slot < 16; ++slot) {
        const auto vector = Normals(head_dim, 3);
        std::vector<std::byte> tile(of(type).v_tile_bytes(head_dim));
        for (size_t s = 0; s < 16; ++s) of(type).store_v(vector.data(), head_dim, s, tile.data());
        std::vector<float> other(head_dim, 0.0f);
        const std::vector<std::byte> before = tile;
        of(type).store_v(other.data(), head_dim, slot, tile.data());
        for (size_t s = 0; s < 16; ++s) {
          for (size_t d = 0; d < head_dim; ++d) {
            const double want = s == slot ? 0.0 : Value(type, before.data(), head_dim, s, d);
            ASSERT_EQ(Value(type, tile.data(), head_dim, s, d), want) << "slot " << slot;
          }
        }
      }
    }
  }
}

// Scales are the least f16 that is large enough, so a step is at most an f16 ulp too long.
TEST_P(QuantisedKv, WhatIsStoredIsWithinHalfAStep) {
  for (size_t head_dim : {64u, 96u, 128u, 256u}) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
      const auto vector = Normals(head_dim, seed, std::ldexp(1.0f, static_cast<int>(seed) - 12));
      float most = 0;
      for (float x : vector) most = std::max(most, std::abs(x));
      std::vector<std::byte> k(q8().k_tile_bytes(head_dim)), v(q8().v_tile_bytes(head_dim));
      q8().store_k(vector.data(), head_dim, 9, k.data());
      q8().store_v(vector.data(), head_dim, 9, v.data());
      const double step = KeyScale(k.data(), head_dim, 9);
      EXPECT_GE(step, double{most} / 127 * (1 - 1e-6));
      EXPECT_LE(step, double{most} / 127 * (1 + 0x1p-10) + 0x1p-24);
      for (size_t d = 0; d < head_dim; ++d) {
        ASSERT_NEAR(Key(k.data(), head_dim, 9, d), vector[d], step * 0.5001);
        ASSERT_EQ(Value(KvType::kQ8, v.data(), head_dim, 9, d), Key(k.data(), head_dim, 9, d));
      }
    }
  }
}

// 16 numbers, of which -8 is the value of the largest magnitude: only what lies beyond 7.5 steps on
// the other side is further away than half a step, and by no more than another half.
TEST_P(QuantisedKv, ValuesOf4BitsAreWithinHalfAStepButForTheOppositeOfTheLargest) {
  const KvTable& q4 = of(KvType::kQ4);
  for (size_t head_dim : {32u, 64u, 96u, 256u}) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
      const auto vector = Normals(head_dim, seed);
      std::vector<std::byte> v(q4.v_tile_bytes(head_dim));
      q4.store_v(vector.data(), head_dim, 4, v.data());
      for (size_t d = 0; d < head_dim; ++d) {
        const double scale = ValueScale(KvType::kQ4, v.data(), 4, d), step = std::abs(scale);
        const double beyond = std::max(0.0, double{vector[d]} / scale - 7.5) * step;
        ASSERT_LE(beyond, step * 0.5001);
        ASSERT_NEAR(Value(KvType::kQ4, v.data(), head_dim, 4, d), vector[d],
                    step * 0.5001 + beyond);
      }
    }
  }
}

TEST_P(QuantisedKv, ScalesSaturateAndKeepANaN) {
  const std::vector<float> huge(64, 1e30f), infinite(64, std::numeric_limits<float>::infinity()),
      nan(64, kNaN);
  for (KvType type : kQuantised) {
    std::vector<std::byte> tile(of(type).v_tile_bytes(64));
    for (const auto* vector : {&huge, &infinite}) {
      of(type).store_v(vector->data(), 64, 0, tile.data());
      EXPECT_EQ(std::abs(ValueScale(type, tile.data(), 0, 0)), 65504.0);
      const double value = Value(type, tile.data(), 64, 0, 0);
      EXPECT_EQ(value, type == KvType::kQ8 ? 127 * 65504.0 : 8 * 65504.0);
    }
    of(type).store_v(nan.data(), 64, 0, tile.data());
    uint16_t half;
    std::memcpy(&half, tile.data(), 2);
    EXPECT_GT(half & 0x7fff, 0x7c00) << "a NaN was hidden";
  }
  std::vector<float> packed(PackedQueryFloats(64));
  q8().pack_q(nan.data(), 64, packed.data());
  EXPECT_TRUE(std::isnan(packed[2 * 64 / 4]));
}

// Keys and values of one head in blocks of their own allocations; slots that hold no token are full
// of ones, as a reused block may be.
class Cache {
 public:
  Cache(const KernelTable& table, KvTypes types, size_t head_dim, size_t num_tokens)
      : table_(table),
        types_(types),
        head_dim_(head_dim),
        num_tokens_(num_tokens),
        v_offset_(kTileOffset + keys().k_tile_bytes(head_dim)) {
    const size_t bytes = v_offset_ + values().v_tile_bytes(head_dim);
    for (size_t b = 0; b < (num_tokens + 15) / 16; ++b) {
      blocks_.push_back(std::make_unique<std::byte[]>(bytes));
      std::memset(blocks_.back().get(), 0xff, bytes);
      addresses_.push_back(blocks_.back().get());
    }
  }

  // Rotated where the types are quantised, as the engine does.
  void Store(size_t token, std::vector<float> k, std::vector<float> v) {
    if (IsQuantised(types_.k)) table_.vec.hadamard(k.data(), head_dim_);
    if (IsQuantised(types_.v)) table_.vec.hadamard(v.data(), head_dim_);
    std::byte* block = blocks_[token / 16].get();
    keys().store_k(k.data(), head_dim_, token % 16, block + kTileOffset);
    values().store_v(v.data(), head_dim_, token % 16, block + v_offset_);
  }
  void StoreAll(const std::vector<float>& k, const std::vector<float>& v) {
    const auto row = [this](const std::vector<float>& all, size_t token) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(token * head_dim_);
      return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(head_dim_));
    };
    for (size_t t = 0; t < num_tokens_; ++t) Store(t, row(k, t), row(v, t));
  }

  // Scores of rows [num_rows][head_dim]: [num_rows][score_stride()].
  std::vector<float> Scores(std::vector<float> q, size_t num_rows, bool exact = false) const {
    AttendCall call = Call(kTileOffset, num_rows);
    std::vector<float> packed(num_rows * PackedQueryFloats(head_dim_));
    for (size_t r = 0; r < num_rows && keys().pack_q != nullptr; ++r) {
      table_.vec.hadamard(q.data() + r * head_dim_, head_dim_);
      keys().pack_q(q.data() + r * head_dim_, head_dim_,
                    packed.data() + r * PackedQueryFloats(head_dim_));
    }
    const bool as_they_are = keys().pack_q == nullptr;
    call.q = as_they_are ? q.data() : packed.data();
    call.q_stride = as_they_are ? head_dim_ : PackedQueryFloats(head_dim_);
    std::vector<float> scores(num_rows * score_stride());
    call.scores = scores.data();
    if (exact && keys().exact_scores != nullptr) {
      keys().exact_scores(call);
    } else {
      keys().scores(call);
    }
    return scores;
  }
  // out += weights . V, without the rotation back.
  void AddValues(std::vector<float>& weights, size_t num_rows, size_t begin, size_t end,
                 std::vector<float>& out) const {
    AttendCall call = Call(v_offset_, num_rows);
    call.blocks += begin / 16;
    call.num_tokens = end - begin;
    call.scores = weights.data() + begin;
    call.out = out.data();
    call.out_stride = head_dim_;
    values().values(call);
  }

  const std::byte* k_tile(size_t token) const { return addresses_[token / 16] + kTileOffset; }
  const std::byte* v_tile(size_t token) const { return addresses_[token / 16] + v_offset_; }
  size_t score_stride() const { return blocks_.size() * 16; }

 private:
  const KvTable& keys() const { return Of(table_, types_.k); }
  const KvTable& values() const { return Of(table_, types_.v); }
  AttendCall Call(size_t offset, size_t num_rows) const {
    AttendCall call{};
    call.blocks = addresses_.data();
    call.tile_offset = offset;
    call.num_tokens = num_tokens_;
    call.head_dim = head_dim_;
    call.num_rows = num_rows;
    call.score_stride = score_stride();
    return call;
  }

  const KernelTable& table_;
  KvTypes types_;
  size_t head_dim_, num_tokens_, v_offset_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::vector<const std::byte*> addresses_;
};

Cache Filled(const KernelTable& table, KvTypes types, size_t head_dim, size_t num_tokens) {
  Cache cache(table, types, head_dim, num_tokens);
  cache.StoreAll(Normals(num_tokens * head_dim, 1), Normals(num_tokens * head_dim, 2));
  return cache;
}

TEST_P(QuantisedKv, ScoresAreTheSameToTheBitOnEveryIsa) {
  for (size_t head_dim : kHeadDims) {
    const auto q = Normals(kMaxRows * head_dim, 4);
    for (size_t num_tokens : {1u, 16u, 17u, 100u, 130u}) {
      const Cache cache = Filled(table(), KvType::kQ8, head_dim, num_tokens);
      const Cache scalar = Filled(Scalar(), KvType::kQ8, head_dim, num_tokens);
      for (bool exact : {false, true}) {
        const auto want = scalar.Scores(q, kMaxRows, exact);
        for (size_t num_rows : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 12u, 13u, 33u}) {
          const auto got = cache.Scores(q, num_rows, exact);
          for (size_t r = 0; r < num_rows; ++r) {
            ASSERT_EQ(std::memcmp(&got[r * cache.score_stride()], &want[r * cache.score_stride()],
                                  num_tokens * 4),
                      0)
                << "dim " << head_dim << " row " << r << "/" << num_rows << " of " << num_tokens;
          }
        }
      }
    }
  }
}

TEST_P(QuantisedKv, ScoresAreDotProductsOfTheIntegersTimesBothScales) {
  for (size_t head_dim : kHeadDims) {
    auto q = Normals(head_dim, 4);
    const Cache cache = Filled(table(), KvType::kQ8, head_dim, 40);
    const auto got = cache.Scores(q, 1), exact = cache.Scores(q, 1, true);
    table().vec.hadamard(q.data(), head_dim);
    std::vector<float> packed(PackedQueryFloats(head_dim));
    q8().pack_q(q.data(), head_dim, packed.data());
    const auto* bytes = reinterpret_cast<const std::byte*>(packed.data());
    const double scale = packed[2 * head_dim / 4];
    for (size_t d = 0; d < head_dim; ++d) {
      ASSERT_NEAR(Int8At(bytes + d) * scale, q[d], scale * 0.5001);
    }
    for (size_t t = 0; t < 40; ++t) {
      double coarse = 0, want = 0, magnitude = 0;
      for (size_t d = 0; d < head_dim; ++d) {
        const double key = Key(cache.k_tile(t), head_dim, t % 16, d);
        coarse += Int8At(bytes + d) * scale * key;
        want += q[d] * key;
        magnitude += std::abs(key);
      }
      ASSERT_NEAR(got[t], coarse, 1e-6 * std::abs(coarse)) << "token " << t << " of " << head_dim;
      ASSERT_NEAR(exact[t], want, magnitude * scale * 0.5001 / 128) << "dim " << head_dim;
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

TEST_P(QuantisedKv, ValuesAddTheWeightedSumAndNoStaleSlot) {
  for (size_t head_dim : kHeadDims) {
    for (KvType type : kQuantised) {
      if (!Holds(type, head_dim)) continue;
      for (size_t num_tokens : {1u, 15u, 16u, 33u, 100u}) {
        const Cache cache = Filled(table(), {KvType::kF32, type}, head_dim, num_tokens);
        const auto before = Normals(kMaxRows * head_dim, 6);
        auto weights = Weights(num_tokens, cache.score_stride());
        for (size_t num_rows : {1u, 2u, 3u, 4u, 6u, 7u, 8u, 33u}) {
          auto out = before;
          cache.AddValues(weights, num_rows, 0, num_tokens, out);
          for (size_t i = 0; i < out.size(); ++i) {
            const size_t r = i / head_dim, d = i % head_dim;
            if (r >= num_rows) {
              ASSERT_EQ(out[i], before[i]) << "touched outside its rows";
              continue;
            }
            double want = before[i], magnitude = std::abs(before[i]);
            for (size_t t = 0; t < num_tokens; ++t) {
              const double term = weights[r * cache.score_stride() + t] *
                                  Value(type, cache.v_tile(t), head_dim, t % 16, d);
              want += term;
              magnitude += std::abs(term);
            }
            ASSERT_NEAR(out[i], want, (4 + std::sqrt(num_tokens)) * 0x1p-24 * magnitude)
                << "dim " << d << "/" << head_dim << " row " << r << "/" << num_rows;
          }
        }
      }
    }
  }
}

TEST_P(QuantisedKv, ValuesDependNeitherOnTheRowsBesideNorOnASplit) {
  constexpr size_t kTokens = 300;
  for (size_t head_dim : {24u, 64u, 96u, 256u}) {
    for (KvType type : kQuantised) {
      if (!Holds(type, head_dim)) continue;
      const Cache cache = Filled(table(), {KvType::kF16, type}, head_dim, kTokens);
      auto weights = Weights(kTokens, cache.score_stride());
      std::vector<float> all(kMaxRows * head_dim);
      cache.AddValues(weights, kMaxRows, 0, kTokens, all);
      for (size_t num_rows = 1; num_rows < kMaxRows; ++num_rows) {
        std::vector<float> some(num_rows * head_dim);
        cache.AddValues(weights, num_rows, 0, kTokens, some);
        ASSERT_EQ(std::memcmp(some.data(), all.data(), some.size() * 4), 0) << num_rows << " rows";
      }
      for (size_t split : {16u, 160u, 288u}) {
        std::vector<float> parts(kMaxRows * head_dim);
        cache.AddValues(weights, kMaxRows, 0, split, parts);
        cache.AddValues(weights, kMaxRows, split, kTokens, parts);
        ASSERT_EQ(parts, all) << "split at " << split;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, QuantisedKv, testing::ValuesIn(Runnable().begin(), Runnable().end()),
                         [](const auto& table) { return table.param->isa; });

// ---- attention through pairs of types ----

using Pair = std::tuple<const KernelTable*, KvType, KvType>;

class AttentionThrough : public testing::TestWithParam<Pair> {
 protected:
  const KernelTable& table() const { return *std::get<0>(GetParam()); }
  KvTypes types() const { return {std::get<1>(GetParam()), std::get<2>(GetParam())}; }
};

std::vector<double> Softmax(const float* scores, size_t n) {
  const double top = *std::max_element(scores, scores + n);
  std::vector<double> p(n);
  double sum = 0;
  for (size_t t = 0; t < n; ++t) sum += p[t] = std::exp(scores[t] - top);
  for (double& x : p) x /= sum;
  return p;
}

std::vector<float> ExactScores(const std::vector<float>& q, const std::vector<float>& k,
                               size_t num_tokens) {
  std::vector<float> scores(num_tokens);
  for (size_t t = 0; t < num_tokens; ++t) {
    double sum = 0;
    for (size_t d = 0; d < q.size(); ++d) sum += double{q[d]} * k[t * q.size() + d];
    scores[t] = static_cast<float>(sum);
  }
  return scores;
}

// Root mean square of (attention - exact attention), over the root of the sum of squared weights:
// what one value's error amounts to.
double AttentionError(const KernelTable& table, KvTypes types, size_t head_dim, size_t num_tokens) {
  const auto k = Normals(num_tokens * head_dim, 11), v = Normals(num_tokens * head_dim, 12);
  const auto q = Normals(head_dim, 13, 1.0f / std::sqrt(static_cast<float>(head_dim)));
  Cache cache(table, types, head_dim, num_tokens);
  cache.StoreAll(k, v);
  const auto p = Softmax(cache.Scores(q, 1).data(), num_tokens);
  std::vector<float> weights(cache.score_stride(), kNaN), out(head_dim);
  std::copy(p.begin(), p.end(), weights.begin());
  cache.AddValues(weights, 1, 0, num_tokens, out);
  if (IsQuantised(types.v)) table.vec.hadamard(out.data(), head_dim);

  const auto exact = Softmax(ExactScores(q, k, num_tokens).data(), num_tokens);
  double squares = 0, weight_squares = 0;
  for (double x : exact) weight_squares += x * x;
  for (size_t d = 0; d < head_dim; ++d) {
    double want = 0;
    for (size_t t = 0; t < num_tokens; ++t) want += exact[t] * v[t * head_dim + d];
    squares += (out[d] - want) * (out[d] - want);
  }
  return std::sqrt(squares / static_cast<double>(head_dim) / weight_squares);
}

// Of normal values: rounding to f16 is a relative 2^-11 at most; a step of q8 is 1/127 of some 3
// deviations and its error a root of 12th of that, for keys and for the query; q4 has 16 steps over
// some 5 deviations. Doubled, for the worst of many.
double AllowedByKeys(KvType type) {
  return type == KvType::kF32 ? 1e-5 : type == KvType::kF16 ? 1e-3 : 0.02;
}
double AllowedByValues(KvType type) {
  constexpr double kAllowed[] = {1e-5, 1e-3, 0.014, 0.16};
  return kAllowed[static_cast<size_t>(type)];
}

// TAEL_ALL_LENGTHS=1: 1 to 300, each.
std::vector<size_t> Lengths() {
  std::vector<size_t> lengths = {1,   2,   3,   7,   15,  16,  17,  18,  31,  32,  33,  47,
                                 48,  49,  63,  64,  65,  90,  112, 127, 128, 129, 160, 191,
                                 192, 200, 240, 255, 256, 257, 272, 287, 288, 289, 299, 300};
  if (std::getenv("TAEL_ALL_LENGTHS") != nullptr) {
    lengths.clear();
    for (size_t n = 1; n <= 300; ++n) lengths.push_back(n);
  }
  return lengths;
}

TEST_P(AttentionThrough, IsAsFarFromPlainF32AsTheRoundingOfItsTypes) {
  const double allowed = AllowedByKeys(types().k) + AllowedByValues(types().v);
  for (size_t head_dim : {64u, 96u, 128u, 256u}) {
    for (size_t num_tokens : Lengths()) {
      ASSERT_LE(AttentionError(table(), types(), head_dim, num_tokens), allowed)
          << num_tokens << " tokens of " << head_dim;
    }
  }
}

// Keys as Qwen2's biases make them: one channel that is 100 in every key, rotated by position as
// RoPE rotates a slow pair. It must not drown the other channels: with one scale and no rotation a
// score would be off by 0.5.
TEST_P(AttentionThrough, OneHugeChannelOfTheKeysLeavesTheLikeliestKeysInPlace) {
  if (types().v != types().k) return;  // values are not looked at
  constexpr size_t kTokens = 200, kQueries = 100, kDim = 64;
  auto k = Normals(kTokens * kDim, 21);
  for (size_t t = 0; t < kTokens; ++t) {
    const float angle = 1e-4f * static_cast<float>(t);
    k[t * kDim + 5] += 100.0f * std::cos(angle);
    k[t * kDim + 37] += 100.0f * std::sin(angle);
  }
  Cache cache(table(), types(), kDim, kTokens);
  cache.StoreAll(k, k);
  double kl = 0;
  for (uint32_t i = 0; i < kQueries; ++i) {
    const auto q = Normals(kDim, 100 + i, 2.0f / std::sqrt(static_cast<float>(kDim)));
    const auto exact = ExactScores(q, k, kTokens);
    const auto got = cache.Scores(q, 1);
    const auto top = std::max_element(got.begin(), got.begin() + kTokens) - got.begin();
    EXPECT_GE(exact[static_cast<size_t>(top)],
              *std::max_element(exact.begin(), exact.end()) - 0.4f);
    const auto p = Softmax(exact.data(), kTokens), r = Softmax(got.data(), kTokens);
    for (size_t t = 0; t < kTokens; ++t) kl += p[t] * std::log(p[t] / r[t]) / kQueries;
  }
  EXPECT_LE(kl, 5e-3);
}

const char* Name(KvType type) {
  constexpr const char* kNames[] = {"f32", "f16", "q8", "q4"};
  return kNames[static_cast<size_t>(type)];
}

INSTANTIATE_TEST_SUITE_P(, AttentionThrough,
                         testing::Combine(testing::ValuesIn(Runnable().begin(), Runnable().end()),
                                          testing::Values(KvType::kF32, KvType::kF16, KvType::kQ8),
                                          testing::Values(KvType::kF32, KvType::kF16, KvType::kQ8,
                                                          KvType::kQ4)),
                         [](const testing::TestParamInfo<Pair>& param) {
                           return std::string(std::get<0>(param.param)->isa) + "_k_" +
                                  Name(std::get<1>(param.param)) + "_v_" +
                                  Name(std::get<2>(param.param));
                         });

}  // namespace
}  // namespace tael::kernels
