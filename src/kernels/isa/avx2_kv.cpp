// Attention kernels for AVX2, FMA and F16C.
#include "kernels/isa/avx2_simd.h"
#include "kernels/isa/simd_kv.h"

namespace tael::kernels {

extern const KvTable kAvx2Kv[kNumFloatKvTypes];
const KvTable kAvx2Kv[kNumFloatKvTypes] = {MakeKvTable<Avx2, ElementF32<Avx2>>(),
                                           MakeKvTable<Avx2, ElementF16<Avx2>>()};

}  // namespace tael::kernels
