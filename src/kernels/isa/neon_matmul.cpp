// Matrix products for 64-bit ARM without the dot product extension (Cortex-A53, A72).
#include "kernels/isa/neon_matmul.h"

namespace tael::kernels {

extern const MatmulTable kNeonMatmul;

namespace {

// Two products fit 16 bits: |w| <= 128 and |x| <= 127 give at most 32512.
struct MullDot {
  TAEL_INLINE static int32x4_t Add(int32x4_t acc, int8x16_t w, int8x16_t x) {
    const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
    return vpadalq_s16(acc, vmlal_high_s8(low, w, x));
  }
};

}  // namespace

constinit const MatmulTable kNeonMatmul = MakeMatmulTable<MullDot>();

}  // namespace tael::kernels
