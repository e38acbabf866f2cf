// Every element-wise kernel of every ISA that this CPU runs, against formulas in double precision.
//
// A tolerance is a number of f32 roundings (2^-24 each) times the condition of the data: how much a
// relative error of the input, or of an intermediate result, grows on its way to the output.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/kernels.h"

namespace tael::kernels {
namespace {

constexpr double kRounding = 0x1p-24;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kCanary = 12345.0f;
// Every remainder of every vector length, one long odd row, and the width of a real model.
constexpr size_t kLengths[] = {1,  2,  3,  4,  5,  7,  8,  9,  15,  16,  17,  23,   24,  31,
                               32, 33, 47, 48, 63, 64, 65, 96, 127, 128, 129, 1023, 2048};

// n values and one more that no kernel may touch.
class Guarded {
 public:
  explicit Guarded(size_t n) : values_(n + 1, 0.0f) { values_[n] = kCanary; }
  explicit Guarded(const std::vector<float>& from) : values_(from) { values_.push_back(kCanary); }
  ~Guarded() { EXPECT_EQ(values_.back(), kCanary) << "written past the end"; }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  float* data() { return values_.data(); }
  double operator[](size_t i) const { return values_[i]; }

 private:
  std::vector<float> values_;
};

std::vector<float> Normals(size_t n, float deviation, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(n);
  for (float& v : values) v = normal(rng);
  return values;
}

// From deep in one tail of exp to deep in the other, zero and tiny values included.
std::vector<float> Sweep(float from, float to, size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    values[i] = from + (to - from) * static_cast<float>(i) / static_cast<float>(n - 1);
  }
  for (float tiny : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e-6f, -1e-6f, 0.01f, -0.01f}) {
    values.push_back(tiny);
  }
  return values;
}

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

class VectorKernels : public testing::TestWithParam<const KernelTable*> {
 protected:
  const VectorTable& vec() const { return GetParam()->vec; }
};

TEST_P(VectorKernels, RmsNormDividesByTheRootOfTheMeanSquare) {
  for (size_t n : kLengths) {
    const auto x = Normals(n, 3.0f, 1), weight = Normals(n, 1.0f, 2);
    double sum = 0.0;
    for (float v : x) sum += double{v} * v;
    const double factor = 1.0 / std::sqrt(sum / static_cast<double>(n) + 1e-5);
    Guarded out(n);
    vec().rms_norm(x.data(), weight.data(), 1e-5f, n, out.data());
    // n positive terms: no cancellation, and their roundings add up like a random walk.
    const double tolerance = (6.0 + std::sqrt(static_cast<double>(n))) * kRounding;
    for (size_t i = 0; i < n; ++i) {
      const double want = x[i] * factor * weight[i];
      ASSERT_NEAR(out[i], want, tolerance * std::abs(want)) << i << " of " << n;
    }
    Guarded in_place(x);
    vec().rms_norm(in_place.data(), weight.data(), 1e-5f, n, in_place.data());
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(in_place[i], out[i]);
  }
}

TEST_P(VectorKernels, RmsNormOfZerosIsZeroThanksToEps) {
  const std::vector<float> zeros(37, 0.0f), weight(37, 2.0f);
  Guarded out(37);
  vec().rms_norm(zeros.data(), weight.data(), 1e-6f, 37, out.data());
  for (size_t i = 0; i < 37; ++i) EXPECT_EQ(out[i], 0.0);
}

TEST_P(VectorKernels, AddAndScaleRoundOnce) {
  for (size_t n : kLengths) {
    const auto x = Normals(n, 2.0f, 3), y = Normals(n, 2.0f, 4);
    Guarded sum(x), scaled(x);
    vec().add(sum.data(), y.data(), n);
    vec().scale(scaled.data(), 0.3f, n);
    for (size_t i = 0; i < n; ++i) {
      ASSERT_EQ(sum[i], x[i] + y[i]);
      ASSERT_EQ(scaled[i], x[i] * 0.3f);
    }
  }
}

