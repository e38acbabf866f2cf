#include "cli/eval_safety.h"

#include <algorithm>

#include "engine/kv_safety.h"

namespace tael::cli {
namespace {

// KL that is there without any quantised key: the distance of f16's last bits, as the model blows
// it up.
Json ToJson(const TypeScore& measured, double floor, double most_kl, double least_top1) {
  const double kl = measured.score.MeanKl();
  const double above = std::max(0.0, kl - floor);
  const double top1 = measured.score.top1_agreement();
  return {{"kl_mean", kl},
          {"kl_above_floor", above},
          {"kl_at_most", most_kl},
          {"top1_agreement", top1},
          {"top1_at_least", least_top1},
          {"bytes_per_token", measured.bytes_per_token},
          {"bytes_of_f16", static_cast<double>(measured.bytes_per_token) /
                               static_cast<double>(measured.full_bytes_per_token)},
          {"safe", above <= most_kl && top1 >= least_top1}};
}

}  // namespace

Result<Json> MeasureKvSafety(const ScoreType& score) {
  using kernels::KvType, kernels::KvTypes;
  TAEL_ASSIGN_OR_RETURN(const TypeScore f32, score(KvTypes{KvType::kF32}));
  const double floor = f32.score.MeanKl();
  TAEL_ASSIGN_OR_RETURN(const TypeScore q8, score(std::nullopt));
  TAEL_ASSIGN_OR_RETURN(const TypeScore k8v4, score(KvTypes{KvType::kQ8, KvType::kQ4}));
  return Json{{"model", f32.model},
              {"scored_tokens", f32.score.count},
              {"kl_floor", floor},
              {"types",
               {{"q8", ToJson(q8, floor, engine::kMostKlOfQ8, engine::kLeastTop1OfQ8)},
                {"k8v4", ToJson(k8v4, floor, engine::kMostKlOfK8V4, engine::kLeastTop1OfK8V4)}}}};
}

std::string KvSafetyText(const Json& table) {
  std::string text = "noise floor: KL " + Format(table["kl_floor"].get<double>(), 6) + " over " +
                     std::to_string(table["scored_tokens"].get<uint64_t>()) + " tokens\n";
  for (const auto& [name, type] : table["types"].items()) {
    text += name + ": KL " + Format(type["kl_above_floor"].get<double>(), 5) +
            " above it (at most " + Format(type["kl_at_most"].get<double>(), 3) +
            "), same top token " + Format(100 * type["top1_agreement"].get<double>(), 1) +
            " % (at least " + Format(100 * type["top1_at_least"].get<double>(), 0) + "), " +
            Format(type["bytes_of_f16"].get<double>(), 3) +
            " of f16's bytes: " + (type["safe"].get<bool>() ? "safe" : "unsafe") + "\n";
  }
  return text;
}

}  // namespace tael::cli
