// Which types of keys and values a model bears, measured: what `tael eval --kv-safety` writes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "cli/eval_score.h"
#include "cli/report.h"
#include "kernels/kernels.h"

namespace tael::cli {

// A text in one type beside the same in f16.
struct TypeScore {
  Score score;
  uint64_t bytes_per_token = 0;
  uint64_t full_bytes_per_token = 0;
  std::string model;  // engine::IdentityOf()
};

// None: the types that `auto` would choose.
using ScoreType = std::function<Result<TypeScore>(std::optional<kernels::KvTypes>)>;

// The noise floor (f32), then each type: the table of kv_safety_file.h.
Result<Json> MeasureKvSafety(const ScoreType& score);

// A line for each type, with its verdict.
std::string KvSafetyText(const Json& table);

}  // namespace tael::cli