struct Rotation {
  explicit Rotation(size_t half) : cos(half), sin(half), x(Normals(2 * half + 5, 2.0f, 5)) {
    for (size_t i = 0; i < half; ++i) {
      cos[i] = static_cast<float>(std::cos(0.7 * static_cast<double>(i) + 0.1));
      sin[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i) + 0.1));
    }
  }
  std::vector<float> cos, sin;
  std::vector<float> x;  // five values more than are rotated
};

// Values a and b of `got` are those of r.x turned by the angle with index i.
void ExpectTurned(const Rotation& r, const Guarded& got, size_t a, size_t b, size_t i) {
  const double xa = r.x[a], xb = r.x[b], c = r.cos[i], s = r.sin[i];
  ASSERT_NEAR(got[a], xa * c - xb * s, 2 * kRounding * (std::abs(xa * c) + std::abs(xb * s)));
  ASSERT_NEAR(got[b], xb * c + xa * s, 2 * kRounding * (std::abs(xb * c) + std::abs(xa * s)));
}

TEST_P(VectorKernels, RopeHalvesTurnsValueIWithValueIPlusHalf) {
  for (size_t half : {1u, 3u, 4u, 7u, 8u, 12u, 16u, 20u, 32u, 40u, 64u, 128u}) {
    const Rotation r(half);
    Guarded got(r.x);
    vec().rope_halves(got.data(), r.cos.data(), r.sin.data(), half);
    for (size_t i = 0; i < half; ++i) ExpectTurned(r, got, i, i + half, i);
    for (size_t i = 2 * half; i < r.x.size(); ++i) ASSERT_EQ(got[i], r.x[i]) << "not rotated";
  }
}

TEST_P(VectorKernels, RopePairsTurnsNeighbours) {
  for (size_t half : {1u, 3u, 4u, 7u, 8u, 12u, 16u, 20u, 32u, 40u, 64u, 128u}) {
    const Rotation r(half);
    Guarded got(r.x);
    vec().rope_pairs(got.data(), r.cos.data(), r.sin.data(), half);
    for (size_t i = 0; i < half; ++i) ExpectTurned(r, got, 2 * i, 2 * i + 1, i);
    for (size_t i = 2 * half; i < r.x.size(); ++i) ASSERT_EQ(got[i], r.x[i]) << "not rotated";
  }
}

TEST_P(VectorKernels, SiluMulIsGateTimesItsSigmoidTimesUp) {
  const auto gate = Sweep(-120.0f, 120.0f, 4001);
  const auto up = Normals(gate.size(), 2.0f, 6);
  Guarded out(gate.size());
  vec().silu_mul(gate.data(), up.data(), gate.size(), out.data());
  for (size_t i = 0; i < gate.size(); ++i) {
    const double want = double{gate[i]} * Sigmoid(gate[i]) * up[i];
    // Where exp(-gate) nears the end of f32 the result may become 0.
    const double floor = 1e-36 * std::abs(up[i]);
    ASSERT_NEAR(out[i], want, 6 * kRounding * std::abs(want) + floor) << "gate " << gate[i];
  }
}

TEST_P(VectorKernels, GeluMulFollowsTheTanhForm) {
  auto gate = Sweep(-12.0f, 12.0f, 4001);
  for (float far : {-1000.0f, -100.0f, -30.0f, 30.0f, 100.0f, 1000.0f}) gate.push_back(far);
  const auto up = Normals(gate.size(), 2.0f, 7);
  Guarded out(gate.size());
  vec().gelu_mul(gate.data(), up.data(), gate.size(), out.data());
  for (size_t i = 0; i < gate.size(); ++i) {
    const double g = gate[i];
    const double u = std::sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g);
    const double want = g * Sigmoid(2.0 * u) * up[i];  // 0.5 g (1 + tanh(u)) without cancelling
    // A relative error of u, three roundings, grows by the condition 2u (1 - sigmoid(2u)).
    const double condition = std::abs(2.0 * u) * (1.0 - Sigmoid(2.0 * u));
    const double tolerance = (6.0 + 4.0 * condition) * kRounding * std::abs(want);
    ASSERT_NEAR(out[i], want, tolerance + 1e-35 * std::abs(up[i])) << "gate " << g;
    if (std::abs(g) < 12.5) {
      ASSERT_NEAR(want, 0.5 * g * (1.0 + std::tanh(u)) * up[i], 1e-13);
    }
  }
}

