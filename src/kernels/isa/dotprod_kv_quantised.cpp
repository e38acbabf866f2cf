// Attention over quantised keys and values for 64-bit ARM with the dot product extension.
#include "kernels/isa/neon_dot.h"
#include "kernels/isa/simd_kv_quantised.h"

namespace tael::kernels {

extern const KvTable kDotprodQuantisedKv[kNumQuantisedKvTypes];

namespace {

struct SdotQuads : NeonQuads {
  static Sum Dot(Sum sum, Keys keys, Quad quad) { return vdotq_s32(sum, keys, quad); }
};

}  // namespace

const KvTable kDotprodQuantisedKv[kNumQuantisedKvTypes] = {MakeQ8Table<Neon, SdotQuads>(),
                                                           MakeQ4Table<Neon>()};

}  // namespace tael::kernels
