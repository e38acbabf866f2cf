// Matrix products of a batch: rows are prepared (normed, merged ...), packed once for all matrices
// that share them, and multiplied, each thread with its own rows of the matrix.
#pragma once

#include <cstddef>
#include <initializer_list>

#include "exec/function_ref.h"
#include "exec/packing.h"
#include "exec/pass.h"
#include "exec/thread_team.h"

namespace tael::exec {

// Gives one row of an input: either writes it to `dst` and returns `dst`, or returns where the row
// already lies. Rows that already lie somewhere lie `width` floats apart.
using RowSource = FunctionRef<const float*(size_t row, float* dst)>;

struct InputSpec {
  std::initializer_list<const model::Matrix*> users;
  size_t num_rows = 0;
  size_t width = 0;       // columns of the users
  float* rows = nullptr;  // [num_rows, width]: where the source puts rows of a larger batch
  model::Buffer packed = model::Buffer::kPackedModel;
};

struct Input {
  const float* rows = nullptr;  // [num_rows, width], contiguous
  PackedInput packed;
  size_t num_rows = 0;
};

// One row: every thread prepares and packs it for itself, which is cheaper than a barrier.
// More: each thread does its share, and all meet at a barrier.
Input PrepareInput(const Pass& pass, size_t thread, const InputSpec& spec, RowSource source);

// y[row, r] = sum over columns of matrix[r] * input[row] (+ bias[r]) for this thread's range of
// matrix rows, which is returned.
Range Project(const Pass& pass, size_t thread, const Input& input, const model::Matrix& matrix,
              const float* bias, float* y, size_t y_stride);

}  // namespace tael::exec
