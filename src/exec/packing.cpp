#include "exec/packing.h"

#include "base/check.h"
#include "base/checked.h"

namespace tael::exec {

using kernels::ActFormat;

ActFormat FormatOf(const model::Matrix& matrix, size_t num_tokens, Compute compute) {
  if (compute == Compute::kReference) return ActFormat::kF32Rows;
  return kernels::Active().matmul.act_format(matrix.type, num_tokens);
}

const std::byte* PackedInput::Find(ActFormat format) const {
  for (size_t i = 0; i < count; ++i) {
    if (entries[i].format == format) return entries[i].data;
  }
  return nullptr;
}

PackedInput PackedInput::For(std::initializer_list<const model::Matrix*> users, size_t num_tokens,
                             Compute compute, std::byte* memory) {
  PackedInput out;
  for (const model::Matrix* matrix : users) {
    const ActFormat format = FormatOf(*matrix, num_tokens, compute);
    if (format == ActFormat::kF32Rows || out.Find(format) != nullptr) continue;
    TAEL_CHECK(out.count < kMaxPackings);
    out.entries[out.count++] = {format, memory};
    const size_t bytes = kernels::Active().matmul.act_bytes(format, num_tokens, matrix->cols);
    memory += RoundUp<size_t>(bytes, kernels::kCacheLine);
  }
  return out;
}

uint64_t PackedBytes(std::initializer_list<const model::Matrix*> users, size_t num_tokens,
                     Compute compute) {
  std::array<ActFormat, kMaxPackings> seen{};
  size_t count = 0;
  uint64_t bytes = 0;
  for (const model::Matrix* matrix : users) {
    const ActFormat format = FormatOf(*matrix, num_tokens, compute);
    bool known = format == ActFormat::kF32Rows;
    for (size_t i = 0; i < count; ++i) known = known || seen[i] == format;
    if (known) continue;
    TAEL_CHECK(count < kMaxPackings);
    seen[count++] = format;
    bytes += RoundUp<uint64_t>(kernels::Active().matmul.act_bytes(format, num_tokens, matrix->cols),
                               kernels::kCacheLine);
  }
  return bytes;
}

}  // namespace tael::exec
