// Helpers of the golden tests.
#pragma once

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>

namespace tael {

// log(sum(exp(logits))), in double.
inline double LogSumExp(std::span<const float> logits) {
  double top = -INFINITY;
  for (float x : logits) top = std::max(top, static_cast<double>(x));
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x) - top);
  return top + std::log(sum);
}

// Path of a real model (scripts/get-model), "" when it is not there.
inline std::string RealModel(const std::string& name) {
  const char* folder = std::getenv("TAEL_TEST_MODELS");
  if (folder == nullptr) return "";
  const std::string path = std::string(folder) + "/" + name + ".gguf";
  return std::filesystem::exists(path) ? path : "";
}

}  // namespace tael
