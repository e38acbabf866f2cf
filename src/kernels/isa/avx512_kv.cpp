// Attention kernels for AVX-512.
#include "kernels/isa/avx512_simd.h"
#include "kernels/isa/simd_kv.h"

namespace tael::kernels {

extern const KvTable kAvx512Kv[kNumFloatKvTypes];
const KvTable kAvx512Kv[kNumFloatKvTypes] = {MakeKvTable<Avx512, ElementF32<Avx512>>(),
                                             MakeKvTable<Avx512, ElementF16<Avx512>>()};

}  // namespace tael::kernels
