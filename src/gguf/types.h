// The tensor types of the GGUF format: names, block sizes and bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tael::gguf {

// Values are the format's own. A file may hold ids that are not listed here; FindTypeTraits()
// tells.
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
};

struct TypeTraits {
  std::string_view name;    // "Q4_K"
  uint32_t block_elements;  // values per block
  uint32_t block_bytes;     // bytes per block
  bool supported;           // Tael can compute with it; others are only named and sized
};

// Null for an id this build has never heard of.
const TypeTraits* FindTypeTraits(TensorType type);

// "Q4_K", or "unknown" where FindTypeTraits() is null; error messages add the number.
std::string_view TypeName(TensorType type);

// Bytes of a tensor whose rows are shape[0] values long. Nothing for an unknown type, no
// dimensions, a zero dimension, a row that is no whole number of blocks, or a size of 2^64 or more.
std::optional<uint64_t> TensorBytes(TensorType type, std::span<const uint64_t> shape);

}  // namespace tael::gguf
