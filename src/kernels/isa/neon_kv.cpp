// Attention kernels for 64-bit ARM, plain NEON (f16 <-> f32 conversion is part of it).
#include "kernels/isa/neon_simd.h"
#include "kernels/isa/simd_kv.h"

namespace tael::kernels {

extern const KvTable kNeonKv[kNumFloatKvTypes];
const KvTable kNeonKv[kNumFloatKvTypes] = {MakeKvTable<Neon, ElementF32<Neon>>(),
                                           MakeKvTable<Neon, ElementF16<Neon>>()};

}  // namespace tael::kernels
