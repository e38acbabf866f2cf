#include "model/metadata.h"

#include <cmath>

namespace tael::model {
namespace {

Error OutOfRange(const std::string& key, const std::string& value, const std::string& min,
                 const std::string& max) {
  return Error{ErrorCode::kMalformed, "metadata value out of range",
               key + " is " + value + ", must be " + min + " to " + max};
}

}  // namespace

Result<uint32_t> Metadata::Uint(std::string_view key, uint32_t min, uint32_t max) const {
  if (!Has(key)) {
    return Error{ErrorCode::kMalformed, "metadata key missing", Full(key)};
  }
  return UintOr(key, min, max, min);
}

Result<uint32_t> Metadata::UintOr(std::string_view key, uint32_t min, uint32_t max,
                                  uint32_t fallback) const {
  const std::string full = Full(key);
  TAEL_ASSIGN_OR_RETURN(const auto value, file_->GetUint(full));
  if (!value) return fallback;
  if (*value < min || *value > max) {
    return OutOfRange(full, std::to_string(*value), std::to_string(min), std::to_string(max));
  }
  return static_cast<uint32_t>(*value);
}

Result<double> Metadata::FloatOr(std::string_view key, double min, double max,
                                 double fallback) const {
  const std::string full = Full(key);
  TAEL_ASSIGN_OR_RETURN(const auto value, file_->GetFloat(full));
  if (!value) return fallback;
  if (!std::isfinite(*value) || *value < min || *value > max) {
    return OutOfRange(full, std::to_string(*value), std::to_string(min), std::to_string(max));
  }
  return *value;
}

Result<std::string> Metadata::StringOr(std::string_view key, std::string fallback) const {
  TAEL_ASSIGN_OR_RETURN(const auto value, file_->GetString(Full(key)));
  return value ? std::string(*value) : std::move(fallback);
}

}  // namespace tael::model
