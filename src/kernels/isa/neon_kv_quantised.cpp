// Attention over quantised keys and values for 64-bit ARM without the dot product extension.
#include "kernels/isa/neon_dot.h"
#include "kernels/isa/simd_kv_quantised.h"

namespace tael::kernels {

extern const KvTable kNeonQuantisedKv[kNumQuantisedKvTypes];

namespace {

// Two products fit 16 bits: 127 * 127 * 2 = 32258.
struct MullQuads : NeonQuads {
  static Sum Dot(Sum sum, Keys keys, Quad quad) {
    const int16x8_t low = vmull_s8(vget_low_s8(keys), vget_low_s8(quad));
    return vpadalq_s16(sum, vpaddq_s16(low, vmull_high_s8(keys, quad)));
  }
};

}  // namespace

const KvTable kNeonQuantisedKv[kNumQuantisedKvTypes] = {MakeQ8Table<Neon, MullQuads>(),
                                                        MakeQ4Table<Neon>()};

}  // namespace tael::kernels
