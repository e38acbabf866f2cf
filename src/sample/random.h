// Random numbers for sampling: the n-th number is a function of (seed, n) and of nothing else, so
// that one seed gives one text on every platform (the standard's distributions promise no such
// thing) and a sampler can be set back or restored by writing down one counter.
// Refuses: to be used for anything that must not be guessed.
#pragma once

#include <cstdint>

namespace tael::sample {

class Random {
 public:
  explicit Random(uint64_t seed) : key_(Mix(seed + kStep)) {}

  // Uniform over 2^64 values.
  uint64_t Next() { return Mix(key_ + kStep * ++counter_); }
  // Uniform in [0, 1), a multiple of 2^-53.
  double NextUnit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  uint64_t counter() const { return counter_; }  // numbers drawn so far
  void set_counter(uint64_t counter) { counter_ = counter; }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio, odd

  // The finaliser of SplitMix64 (Steele, Lea, Flood 2014, fig. 17): every input bit reaches every
  // output bit.
  static constexpr uint64_t Mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }

  uint64_t key_;
  uint64_t counter_ = 0;
};

}  // namespace tael::sample