TEST_P(VectorKernels, ActivationsWorkAtEveryLengthAndInPlace) {
  for (size_t n : kLengths) {
    const auto gate = Normals(n, 2.0f, 8), up = Normals(n, 2.0f, 9);
    Guarded silu(gate), gelu(up);
    vec().silu_mul(silu.data(), up.data(), n, silu.data());
    vec().gelu_mul(gate.data(), gelu.data(), n, gelu.data());
    for (size_t i = 0; i < n; ++i) {
      const double g = gate[i], u = std::sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g);
      ASSERT_NEAR(silu[i], g * Sigmoid(g) * up[i], 1e-6 * std::abs(g * up[i])) << i << " of " << n;
      ASSERT_NEAR(gelu[i], g * Sigmoid(2 * u) * up[i], 2e-6 * std::abs(g * up[i]));
    }
  }
}

TEST_P(VectorKernels, SoftcapBendsTowardsTheCapAndIsExactNearZero) {
  for (float cap : {1.0f, 30.0f, 50.0f}) {
    const auto x = Sweep(-12.0f * cap, 12.0f * cap, 3001);
    Guarded got(x);
    vec().softcap(got.data(), cap, x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = cap * std::tanh(double{x[i]} / cap);
      ASSERT_NEAR(got[i], want, 6 * kRounding * std::abs(want)) << "x " << x[i] << " cap " << cap;
    }
  }
  for (size_t n : kLengths) {
    const auto x = Normals(n, 40.0f, 10);
    Guarded got(x);
    vec().softcap(got.data(), 30.0f, n);
    for (size_t i = 0; i < n; ++i) ASSERT_NEAR(got[i], 30.0 * std::tanh(x[i] / 30.0), 2e-5);
  }
}

TEST_P(VectorKernels, MaxFindsTheLargestWhereverItIs) {
  for (size_t n : kLengths) {
    auto x = Normals(n, 1.0f, 11);
    for (float& v : x) v -= 100.0f;  // all negative: a zero from nowhere would win
    for (size_t at = 0; at < std::min<size_t>(n, 130); ++at) {
      const float before = x[at];
      x[at] = -50.0f;
      ASSERT_EQ(vec().max(x.data(), n), -50.0f) << at << " of " << n;
      x[at] = before;
    }
  }
  const float one = -kInfinity;
  EXPECT_EQ(vec().max(&one, 1), -kInfinity);
}

TEST_P(VectorKernels, ExpSumReplacesByExponentialsAndReturnsTheirSum) {
  for (size_t n : kLengths) {
    auto x = Normals(n, 8.0f, 12);
    const float max = *std::max_element(x.begin(), x.end());
    if (n > 2) x[n / 2] = x[0] = -kInfinity;
    Guarded got(x);
    const double sum = vec().exp_sum(got.data(), max, n);
    double want_sum = 0.0;
    for (size_t i = 0; i < n; ++i) {
      const double difference = double{x[i]} - max;
      const double want = std::exp(difference);
      // The difference is rounded once: an absolute error of the exponent.
      const double condition = std::isinf(difference) ? 0.0 : std::abs(difference);
      ASSERT_NEAR(got[i], want, (4.0 + condition) * kRounding * want) << i << " of " << n;
      if (x[i] == -kInfinity) {
        ASSERT_EQ(got[i], 0.0);
      }
      want_sum += got[i];
    }
    const double tolerance = (2.0 + std::sqrt(static_cast<double>(n))) * kRounding;
    ASSERT_NEAR(sum, want_sum, tolerance * want_sum) << n;
  }
}

