// Element-wise kernels in plain C++: the definition of correct that every ISA is tested against.
// Sums run in double, so that a long row does not decide how good the yardstick is.
// Math comes through the compiler's builtins: the overloads of <cmath> are inline functions, and an
// ISA object may export none (tools/check-isa-objects).
#include "kernels/isa/exact_scales.h"
#include "kernels/kernels.h"

namespace tael::kernels {
namespace {

void RmsNorm(const float* x, const float* weight, float eps, size_t n, float* out) {
  double sum = 0.0;
  for (size_t i = 0; i < n; ++i) sum += double{x[i]} * double{x[i]};
  const double mean = sum / static_cast<double>(n);
  const float factor = static_cast<float>(1.0 / __builtin_sqrt(mean + double{eps}));
  for (size_t i = 0; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

void Add(float* x, const float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] += y[i];
}

void Scale(float* x, float factor, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] *= factor;
}

void RopeHalves(float* x, const float* cos, const float* sin, size_t half) {
  for (size_t i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

void RopePairs(float* x, const float* cos, const float* sin, size_t half) {
  for (size_t i = 0; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

void SiluMul(const float* gate, const float* up, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) {
    const float g = gate[i];
    out[i] = g / (1.0f + __builtin_expf(-g)) * up[i];
  }
}

// 0.5 g (1 + tanh(u)) with u = sqrt(2/pi) (g + 0.044715 g^3), written as g / (1 + exp(-2u)): the
// same function, without the cancellation of 1 + tanh(u) at negative g.
void GeluMul(const float* gate, const float* up, size_t n, float* out) {
  constexpr float kTwoSqrt2OverPi = 1.5957691216057308f;
  for (size_t i = 0; i < n; ++i) {
    const float g = gate[i];
    const float two_u = kTwoSqrt2OverPi * (g + 0.044715f * g * g * g);
    out[i] = g / (1.0f + __builtin_expf(-two_u)) * up[i];
  }
}

void Softcap(float* x, float cap, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] = cap * __builtin_tanhf(x[i] / cap);
}

float Max(const float* x, size_t n) {
  float best = x[0];
  for (size_t i = 1; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

float ExpSum(float* x, float max, size_t n) {
  double sum = 0.0;
  for (size_t i = 0; i < n; ++i) {
    x[i] = __builtin_expf(x[i] - max);
    sum += double{x[i]};
  }
  return static_cast<float>(sum);
}

void Hadamard(float* x, size_t n) {
  const size_t run = HadamardRun(n);
  for (size_t half = 1; half < run; half *= 2) {
    for (size_t begin = 0; begin < n; begin += 2 * half) {
      for (size_t i = begin; i < begin + half; ++i) {
        const float a = x[i];
        const float b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  Scale(x, HadamardFactor(run), n);
}

}  // namespace

extern const VectorTable kScalarVector;
const VectorTable kScalarVector = {
    .rms_norm = RmsNorm,
    .add = Add,
    .scale = Scale,
    .rope_halves = RopeHalves,
    .rope_pairs = RopePairs,
    .silu_mul = SiluMul,
    .gelu_mul = GeluMul,
    .softcap = Softcap,
    .max = Max,
    .exp_sum = ExpSum,
    .hadamard = Hadamard,
};

}  // namespace tael::kernels
