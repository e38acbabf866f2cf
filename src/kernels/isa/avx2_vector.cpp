// Element-wise kernels for AVX2, FMA and F16C.
#include "kernels/isa/avx2_simd.h"
#include "kernels/isa/simd_vector.h"

namespace tael::kernels {

extern const VectorTable kAvx2Vector;
const VectorTable kAvx2Vector = MakeVectorTable<Avx2>();

}  // namespace tael::kernels
