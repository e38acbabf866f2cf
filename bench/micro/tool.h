// What the programs here share: giving up with a line, flags with numbers, medians with an
// interval.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <string_view>
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

// The numbers that may follow a flag, by flag.
using Numbers = std::vector<std::pair<std::string_view, uint32_t*>>;
// Sets them from pairs of a flag and its value behind the first argument, which is returned: a
// model.
inline std::string ParseModel(std::span<char*> args, const Numbers& numbers) {
  if (args.size() < 2 || args.size() % 2 != 0) Fail("a model, then pairs of a flag and its value");
  for (size_t i = 2; i < args.size(); i += 2) {
    const auto found = std::ranges::find(numbers, std::string_view(args[i]),
                                         [](const auto& number) { return number.first; });
    if (found == numbers.end()) Fail(std::string("unknown flag ") + args[i]);
    *found->second = static_cast<uint32_t>(std::strtoul(args[i + 1], nullptr, 10));
  }
  return args[1];
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
