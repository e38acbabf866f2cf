// A GGUF file (v2 or v3, little endian), parsed from untrusted bytes into a validated description.
//
// Everything is checked once, in Parse(): after it, every view that a File hands out lies inside
// the bytes, every tensor's data lies inside the file, and no arithmetic on its numbers can
// overflow. Nothing of the file is copied but names and offsets; the bytes must outlive the File.
//
// Refused, each with an error that names the key or tensor: wrong magic, big endian, v1 and unknown
// versions, counts or lengths that the file cannot hold or that pass the limits below, duplicate
// keys or tensor names, nested arrays, unknown value types, an alignment that is no power of two
// from 8 to 64 KiB, tensors of a type without a known size, zero or overflowing dimensions, rows
// that are no whole number of blocks, unaligned, overlapping or out-of-file data.
//
// Parse() takes less than 100 ms and less than 16 MiB of heap for any bytes, because look-ups are
// sorted (no hash to attack) and because of the limits, each far above what real files hold.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "gguf/types.h"

namespace tael::gguf {

inline constexpr uint64_t kMaxMetadataKeys = 4096;
inline constexpr uint64_t kMaxKeyBytes = 1024;
inline constexpr uint64_t kMaxStringBytes = 1u << 24;
inline constexpr uint64_t kMaxArrayElements = 1u << 24;
inline constexpr uint64_t kMaxArrayStrings = 1u << 22;  // of all arrays together: each is visited
inline constexpr uint64_t kMaxTensors = 1u << 15;
inline constexpr uint64_t kMaxTensorNameBytes = 255;
inline constexpr uint64_t kMinAlignment = 8;
inline constexpr uint64_t kDefaultAlignment = 32;
inline constexpr uint64_t kMaxAlignment = 1u << 16;

enum class ValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
std::string_view ToString(ValueType type);  // "uint32"; "unknown" for no value of the format

// Bytes of one number or bool; 0 for strings, arrays and unknown types.
uint64_t FixedBytes(ValueType type);

// A name out of a file, fit for a message: in quotes, printable ASCII, shortened.
std::string Quote(std::string_view name);

// A metadata value, still in the file. For an array, `element_type` and `count` describe it. A
// string, alone or in an array, is its 64-bit length and then its bytes.
struct Value {
  ValueType type = ValueType::kUint8;
  ValueType element_type = ValueType::kUint8;  // of an array; else == type
  uint64_t count = 1;                          // elements of an array; else 1
  std::span<const std::byte> data;             // raw elements, validated
};

// Sequential reader over an array of strings (their lengths vary, so there is no random access).
class StringCursor {
 public:
  explicit StringCursor(std::span<const std::byte> data) : data_(data) {}
  // Requires: not called more often than the array has elements.
  std::string_view Next();

 private:
  std::span<const std::byte> data_;
};

struct TensorInfo {
  std::string_view name;
  TensorType type = TensorType::kF32;
  uint32_t num_dims = 0;
  std::array<uint64_t, 4> shape = {1, 1, 1, 1};  // shape[0] is the row length
  uint64_t offset = 0;                           // of the data, from the start of the file
  uint64_t row_bytes = 0;                        // bytes of shape[0] values
  uint64_t bytes = 0;                            // of the whole tensor

  uint64_t num_rows() const { return shape[1] * shape[2] * shape[3]; }
};

class File {
 public:
  // Fails: kMalformed; kUnsupported (version, endianness, a tensor type this build cannot size).
  static Result<File> Parse(std::span<const std::byte> bytes);

  uint32_t version() const { return version_; }
  uint64_t alignment() const { return alignment_; }
  uint64_t data_offset() const { return data_offset_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // In file order.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* FindTensor(std::string_view name) const;  // null if absent
  std::span<const std::byte> TensorData(const TensorInfo& tensor) const;

  // Metadata keys in file order.
  const std::vector<std::pair<std::string_view, Value>>& metadata() const { return metadata_; }
  const Value* Find(std::string_view key) const;  // null if absent

  // Typed look-ups. An absent key is nullopt; a key of a type that cannot hold what is asked for
  // fails with kMalformed, naming the key and both types. Integers of any width and sign convert
  // when the value fits.
  Result<std::optional<uint64_t>> GetUint(std::string_view key) const;
  Result<std::optional<double>> GetFloat(std::string_view key) const;
  Result<std::optional<bool>> GetBool(std::string_view key) const;
  Result<std::optional<std::string_view>> GetString(std::string_view key) const;
  // An array of integers (or one integer, as an array of one), each in [0, 2^32); bools are 0, 1.
  Result<std::optional<std::vector<uint32_t>>> GetUintArray(std::string_view key) const;
  // Numbers of any type (or one number, as an array of one) that a float can hold.
  Result<std::optional<std::vector<float>>> GetFloatArray(std::string_view key) const;

 private:
  friend class Parser;

  std::span<const std::byte> bytes_;
  uint32_t version_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  uint64_t data_offset_ = 0;
  std::vector<TensorInfo> tensors_;
  std::vector<uint32_t> tensors_by_name_;  // indices, sorted
  std::vector<std::pair<std::string_view, Value>> metadata_;
  std::vector<uint32_t> metadata_by_key_;  // indices, sorted
};

}  // namespace tael::gguf
