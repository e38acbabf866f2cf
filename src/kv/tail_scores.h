// Which tokens of a layer got most attention: the scores behind a window's tail.
//
// A slot is a token that is there: the sinks' blocks, the tail's, then recent ones, in the order of
// the sequence's live blocks. Until something is dropped the slot of a token is its position.
//
//   slots   0 .. tail_begin-1 | tail_begin .. tail_end-1 | tail_end .. tail_end+15 | ...
//           sinks' blocks     | tail                     | the next to leave       | recent
//
// The score of a token is the attention that later queries gave it, its own included, summed over
// the layer's query heads and faded by kDecay for each token that has come since (H2O, Zhang et al.
// 2023, with a decay). A pass adds up its share in whole numbers, in whatever
// order its threads come, so that scores do not depend on how many there are.
//
// Where losers are merged, a slot of the tail may stand for many tokens. It has the sum of their
// scores, their mean position, and a bias, the logarithm of how many keys like it there would be:
// of parts with the scores A_i, the shares w_i = A_i / sum A and biases b_i it is
// sum w_i (b_i - ln w_i). For then sum n_i exp(q k_i) = n exp(q sum w_i k_i) if A_i tells what part
// i gets, n_i exp(q k_i): ALGORITHMS 4.1, and KeepKV (Tian et al. 2025) with another count.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace tael::kv {

class TailScores {
 public:
  static constexpr double kDecay = 0.998;        // for each token
  static constexpr double kUnit = 4294967296.0;  // masses count in 2^-32
  // A mass in these units, to the nearest, and back. By the bits of doubles from 2^52 on, which are
  // whole numbers: x86 converts several 64-bit integers at once only with AVX-512.
  // Requires: 0 <= mass < 2^20; 0 <= units < 2^52.
  static int64_t ToUnits(float mass) {
    return std::bit_cast<int64_t>(double{mass} * kUnit + kWhole) - std::bit_cast<int64_t>(kWhole);
  }
  static double FromUnits(int64_t units) {
    return (std::bit_cast<double>(units + std::bit_cast<int64_t>(kWhole)) - kWhole) / kUnit;
  }

  TailScores() = default;
  explicit TailScores(size_t num_slots, bool merges = false)
      : scores_(num_slots),
        masses_(num_slots),
        positions_(num_slots),
        biases_(merges ? num_slots : 0),
        fractions_(merges ? num_slots : 0) {}
  // Heap of one with so many slots.
  static uint64_t BytesFor(uint64_t num_slots, bool merges = false) {
    return num_slots *
           (sizeof(float) + sizeof(int64_t) + sizeof(uint32_t) + (merges ? 2 * sizeof(float) : 0));
  }

  // By slot: what the pass that runs has given so far, each query's share faded by the tokens
  // behind it.
  std::span<int64_t> masses() { return masses_; }
  std::span<const int64_t> masses() const { return masses_; }
  void BeginPass();
  // Takes the masses over into the scores. Requires: num_tokens > 0.
  void EndPass(uint32_t num_tokens);

  struct Tail {
    uint32_t begin;  // slots
    uint32_t end;
  };
  // The token at slot `from` takes the place of the one at `to`.
  struct Move {
    uint32_t from;
    uint32_t to;
  };
  // What the losers leave together: the mean of their keys, each turned by `shift` positions, and
  // of their values, with these weights. Their sum is 1. No parts: nothing.
  struct Part {
    uint32_t slot;
    float weight;
    double shift;
  };
  struct Choice {
    std::span<const Part> parts() const { return std::span(merged).first(num_parts); }
    std::span<const Move> moves() const { return std::span(moved).first(num_moves); }

    // Parts are where they were: they are to be merged first, into the slot `to`.
    std::array<Part, kernels::kBlockTokens + 1> merged;
    size_t num_parts = 0;
    uint32_t to = 0;
    std::array<Move, kernels::kBlockTokens> moved;  // in this order
    size_t num_moves = 0;
  };
  // Lets the 16 tokens from position `leaving` on, which lie behind the tail, compete for its slots
  // and forgets those that lose, or merges them with the worst of the tail; slots behind them move
  // up. Tokens before `oldest` lose to anybody, and are not merged.
  Choice Choose(Tail tail, uint32_t leaving, uint32_t oldest);
  // The first choice: the tail's slots hold the tokens from this position on.
  void BeginTail(Tail tail, uint32_t first_position);
  void Forget();

  // By slot: what is added to the score of the key there. Empty where nothing is merged.
  std::span<const float> biases() const { return biases_; }

  // Positions of the tokens in the tail.
  std::span<const uint32_t> positions(Tail tail) const {
    return std::span(positions_).subspan(tail.begin, tail.end - tail.begin);
  }

 private:
  static constexpr double kWhole = 4503599627370496.0;  // 2^52
  // A candidate that does not stay.
  struct Loser {
    uint32_t slot;  // where its key and value are
    float score;
    float bias;
    double position;
  };
  bool merges() const { return !biases_.empty(); }
  uint32_t Least(Tail tail) const;
  Loser InTail(uint32_t slot, const Choice& choice) const;
  void Put(uint32_t slot, float score, uint32_t position);
  void Merge(std::span<const Loser> losers, uint32_t to, Choice& choice);

  std::vector<float> scores_;
  std::vector<int64_t> masses_;
  std::vector<uint32_t> positions_;  // of the tail's slots
  std::vector<float> biases_;        // of the same
  std::vector<float> fractions_;     // of a mean position, what is beyond the whole number
};

}  // namespace tael::kv
