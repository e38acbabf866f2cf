// Hashing for the vocabulary's tables. Not for untrusted keys on its own: the tables bound the
// probes they accept while they are built.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tael::tokenizer {

inline uint64_t MixBits(uint64_t x) {
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93u;  // an odd constant with half its bits set spreads every input bit up
  x ^= x >> 32;
  return x;
}

inline uint64_t HashBytes(std::string_view bytes) {
  uint64_t hash = 0x9E3779B97F4A7C15u ^ bytes.size();
  while (bytes.size() >= sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    hash = MixBits(hash ^ word) + hash;
    bytes.remove_prefix(sizeof word);
  }
  uint64_t tail = 0;
  if (!bytes.empty()) std::memcpy(&tail, bytes.data(), bytes.size());
  return MixBits(MixBits(hash ^ tail) + hash);
}

// Slots for a table of n entries that is at most two thirds full: a look-up takes 2 probes, or 5
// for what is not there.
inline size_t TableSlots(size_t n) { return std::bit_ceil(n + n / 2 + 1); }

// Probes that building a table of n entries may take in all. Tables need about 2 n; a file that
// needs more was made to.
inline uint64_t ProbeBudget(size_t n) { return 1024 + 16 * static_cast<uint64_t>(n); }

}  // namespace tael::tokenizer
