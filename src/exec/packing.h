// Which packed forms of one input the matrices that share it ask for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "exec/workspace.h"
#include "kernels/kernels.h"
#include "model/weights.h"

namespace tael::exec {

// The packing that a matrix wants of `num_tokens` rows.
kernels::ActFormat FormatOf(const model::Matrix& matrix, size_t num_tokens, Compute compute);

// One input in every packing that its users want. f32 rows are not packed: `rows` is used as it is.
struct PackedInput {
  struct Entry {
    kernels::ActFormat format{};
    std::byte* data = nullptr;
  };
  std::array<Entry, kMaxPackings> entries{};
  size_t count = 0;

  // Null if this packing was not made.
  const std::byte* Find(kernels::ActFormat format) const;
  // Adds each packing that is missing, laid out from `memory` on.
  static PackedInput For(std::initializer_list<const model::Matrix*> users, size_t num_tokens,
                         Compute compute, std::byte* memory);
};

// Bytes that PackedInput::For() lays out.
uint64_t PackedBytes(std::initializer_list<const model::Matrix*> users, size_t num_tokens,
                     Compute compute);

}  // namespace tael::exec
