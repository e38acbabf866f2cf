// Element-wise kernels for 64-bit ARM, plain NEON.
#include "kernels/isa/neon_simd.h"
#include "kernels/isa/simd_vector.h"

namespace tael::kernels {

extern const VectorTable kNeonVector;
const VectorTable kNeonVector = MakeVectorTable<Neon>();

}  // namespace tael::kernels
