#include "kv/hash.h"

// The header alone: nothing to link, and the same code on every board.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tael::kv {

uint64_t Hash64(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

}  // namespace tael::kv
