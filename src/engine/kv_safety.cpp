#include "engine/kv_safety.h"

#include "engine/model_identity.h"

namespace tael::engine {

std::string_view ToString(KvReason reason) {
  switch (reason) {
    case KvReason::kAsked:
      return "asked";
    case KvReason::kRisky:
      return "risky";
    case KvReason::kUsual:
      return "usual";
    case KvReason::kSafe:
      return "safe";
    case KvReason::kUnsafe:
      return "unsafe";
    case KvReason::kForeign:
      return "foreign";
  }
  return "?";
}

std::string_view Describe(KvReason reason) {
  switch (reason) {
    case KvReason::kAsked:
      return "as asked for";
    case KvReason::kRisky:
      return "as asked for, though measured to be unsafe for this model";
    case KvReason::kUsual:
    case KvReason::kForeign:
      return "not measured for this model: tael eval --kv-safety";
    case KvReason::kSafe:
      return "measured to be safe";
    case KvReason::kUnsafe:
      return "since q8 was measured to be unsafe for this model";
  }
  return "?";
}

KvReason ReasonForAsked(const model::Model& model, kernels::KvTypes types,
                        const std::optional<KvSafety>& table) {
  using kernels::KvType;
  if (!table || table->model != IdentityOf(model)) return KvReason::kAsked;
  const bool has_q4 = types.k == KvType::kQ4 || types.v == KvType::kQ4;
  const bool has_q8 = types.k == KvType::kQ8 || types.v == KvType::kQ8;
  const bool risky = (has_q4 && !table->k8v4_is_safe) || (has_q8 && !table->q8_is_safe);
  return risky ? KvReason::kRisky : KvReason::kAsked;
}

KvReason ChooseAuto(const model::Model& model, const std::optional<KvSafety>& table) {
  if (!table) return KvReason::kUsual;
  if (table->model != IdentityOf(model)) return KvReason::kForeign;
  return table->q8_is_safe ? KvReason::kSafe : KvReason::kUnsafe;
}

}  // namespace tael::engine
