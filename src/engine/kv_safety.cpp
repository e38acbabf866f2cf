#include "engine/kv_safety.h"

#include "engine/model_identity.h"

namespace tael::engine {

std::string_view ToString(KvReason reason) {
  switch (reason) {
    case KvReason::kAsked:
      return "asked";
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

KvReason ChooseAuto(const model::Model& model, const std::optional<KvSafety>& table) {
  if (!table) return KvReason::kUsual;
  if (table->model != IdentityOf(model)) return KvReason::kForeign;
  return table->q8_is_safe ? KvReason::kSafe : KvReason::kUnsafe;
}

}  // namespace tael::engine
