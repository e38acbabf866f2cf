// What the programs here share: giving up with a line, and medians with an interval.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/result.h"

namespace tael::bench {

[[noreturn]] inline void Fail(const std::string& why) {
  std::fprintf(stderr, "error: %s\n", why.c_str());
  std::exit(2);
}

template <class T>
T Must(Result<T> result) {
  if (!result) Fail(result.error().Message());
  return *std::move(result);
}
inline void Must(const Status& status) {
  if (!status) Fail(status.error().Message());
}

// Requires: there are values.
inline double Median(std::vector<double> values) {
  TAEL_CHECK(!values.empty());
  std::ranges::sort(values);
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// A median, and the middle 95 % of the medians of resampled values (Efron's bootstrap).
struct Estimate {
  double median, low, high;
};
inline Estimate Bootstrap(const std::vector<double>& values, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<double> medians, sample(values.size());
  for (int i = 0; i < 2000; ++i) {
    for (double& x : sample) x = values[random() % values.size()];
    medians.push_back(Median(sample));
  }
  std::ranges::sort(medians);
  return {Median(values), medians[50], medians[1949]};
}

}  // namespace tael::bench
