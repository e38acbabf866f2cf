// Look-ups on a parsed file. Every Value was validated by the parser, so sizes are trusted here;
// types and ranges are not, since they depend on who asks.
#include "gguf/file.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "gguf/reader.h"

namespace tael::gguf {
namespace {

constexpr std::array<std::string_view, 13> kValueTypeNames = {
    "uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
    "bool",  "string", "array",  "uint64", "int64",  "float64"};

// "array of int32" or just "string".
std::string Describe(const Value& value) {
  if (value.type != ValueType::kArray) return std::string(ToString(value.type));
  return "array of " + std::string(ToString(value.element_type));
}

Error WrongType(std::string_view key, const char* wanted, const Value& value) {
  return Error{ErrorCode::kMalformed, "a metadata value has the wrong type",
               Quote(key) + " should be " + wanted + " but is " + Describe(value)};
}

Error OutOfRange(std::string_view key, const char* wanted) {
  return Error{ErrorCode::kMalformed, "a metadata value is out of range",
               Quote(key) + " does not fit " + wanted};
}

bool IsInteger(ValueType type) {
  return FixedBytes(type) != 0 && type != ValueType::kBool && type != ValueType::kFloat32 &&
         type != ValueType::kFloat64;
}

bool IsNumber(ValueType type) { return FixedBytes(type) != 0 && type != ValueType::kBool; }

template <class T>
std::optional<uint64_t> LoadNonNegative(const std::byte* data) {
  const T value = LoadUnaligned<T>(data);
  if (value < 0) return std::nullopt;
  return static_cast<uint64_t>(value);
}

// Nothing for a negative number. Requires: IsInteger(type) or a bool.
std::optional<uint64_t> LoadUint(ValueType type, const std::byte* data) {
  switch (type) {
    case ValueType::kBool:
      return LoadUnaligned<uint8_t>(data) != 0 ? 1 : 0;
    case ValueType::kUint8:
      return LoadUnaligned<uint8_t>(data);
    case ValueType::kUint16:
      return LoadUnaligned<uint16_t>(data);
    case ValueType::kUint32:
      return LoadUnaligned<uint32_t>(data);
    case ValueType::kInt8:
      return LoadNonNegative<int8_t>(data);
    case ValueType::kInt16:
      return LoadNonNegative<int16_t>(data);
    case ValueType::kInt32:
      return LoadNonNegative<int32_t>(data);
    case ValueType::kInt64:
      return LoadNonNegative<int64_t>(data);
    default:
      return LoadUnaligned<uint64_t>(data);
  }
}

// Requires: IsNumber(type).
double LoadDouble(ValueType type, const std::byte* data) {
  switch (type) {
    case ValueType::kFloat32:
      return static_cast<double>(LoadUnaligned<float>(data));
    case ValueType::kFloat64:
      return LoadUnaligned<double>(data);
    case ValueType::kInt8:
      return LoadUnaligned<int8_t>(data);
    case ValueType::kInt16:
      return LoadUnaligned<int16_t>(data);
    case ValueType::kInt32:
      return LoadUnaligned<int32_t>(data);
    case ValueType::kInt64:
      return static_cast<double>(LoadUnaligned<int64_t>(data));
    default:
      return static_cast<double>(LoadUint(type, data).value_or(0));
  }
}

}  // namespace

std::string_view ToString(ValueType type) {
  const auto id = static_cast<size_t>(type);
  return id < kValueTypeNames.size() ? kValueTypeNames[id] : "unknown";
}

uint64_t FixedBytes(ValueType type) {
  constexpr std::array<uint8_t, 13> kBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  const auto id = static_cast<size_t>(type);
  return id < kBytes.size() ? kBytes[id] : 0;
}

std::string Quote(std::string_view name) {
  constexpr size_t kMaxShown = 96;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : name.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '"' && c != '\\') {
      out += c;
    } else {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out + (name.size() > kMaxShown ? "...\"" : "\"");
}

std::string_view StringCursor::Next() {
  TAEL_CHECK(data_.size() >= sizeof(uint64_t));
  const auto length = LoadUnaligned<uint64_t>(data_.data());
  data_ = data_.subspan(sizeof(uint64_t));
  TAEL_CHECK(length <= data_.size());
  const std::string_view out(reinterpret_cast<const char*>(data_.data()), length);
  data_ = data_.subspan(length);
  return out;
}

const TensorInfo* File::FindTensor(std::string_view name) const {
  const auto at = std::lower_bound(
      tensors_by_name_.begin(), tensors_by_name_.end(), name,
      [this](uint32_t index, std::string_view wanted) { return tensors_[index].name < wanted; });
  if (at == tensors_by_name_.end() || tensors_[*at].name != name) return nullptr;
  return &tensors_[*at];
}

std::span<const std::byte> File::TensorData(const TensorInfo& tensor) const {
  return bytes_.subspan(tensor.offset, tensor.bytes);
}

const Value* File::Find(std::string_view key) const {
  const auto at = std::lower_bound(
      metadata_by_key_.begin(), metadata_by_key_.end(), key,
      [this](uint32_t index, std::string_view wanted) { return metadata_[index].first < wanted; });
  if (at == metadata_by_key_.end() || metadata_[*at].first != key) return nullptr;
  return &metadata_[*at].second;
}

Result<std::optional<uint64_t>> File::GetUint(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::optional<uint64_t>();
  if (!IsInteger(value->type)) return WrongType(key, "an integer", *value);
  const std::optional<uint64_t> number = LoadUint(value->type, value->data.data());
  if (!number) return OutOfRange(key, "an unsigned integer");
  return number;
}

Result<std::optional<double>> File::GetFloat(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::optional<double>();
  if (!IsNumber(value->type)) return WrongType(key, "a number", *value);
  return std::optional<double>(LoadDouble(value->type, value->data.data()));
}

Result<std::optional<bool>> File::GetBool(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::optional<bool>();
  if (value->type != ValueType::kBool) return WrongType(key, "bool", *value);
  return std::optional<bool>(LoadUint(ValueType::kBool, value->data.data()) != 0);
}

Result<std::optional<std::string_view>> File::GetString(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::optional<std::string_view>();
  if (value->type != ValueType::kString) return WrongType(key, "string", *value);
  return std::optional<std::string_view>(StringCursor(value->data).Next());
}

Result<std::optional<std::vector<uint32_t>>> File::GetUintArray(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::optional<std::vector<uint32_t>>();
  const ValueType type = value->element_type;
  if (!IsInteger(type) && !(type == ValueType::kBool && value->type == ValueType::kArray)) {
    return WrongType(key, "an array of integers", *value);
  }
  std::vector<uint32_t> out;
  out.reserve(value->count);
  const uint64_t step = FixedBytes(type);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<uint64_t> number = LoadUint(type, value->data.data() + i * step);
    if (!number || *number > std::numeric_limits<uint32_t>::max()) {
      return OutOfRange(key, "an array of 32-bit unsigned integers");
    }
    out.push_back(static_cast<uint32_t>(*number));
  }
  return std::optional(std::move(out));
}

Result<std::optional<std::vector<float>>> File::GetFloatArray(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::optional<std::vector<float>>();
  const ValueType type = value->element_type;
  if (!IsNumber(type)) return WrongType(key, "an array of numbers", *value);
  std::vector<float> out;
  out.reserve(value->count);
  const uint64_t step = FixedBytes(type);
  for (uint64_t i = 0; i < value->count; ++i) {
    const double number = LoadDouble(type, value->data.data() + i * step);
    if (std::isfinite(number) && std::abs(number) > std::numeric_limits<float>::max()) {
      return OutOfRange(key, "an array of floats");
    }
    out.push_back(static_cast<float>(number));
  }
  return std::optional(std::move(out));
}

}  // namespace tael::gguf
