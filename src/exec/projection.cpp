#include "exec/projection.h"

#include <numeric>

#include "base/check.h"

namespace tael::exec {
namespace {

// Matrix rows are dealt out in whole panels of the kernels.
constexpr size_t kRowGranule = 16;

void PackRange(const Pass& pass, const Input& input, size_t width, Range range) {
  for (size_t i = 0; i < input.packed.count; ++i) {
    const PackedInput::Entry& entry = input.packed.entries[i];
    pass.kernels.matmul.pack_act(entry.format, {.x = input.rows,
                                                .x_stride = width,
                                                .token_begin = range.begin,
                                                .token_end = range.end,
                                                .num_tokens = input.num_rows,
                                                .k = width,
                                                .out = entry.data});
  }
}

}  // namespace

Input PrepareInput(const Pass& pass, size_t thread, const InputSpec& spec, RowSource source) {
  const Compute compute = pass.workspace.shape().compute;
  const bool single = spec.num_rows == 1;
  Input input;
  input.num_rows = spec.num_rows;
  input.packed =
      PackedInput::For(spec.users, spec.num_rows, compute,
                       single ? pass.scratch(thread).packed : pass.workspace.bytes(spec.packed));
  if (single) {
    input.rows = source(0, pass.scratch(thread).row);
    PackRange(pass, input, spec.width, {0, 1});
    return input;
  }
  size_t granule = 1;
  for (size_t i = 0; i < input.packed.count; ++i) {
    granule =
        std::lcm(granule, pass.kernels.matmul.act_tile_tokens(input.packed.entries[i].format));
  }
  const Range mine = SplitRange(spec.num_rows, granule, thread, pass.team.size());
  for (size_t row = mine.begin; row < mine.end; ++row) source(row, spec.rows + row * spec.width);
  input.rows = spec.rows;
  PackRange(pass, input, spec.width, mine);
  pass.team.Barrier();
  return input;
}

Range Project(const Pass& pass, size_t thread, const Input& input, const model::Matrix& matrix,
              const float* bias, float* y, size_t y_stride) {
  const Compute compute = pass.workspace.shape().compute;
  const Range range = SplitRange(matrix.rows, kRowGranule, thread, pass.team.size());
  if (range.begin == range.end) return range;
  const kernels::ActFormat format = FormatOf(matrix, input.num_rows, compute);
  const std::byte* act = format == kernels::ActFormat::kF32Rows
                             ? reinterpret_cast<const std::byte*>(input.rows)
                             : input.packed.Find(format);
  TAEL_CHECK(act != nullptr);
  const auto& table =
      compute == Compute::kReference ? pass.kernels.matmul.matmul_f32 : pass.kernels.matmul.matmul;
  table[static_cast<size_t>(matrix.type)]({.w = matrix.data,
                                           .row_bytes = matrix.row_bytes,
                                           .k = matrix.cols,
                                           .row_begin = range.begin,
                                           .row_end = range.end,
                                           .act = act,
                                           .num_tokens = input.num_rows,
                                           .y = y,
                                           .y_stride = y_stride,
                                           .scratch = pass.scratch(thread).matmul});
  if (bias != nullptr) {
    for (size_t row = 0; row < input.num_rows; ++row) {
      pass.kernels.vec.add(y + row * y_stride + range.begin, bias + range.begin,
                           range.end - range.begin);
    }
  }
  return range;
}

}  // namespace tael::exec
