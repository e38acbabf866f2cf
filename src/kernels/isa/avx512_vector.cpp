// Element-wise kernels for AVX-512.
#include "kernels/isa/avx512_simd.h"
#include "kernels/isa/simd_vector.h"

namespace tael::kernels {

extern const VectorTable kAvx512Vector;
const VectorTable kAvx512Vector = MakeVectorTable<Avx512>();

}  // namespace tael::kernels
