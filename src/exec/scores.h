// Scores of queries against keys as they are stored: which kernel, and queries as it wants them.
#pragma once

#include <cstddef>

#include "exec/pass.h"
#include "kernels/kernels.h"

namespace tael::exec {

using ScoreKernel = void (*)(const kernels::AttendCall&);

// Queries are activations: of 8 bits or, on the reference path, with all their bits.
inline ScoreKernel ScoresOf(const Pass& pass, const kernels::KvTable& keys) {
  const bool exact = pass.workspace.shape().compute == Compute::kReference;
  return exact && keys.exact_scores != nullptr ? keys.exact_scores : keys.scores;
}

// Queries as the keys' type wants them, row after row.
struct ReadyQueries {
  const float* data;
  size_t stride;
};

// Queries of [rows, head_dim] into `out`, if they have to be packed.
inline ReadyQueries PackQueries(const kernels::KvTable& keys, const float* queries, size_t rows,
                                size_t head_dim, float* out) {
  if (keys.pack_q == nullptr) return {queries, head_dim};
  const size_t stride = kernels::PackedQueryFloats(head_dim);
  for (size_t r = 0; r < rows; ++r) {
    keys.pack_q(queries + r * head_dim, head_dim, out + r * stride);
  }
  return {out, stride};
}

}  // namespace tael::exec
