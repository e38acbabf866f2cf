// What was measured of a model's types of keys and values, and what `--kv-type auto` makes of it.
// Measuring and the file are the program's business (cli/eval_safety.h,
// cli/kv_safety_file.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/kernels.h"
#include "model/model.h"

namespace tael::engine {

// KL per token above the noise floor, in nats, that counts as safe.
inline constexpr double kMostKlOfQ8 = 0.001;
inline constexpr double kMostKlOfK8V4 = 0.015;
// And how often the likeliest token has to be the same.
inline constexpr double kLeastTop1OfQ8 = 0.98;
inline constexpr double kLeastTop1OfK8V4 = 0.90;

// A model's table, as far as a choice needs it.
struct KvSafety {
  std::string model;  // IdentityOf() the model that was measured
  bool q8_is_safe = true;
  bool k8v4_is_safe = true;
};

// Why keys and values have the types that they have.
enum class KvReason : uint8_t {
  kAsked,    // by whoever gave options
  kRisky,    // the same, though the type was measured not to be safe
  kUsual,    // auto, and nobody has measured the model
  kSafe,     // auto, q8 was measured to be safe
  kUnsafe,   // auto, q8 was measured not to be: f16
  kForeign,  // auto, the table is of another model: as if there were none
};

std::string_view ToString(KvReason reason);  // "asked", "usual", ...
// For people, behind a type: "measured to be safe".
std::string_view Describe(KvReason reason);

// Of types that somebody asked for. Reads some pages of the model where there is a table.
KvReason ReasonForAsked(const model::Model& model, kernels::KvTypes types,
                        const std::optional<KvSafety>& table);
// What `auto` comes to. Reads some pages of the model where there is a table.
KvReason ChooseAuto(const model::Model& model, const std::optional<KvSafety>& table);

}  // namespace tael::engine
