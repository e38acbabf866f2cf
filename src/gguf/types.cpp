#include "gguf/types.h"

#include <array>
#include <cstddef>

#include "base/checked.h"

namespace tael::gguf {
namespace {

constexpr TypeTraits kNoType = {"", 0, 0, false};

// Indexed by the format's id. Holes are ids that were withdrawn or never given.
constexpr std::array<TypeTraits, 43> kTraits = {{
    {"F32", 1, 4, true},
    {"F16", 1, 2, true},
    {"Q4_0", 32, 18, true},
    {"Q4_1", 32, 20, true},
    kNoType,
    kNoType,
    {"Q5_0", 32, 22, true},
    {"Q5_1", 32, 24, true},
    {"Q8_0", 32, 34, true},
    {"Q8_1", 32, 36, false},
    {"Q2_K", 256, 84, true},
    {"Q3_K", 256, 110, true},
    {"Q4_K", 256, 144, true},
    {"Q5_K", 256, 176, true},
    {"Q6_K", 256, 210, true},
    {"Q8_K", 256, 292, false},
    {"IQ2_XXS", 256, 66, false},
    {"IQ2_XS", 256, 74, false},
    {"IQ3_XXS", 256, 98, false},
    {"IQ1_S", 256, 50, false},
    {"IQ4_NL", 32, 18, true},
    {"IQ3_S", 256, 110, false},
    {"IQ2_S", 256, 82, false},
    {"IQ4_XS", 256, 136, true},
    {"I8", 1, 1, false},
    {"I16", 1, 2, false},
    {"I32", 1, 4, false},
    {"I64", 1, 8, false},
    {"F64", 1, 8, false},
    {"IQ1_M", 256, 56, false},
    {"BF16", 1, 2, true},
    kNoType,
    kNoType,
    kNoType,
    {"TQ1_0", 256, 54, false},
    {"TQ2_0", 256, 66, false},
    kNoType,
    kNoType,
    kNoType,
    {"MXFP4", 32, 17, false},
    {"NVFP4", 64, 36, false},
    {"Q1_0", 128, 18, false},
    {"Q2_0", 64, 18, false},
}};

static_assert(kTraits[static_cast<size_t>(TensorType::kQ6_K)].name == "Q6_K");
static_assert(kTraits[static_cast<size_t>(TensorType::kIQ4_NL)].name == "IQ4_NL");
static_assert(kTraits[static_cast<size_t>(TensorType::kIQ4_XS)].name == "IQ4_XS");
static_assert(kTraits[static_cast<size_t>(TensorType::kBF16)].name == "BF16");

}  // namespace

const TypeTraits* FindTypeTraits(TensorType type) {
  const auto id = static_cast<size_t>(type);
  if (id >= kTraits.size() || kTraits[id].block_bytes == 0) return nullptr;
  return &kTraits[id];
}

std::string_view TypeName(TensorType type) {
  const TypeTraits* traits = FindTypeTraits(type);
  return traits != nullptr ? traits->name : "unknown";
}

std::optional<uint64_t> TensorBytes(TensorType type, std::span<const uint64_t> shape) {
  const TypeTraits* traits = FindTypeTraits(type);
  if (traits == nullptr || shape.empty() || shape[0] % traits->block_elements != 0) {
    return std::nullopt;
  }
  std::optional<uint64_t> bytes =
      CheckedMul<uint64_t>(shape[0] / traits->block_elements, traits->block_bytes);
  for (const uint64_t size : shape.subspan(1)) {
    if (bytes) bytes = CheckedMul(*bytes, size);
  }
  return bytes.value_or(0) != 0 ? bytes : std::nullopt;
}

}  // namespace tael::gguf
