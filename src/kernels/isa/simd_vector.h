// Element-wise kernels, written once over a vector type S (avx2_simd.h, avx512_simd.h,
// neon_simd.h).
//
// Only the *_vector.cpp of an ISA includes this file. Everything lies in an unnamed namespace, so
// that each object keeps its own copy: an instantiation with external linkage could be the copy
// the linker keeps for every CPU.
//
// S: Vec, kLanes, Set1, Load, Store, LoadPart(p, n) (zero-filled), StorePart, Add, Sub, Mul, Div,
//    Min, Max, Fma(a, b, c) = a * b + c, Abs, CopySign(magnitude, sign), Round,
//    SelectLess(a, b, x, y) = a < b ? x : y, Exp2(n) = 2^n for whole n in [-126, 128],
//    ReduceAdd, ReduceMax, RotatePairs(x, cos, sin) for kLanes / 2 pairs,
//    Butterfly<half>(v): lanes i and i + half become a + b and a - b.
// Min and Max return their second argument when it is a NaN.
#pragma once

#include "kernels/isa/exact_scales.h"
#include "kernels/kernels.h"

namespace tael::kernels {
namespace {

inline constexpr float kTwoSqrt2OverPi = 1.5957691216057308f;

// exp(x) within 2 ulp. x = n ln 2 + r with |r| <= ln 2 / 2, then a polynomial of degree 6 in r
// (minimax fit, relative error 3.1e-9) times 2^n. Below the smallest normal number the result is 0:
// a denormal weight means nothing and costs some CPUs 100 cycles each. NaN stays NaN.
template <typename S>
typename S::Vec Exp(typename S::Vec x) {
  constexpr float kSmallest = -87.336544f;  // ln(2^-126)
  constexpr float kLargest = 88.72284f;     // ln(FLT_MAX) rounded up: gives infinity
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693145752f;  // 15 bits: n * kLn2High is exact
  constexpr float kLn2Low = 1.42860677e-6f;
  const auto clamped = S::Min(S::Set1(kLargest), x);
  const auto n = S::Round(S::Mul(clamped, S::Set1(kLog2E)));
  auto r = S::Fma(n, S::Set1(-kLn2High), clamped);
  r = S::Fma(n, S::Set1(-kLn2Low), r);
  auto p = S::Set1(1.381454058e-3f);
  p = S::Fma(p, r, S::Set1(8.368745446e-3f));
  p = S::Fma(p, r, S::Set1(4.166838899e-2f));
  p = S::Fma(p, r, S::Set1(1.666652113e-1f));
  p = S::Fma(p, r, S::Set1(4.999999404e-1f));
  p = S::Fma(p, S::Mul(r, r), r);
  p = S::Add(p, S::Set1(1.0f));
  return S::SelectLess(x, S::Set1(kSmallest), S::Set1(0.0f), S::Mul(p, S::Exp2(n)));
}

// tanh(x) within 3 ulp: an odd polynomial below 0.625 (minimax fit, relative error 4.4e-9), where
// 1 - 2 / (exp(2x) + 1) would cancel, and that formula above.
template <typename S>
typename S::Vec Tanh(typename S::Vec x) {
  const auto a = S::Abs(x);
  const auto z = S::Mul(a, a);
  auto p = S::Set1(-5.704987328e-3f);
  p = S::Fma(p, z, S::Set1(2.063908800e-2f));
  p = S::Fma(p, z, S::Set1(-5.373971537e-2f));
  p = S::Fma(p, z, S::Set1(1.333144158e-1f));
  p = S::Fma(p, z, S::Set1(-3.333328068e-1f));
  const auto small = S::Fma(p, S::Mul(z, a), a);
  const auto one = S::Set1(1.0f);
  const auto e = Exp<S>(S::Add(a, a));
  const auto large = S::Sub(one, S::Div(S::Set1(2.0f), S::Add(e, one)));
  return S::CopySign(S::SelectLess(a, S::Set1(0.625f), small, large), x);
}

// x * sigmoid(y)
template <typename S>
typename S::Vec MulSigmoid(typename S::Vec x, typename S::Vec y) {
  const auto e = Exp<S>(S::Sub(S::Set1(0.0f), y));
  return S::Div(x, S::Add(S::Set1(1.0f), e));
}

template <typename S, typename F>
void Map(const float* x, size_t n, float* out, F f) {
  size_t i = 0;
  for (; i + S::kLanes <= n; i += S::kLanes) S::Store(out + i, f(S::Load(x + i)));
  if (i < n) S::StorePart(out + i, f(S::LoadPart(x + i, n - i)), n - i);
}

template <typename S, typename F>
void Map(const float* x, const float* y, size_t n, float* out, F f) {
  size_t i = 0;
  for (; i + S::kLanes <= n; i += S::kLanes) {
    S::Store(out + i, f(S::Load(x + i), S::Load(y + i)));
  }
  if (i < n) S::StorePart(out + i, f(S::LoadPart(x + i, n - i), S::LoadPart(y + i, n - i)), n - i);
}

// Four chains of additions, so that the latency of one does not set the pace.
template <typename S>
float SumOfSquares(const float* x, size_t n) {
  constexpr size_t kLanes = S::kLanes;
  auto a = S::Set1(0.0f), b = a, c = a, d = a;
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    const auto x0 = S::Load(x + i), x1 = S::Load(x + i + kLanes);
    const auto x2 = S::Load(x + i + 2 * kLanes), x3 = S::Load(x + i + 3 * kLanes);
    a = S::Fma(x0, x0, a);
    b = S::Fma(x1, x1, b);
    c = S::Fma(x2, x2, c);
    d = S::Fma(x3, x3, d);
  }
  for (; i + kLanes <= n; i += kLanes) {
    const auto x0 = S::Load(x + i);
    a = S::Fma(x0, x0, a);
  }
  if (i < n) {
    const auto x0 = S::LoadPart(x + i, n - i);
    b = S::Fma(x0, x0, b);
  }
  return S::ReduceAdd(S::Add(S::Add(a, b), S::Add(c, d)));
}

template <typename S>
void RmsNorm(const float* x, const float* weight, float eps, size_t n, float* out) {
  const float mean = SumOfSquares<S>(x, n) / static_cast<float>(n);
  const auto factor = S::Set1(1.0f / __builtin_sqrtf(mean + eps));
  Map<S>(x, weight, n, out, [factor](auto v, auto w) { return S::Mul(S::Mul(v, factor), w); });
}

template <typename S>
void Add(float* x, const float* y, size_t n) {
  Map<S>(x, y, n, x, [](auto a, auto b) { return S::Add(a, b); });
}

template <typename S>
void Scale(float* x, float factor, size_t n) {
  const auto f = S::Set1(factor);
  Map<S>(x, n, x, [f](auto v) { return S::Mul(v, f); });
}

template <typename S>
void RopeHalves(float* x, const float* cos, const float* sin, size_t half) {
  const auto rotate = [](auto a, auto b, auto c, auto s, auto& low, auto& high) {
    low = S::Fma(a, c, S::Mul(b, S::Sub(S::Set1(0.0f), s)));
    high = S::Fma(b, c, S::Mul(a, s));
  };
  float* y = x + half;
  typename S::Vec low, high;
  size_t i = 0;
  for (; i + S::kLanes <= half; i += S::kLanes) {
    rotate(S::Load(x + i), S::Load(y + i), S::Load(cos + i), S::Load(sin + i), low, high);
    S::Store(x + i, low);
    S::Store(y + i, high);
  }
  if (i == half) return;
  const size_t rest = half - i;
  rotate(S::LoadPart(x + i, rest), S::LoadPart(y + i, rest), S::LoadPart(cos + i, rest),
         S::LoadPart(sin + i, rest), low, high);
  S::StorePart(x + i, low, rest);
  S::StorePart(y + i, high, rest);
}

template <typename S>
void RopePairs(float* x, const float* cos, const float* sin, size_t half) {
  constexpr size_t kPairs = S::kLanes / 2;
  size_t i = 0;
  for (; i + kPairs <= half; i += kPairs) S::RotatePairs(x + 2 * i, cos + i, sin + i);
  for (; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

template <typename S>
void SiluMul(const float* gate, const float* up, size_t n, float* out) {
  Map<S>(gate, up, n, out, [](auto g, auto u) { return S::Mul(MulSigmoid<S>(g, g), u); });
}

// 0.5 g (1 + tanh(u)) with u = sqrt(2/pi) (g + 0.044715 g^3) is g * sigmoid(2u), which does not
// cancel at negative g.
template <typename S>
void GeluMul(const float* gate, const float* up, size_t n, float* out) {
  Map<S>(gate, up, n, out, [](auto g, auto u) {
    const auto cubic = S::Fma(S::Mul(g, g), S::Set1(0.044715f), S::Set1(1.0f));
    const auto two_u = S::Mul(S::Mul(g, S::Set1(kTwoSqrt2OverPi)), cubic);
    return S::Mul(MulSigmoid<S>(g, two_u), u);
  });
}

template <typename S>
void Softcap(float* x, float cap, size_t n) {
  const auto c = S::Set1(cap);
  Map<S>(x, n, x, [c](auto v) { return S::Mul(c, Tanh<S>(S::Div(v, c))); });
}

template <typename S>
float Max(const float* x, size_t n) {
  constexpr size_t kLanes = S::kLanes;
  float best = x[0];
  size_t i = 0;
  if (n >= kLanes) {
    auto a = S::Load(x), b = a;
    i = kLanes;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
      a = S::Max(a, S::Load(x + i));
      b = S::Max(b, S::Load(x + i + kLanes));
    }
    best = S::ReduceMax(S::Max(a, b));
  }
  for (; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

// Even vectors are added up in one place and odd ones in the other, also at the end: masked scores
// behind a row's last key, which only add zeros, must not change its sum.
template <typename S>
float ExpSum(float* x, float max, size_t n) {
  constexpr size_t kLanes = S::kLanes;
  const auto m = S::Set1(max);
  auto a = S::Set1(0.0f), b = a;
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const auto e0 = Exp<S>(S::Sub(S::Load(x + i), m));
    const auto e1 = Exp<S>(S::Sub(S::Load(x + i + kLanes), m));
    S::Store(x + i, e0);
    S::Store(x + i + kLanes, e1);
    a = S::Add(a, e0);
    b = S::Add(b, e1);
  }
  while (i < n) {  // one whole vector at most, then a part
    const size_t rest = n - i < kLanes ? n - i : kLanes;
    S::StorePart(x + i, Exp<S>(S::Sub(S::LoadPart(x + i, rest), m)), rest);
    auto& sum = i % (2 * kLanes) == 0 ? a : b;
    sum = S::Add(sum, S::LoadPart(x + i, rest));  // the unused lanes again hold 0
    i += rest;
  }
  return S::ReduceAdd(S::Add(a, b));
}

// The steps of a transform of `run` values that stay inside a vector.
template <typename S, size_t kHalf>
typename S::Vec Butterflies(typename S::Vec v, size_t run) {
  if constexpr (kHalf < S::kLanes) {
    if (kHalf < run) return Butterflies<S, 2 * kHalf>(S::template Butterfly<kHalf>(v), run);
  }
  return v;
}

template <typename S>
void Hadamard(float* x, size_t n) {
  constexpr size_t kLanes = S::kLanes;
  const size_t run = HadamardRun(n);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) S::Store(x + i, Butterflies<S, 1>(S::Load(x + i), run));
  if (i < n) {  // half a vector, with runs of no more
    S::StorePart(x + i, Butterflies<S, 1>(S::LoadPart(x + i, n - i), run), n - i);
  }
  for (size_t half = kLanes; half < run; half *= 2) {
    for (size_t begin = 0; begin < n; begin += 2 * half) {
      for (size_t j = begin; j < begin + half; j += kLanes) {
        const auto a = S::Load(x + j), b = S::Load(x + j + half);
        S::Store(x + j, S::Add(a, b));
        S::Store(x + j + half, S::Sub(a, b));
      }
    }
  }
  Scale<S>(x, HadamardFactor(run), n);
}

template <typename S>
constexpr VectorTable MakeVectorTable() {
  return {.rms_norm = RmsNorm<S>,
          .add = Add<S>,
          .scale = Scale<S>,
          .rope_halves = RopeHalves<S>,
          .rope_pairs = RopePairs<S>,
          .silu_mul = SiluMul<S>,
          .gelu_mul = GeluMul<S>,
          .softcap = Softcap<S>,
          .max = Max<S>,
          .exp_sum = ExpSum<S>,
          .hadamard = Hadamard<S>};
}

}  // namespace
}  // namespace tael::kernels
