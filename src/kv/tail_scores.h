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
#pragma once

#include <array>
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

  TailScores() = default;
  explicit TailScores(size_t num_slots)
      : scores_(num_slots), masses_(num_slots), positions_(num_slots) {}
  // Heap of one with so many slots.
  static uint64_t BytesFor(uint64_t num_slots) {
    return num_slots * (sizeof(float) + sizeof(int64_t) + sizeof(uint32_t));
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
  // Lets the 16 tokens from position `leaving` on, which lie behind the tail, compete for its slots
  // and forgets those that lose; slots behind them move up. Tokens before `oldest` lose to anybody.
  // Moves are to be made in order; valid until the next call.
  std::span<const Move> Choose(Tail tail, uint32_t leaving, uint32_t oldest);
  // The first choice: the tail's slots hold the tokens from this position on.
  void BeginTail(Tail tail, uint32_t first_position);
  void Forget();

  // Positions of the tokens in the tail.
  std::span<const uint32_t> positions(Tail tail) const {
    return std::span(positions_).subspan(tail.begin, tail.end - tail.begin);
  }

 private:
  std::vector<float> scores_;
  std::vector<int64_t> masses_;
  std::vector<uint32_t> positions_;  // of the tail's slots
  std::array<Move, kernels::kBlockTokens> moves_{};
};

}  // namespace tael::kv