// Attention masks keys behind a row's own, and blocks of 16 before its window: what one row alone
// gets and what it gets among others must be the same bits.
TEST_P(VectorKernels, MaskedScoresAroundTheOthersDoNotChangeTheirSum) {
  for (size_t n = 1; n <= 130; ++n) {
    const auto x = Normals(n, 4.0f, 13);
    const float max = *std::max_element(x.begin(), x.end());
    auto alone = x;
    const float want = vec().exp_sum(alone.data(), max, n);
    for (size_t before : {0u, 16u, 48u}) {
      for (size_t behind : {0u, 1u, 2u, 7u, 15u, 16u, 17u, 40u}) {
        std::vector<float> masked(before, -kInfinity);
        masked.insert(masked.end(), x.begin(), x.end());
        masked.resize(masked.size() + behind, -kInfinity);
        ASSERT_EQ(vec().exp_sum(masked.data(), max, masked.size()), want)
            << n << " between " << before << " and " << behind;
        ASSERT_TRUE(std::equal(alone.begin(), alone.end(),
                               masked.begin() + static_cast<std::ptrdiff_t>(before)));
      }
    }
  }
}

TEST_P(VectorKernels, ExpSumIsAccurateDownToTheSmallestNormalNumber) {
  const auto x = Sweep(-110.0f, 0.0f, 8001);
  Guarded got(x);
  vec().exp_sum(got.data(), 0.0f, x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(double{x[i]});
    ASSERT_NEAR(got[i], want, 4 * kRounding * want + 0x1p-126) << x[i];
  }
}

constexpr size_t kHadamardLengths[] = {8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256, 512};

TEST_P(VectorKernels, HadamardMultipliesEachRunByTheMatrixOfSigns) {
  for (size_t n : kHadamardLengths) {
    const auto x = Normals(n, 1.0f, 3);
    const size_t run = n & (~n + 1);
    Guarded got(x);
    vec().hadamard(got.data(), n);
    for (size_t i = 0; i < n; ++i) {
      double want = 0.0, magnitude = 0.0;
      for (size_t j = 0; j < run; ++j) {
        const double term = x[i / run * run + j];
        want += std::popcount(i % run & j) % 2 == 0 ? term : -term;
        magnitude += std::abs(term);
      }
      const double factor = 1.0 / std::sqrt(static_cast<double>(run));
      ASSERT_NEAR(got[i], want * factor, 4 * kRounding * magnitude * factor) << i << " of " << n;
    }
  }
}

TEST_P(VectorKernels, HadamardTwiceChangesNothingButRounding) {
  for (size_t n : kHadamardLengths) {
    const auto x = Normals(n, 1.0f, 4);
    Guarded twice(x);
    vec().hadamard(twice.data(), n);
    vec().hadamard(twice.data(), n);
    for (size_t i = 0; i < n; ++i) ASSERT_NEAR(twice[i], x[i], 2e-6) << i << " of " << n;
  }
}

TEST_P(VectorKernels, HadamardIsTheSameToTheBitOnEveryIsa) {
  for (size_t n : kHadamardLengths) {
    auto want = Normals(n, 1.0f, 5), got = want;
    (*Runnable().begin())->vec.hadamard(want.data(), n);
    vec().hadamard(got.data(), n);
    ASSERT_EQ(std::memcmp(want.data(), got.data(), n * sizeof(float)), 0) << n;
  }
}

TEST_P(VectorKernels, ANaNIsNotHidden) {
  std::vector<float> x(40, 0.5f);
  x[3] = x[39] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> up(40, 1.0f);
  Guarded silu(x), gelu(x), capped(x), exponentials(x);
  vec().silu_mul(x.data(), up.data(), 40, silu.data());
  vec().gelu_mul(x.data(), up.data(), 40, gelu.data());
  vec().softcap(capped.data(), 30.0f, 40);
  EXPECT_TRUE(std::isnan(vec().exp_sum(exponentials.data(), 0.5f, 40)));
  for (size_t i : {3u, 39u}) {
    EXPECT_TRUE(std::isnan(silu[i]) && std::isnan(gelu[i])) << i;
    EXPECT_TRUE(std::isnan(capped[i]) && std::isnan(exponentials[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(, VectorKernels, testing::ValuesIn(Runnable().begin(), Runnable().end()),
                         [](const auto& table) { return table.param->isa; });

}  // namespace
}  // namespace tael::kernels
