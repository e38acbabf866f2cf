// SDOT as the dot product of neon_matmul.h, for the tables of CPUs that have it. Internal linkage.
#pragma once

#include <arm_neon.h>

#include "kernels/isa/neon_matmul.h"

namespace tael::kernels {
namespace {

struct SdotDot {
  TAEL_INLINE static int32x4_t Add(int32x4_t acc, int8x16_t w, int8x16_t x) {
    return vdotq_s32(acc, w, x);
  }
};

}  // namespace
}  // namespace tael::kernels
