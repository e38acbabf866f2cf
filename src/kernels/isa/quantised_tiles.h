// Where things lie in tiles of quantised keys and values, and in packed queries (KvType in
// kernels.h draws them). For all files of isa/; internal linkage only.
#pragma once

#include "kernels/kernels.h"

namespace tael::kernels {
namespace {

constexpr size_t kScaleBytes = kBlockTokens * sizeof(uint16_t);  // of one scale for each slot

inline size_t Q8TileBytes(size_t head_dim) { return kBlockTokens * head_dim + kScaleBytes; }
inline size_t Q4TileBytes(size_t head_dim) {
  return head_dim / kQ4Group * kScaleBytes + kBlockTokens * head_dim / 2;
}

// A packed query: [head_dim] int8, [head_dim] int8 of 1/128 of those, then this.
struct QueryTail {
  float scale;
  int32_t sum;       // of the integers
  int32_t fine_sum;  // of the fine ones
};

}  // namespace
}  // namespace tael::kernels
