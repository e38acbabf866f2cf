#include "sample/divergence.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace tael::sample {

// With a = logits - max of one row and b of the other, p = e^a / P, P = sum e^a, Q = sum e^b:
//
//   sum p (ln p - ln q) = sum e^a (a - b) / P - ln P + ln Q
Divergence Diverge(std::span<const float> reference, std::span<const float> other) {
  TAEL_CHECK(!reference.empty() && reference.size() == other.size());
  const auto top_a = std::max_element(reference.begin(), reference.end());
  const auto top_b = std::max_element(other.begin(), other.end());
  double p = 0, q = 0, weighted = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double a = static_cast<double>(reference[i]) - static_cast<double>(*top_a);
    const double b = static_cast<double>(other[i]) - static_cast<double>(*top_b);
    const double e = std::exp(a);
    p += e;
    q += std::exp(b);
    weighted += e * (a - b);
  }
  const double kl = weighted / p - std::log(p) + std::log(q);
  return {.kl = kl < 0 ? 0 : kl,  // rounding
          .same_top = top_a - reference.begin() == top_b - other.begin()};
}

}  // namespace tael::sample
