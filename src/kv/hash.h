// The hash of prefix keys and of what snapshots check: XXH3, 64 bits. It is fast, and it is no
// proof: whoever finds something by it compares what was hashed, and whoever reads bytes that an
// adversary may have written checks every number in them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tael::kv {

using HashFunction = uint64_t (*)(const void* data, size_t bytes, uint64_t seed);

uint64_t Hash64(const void* data, size_t bytes, uint64_t seed = 0);

}  // namespace tael::kv
