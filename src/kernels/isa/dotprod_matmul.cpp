// Matrix products for 64-bit ARM with the dot product extension (Cortex-A55, A76 and later).
#include "kernels/isa/neon_matmul.h"

namespace tael::kernels {

extern const MatmulTable kDotprodMatmul;

namespace {

struct SdotDot {
  TAEL_INLINE static int32x4_t Add(int32x4_t acc, int8x16_t w, int8x16_t x) {
    return vdotq_s32(acc, w, x);
  }
};

}  // namespace

constinit const MatmulTable kDotprodMatmul = MakeMatmulTable<SdotDot>();

}  // namespace tael::kernels
