// Which keys attention looks at, cut into pieces, and which thread looks at them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "exec/workspace.h"
#include "kv/sequence.h"

namespace tael::exec {

// Consecutive queries of one sequence and one KV head: rows are (token, head of the group).
struct QueryTile {
  kv::Sequence* sequence;
  kv::Sequence::View view;  // of the layer's group
  const float* queries;     // [num_tokens * group, head_dim]
  size_t first_row;         // of the batch
  uint32_t first_position;  // of the first token
  uint32_t end_position;    // of its chunk, behind the last token
  uint32_t num_tokens;
  uint32_t kv_head;

  uint32_t last_position() const { return first_position + num_tokens - 1; }
};

// The pieces that a tile looks at: those of the sinks, where the layer has a window, those of the
// tail, by slot, and those of the recent tokens. Sinks have pieces of their own from the first
// token on, so that what is added to what is the same before and after tokens between the two were
// dropped.
struct Pieces {
  uint32_t num_sinks = 0;     // pieces of sinks
  uint32_t num_tail = 0;      // pieces of the tail follow them
  uint32_t first_recent = 0;  // piece [first_recent * kKeysPerPiece, ...) follows those
  uint32_t count = 0;         // of all
};
Pieces PiecesOf(const QueryTile& tile);

// Sinks, the tail (whose tokens are slots here), or what follows them. Blocks lie side by side; the
// first holds token `first_token`.
struct Run {
  enum class Kind : uint8_t { kSinks, kTail, kRecent };
  Kind kind;
  std::span<const std::byte* const> blocks;
  uint32_t first_token;
  uint32_t begin;  // tokens [begin, end)
  uint32_t end;
  uint32_t first_slot;  // of first_token (kv/tail_scores.h)
};

// The part of a run that one piece covers; empty if begin >= end.
struct RunPiece {
  Run run;
  uint32_t begin;  // tokens [begin, end)
  uint32_t end;
  uint32_t num_keys() const { return end - std::min(begin, end); }
};
RunPiece PieceOf(const QueryTile& tile, const Pieces& pieces, uint32_t index);
// Of the pieces from `first` on.
uint64_t NumKeys(const QueryTile& tile, const Pieces& pieces, uint32_t first = 0);

// Deals pieces out to threads, one after the other: each thread gets neighbours with as many keys
// as the others' have, give or take half a piece at either end. Taking turns would not do: some
// pieces hold a few sinks, and the full ones may all fall to one thread.
class KeyShares {
 public:
  // Requires: num_keys > 0, of all pieces; num_threads > 0.
  KeyShares(uint64_t num_keys, size_t num_threads) : num_keys_(num_keys), threads_(num_threads) {}
  // The thread that gets the next piece, of so many keys: the one whose share has the middle key.
  size_t Next(uint32_t num_keys) {
    const uint64_t twice_middle = 2 * dealt_ + num_keys;
    dealt_ += num_keys;
    return std::min<size_t>(twice_middle * threads_ / (2 * num_keys_), threads_ - 1);
  }

 private:
  uint64_t num_keys_;
  uint64_t threads_;
  uint64_t dealt_ = 0;
};

}  // namespace tael::exec
