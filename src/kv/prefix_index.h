// Which full rows of blocks hold the KV of which tokens, so that a prompt that begins like an
// earlier one is not computed again. A row is 16 tokens of all layer groups; rows form chains
// (prefix_rows.h), and a hit is trusted after comparing tokens, parent and salt.
//
// A text that ends, or goes another way, inside of a row shares the beginning of that row; who goes
// on from there gets a copy of it (Sequence::Extend).
//
// The index holds one reference on each block of its rows, and never copies one. A row of which a
// windowed group's block is gone stays in its chain, and a length is offered only where every block
// that a continuation from there looks at is held: of a windowed group those of the last window.
//
//   a row is    when                              what Evict() does
//   pinned      somebody wants it to stay         nothing
//   in use      a sequence holds its blocks too   gives back windowed blocks that no sequence holds
//   idle        nobody else holds its blocks      removes it once no row follows it
//
// Rows never hit go first, then the least recently used; a row is always more recently used than
// those that follow it. The cap counts every block that the index refers to, in use or not, and is
// checked before a row is added.
//
// Owned by the thread that schedules; not synchronised.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "kv/block_pool.h"
#include "kv/layer_group.h"
#include "kv/prefix_rows.h"
#include "kv/sequence.h"
#include "mem/memory_budget.h"

namespace tael::kv {

struct PrefixIndexOptions {
  uint64_t max_bytes = 0;       // of blocks that the index refers to
  HashFunction hash = &Hash64;  // tests inject worse ones
};

struct PrefixStats {
  uint64_t rows = 0;
  uint64_t bytes = 0;       // of their blocks
  uint64_t idle_bytes = 0;  // of these, what nobody else holds and no pin keeps
  uint64_t lookups = 0;
  uint64_t hits = 0;  // lookups that found anything
  uint64_t hit_tokens = 0;
  uint64_t rejected_hits = 0;  // rows that had the key and were something else
  uint64_t evicted = 0;        // rows
  uint64_t refused = 0;        // calls of Publish() whose prompt is larger than the cap
};

class PrefixIndex {
 public:
  // What the index itself needs is reserved under `prefix`, if it is more than small; the blocks
  // are the pool's. `geometry` and `pool` outlive the index.
  // Fails: kOutOfBudget; kInvalidArgument for a cap below one row.
  static Result<std::unique_ptr<PrefixIndex>> Create(mem::MemoryBudget& budget,
                                                     const Geometry& geometry, BlockPool& pool,
                                                     const PrefixIndexOptions& options);
  ~PrefixIndex() { Clear(); }
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // Lets an empty sequence begin with the longest prefix of `tokens` that is held, of at most
  // `most` tokens; returns how many tokens that is.
  uint32_t Adopt(std::span<const TokenId> tokens, uint64_t salt, uint32_t most, Sequence& empty);

  // Adds the full rows of a sequence that holds the first sequence.length() of `tokens`; rows that
  // are there stay, and get blocks that they lack. `tokens` is the whole prompt, also what has not
  // been computed yet: if its blocks come to more than the cap, none is added.
  void Publish(std::span<const TokenId> tokens, uint64_t salt, const Sequence& sequence);

  // Gives idle blocks back until they come to `bytes`, or none is left; returns how many bytes.
  uint64_t Evict(uint64_t bytes);
  void Clear();  // drops every row, pinned ones too

  // Keeps the rows of `tokens` that are held from being evicted; returns how many tokens that are.
  // Unpin() of these tokens undoes it.
  uint32_t Pin(std::span<const TokenId> tokens, uint64_t salt);
  void Unpin(std::span<const TokenId> tokens, uint64_t salt);

  // Takes over where the pool has moved blocks to (BlockPool::Compact).
  void Follow(std::span<const BlockPool::Move> moves);

  PrefixStats Stats() const;  // O(rows)
  uint64_t max_bytes() const { return max_bytes_; }
  uint64_t bytes() const { return bytes_; }
  const Geometry& geometry() const { return geometry_; }
  BlockPool& pool() const { return pool_; }

  // ---- for snapshots (snapshot.h) and tests ----

  const PrefixRows& rows() const { return rows_; }
  std::span<const BlockId> blocks(uint32_t row) const;  // by group; kNullBlock where not held
  // The row, kNoRow if it is not held.
  uint32_t FindRow(uint32_t parent, uint64_t salt, PrefixRows::Tokens tokens);
  // Adds a row that is not held as the least recently used, evicting nothing for it, and takes over
  // one reference on each of the blocks. kNoRow, taking nothing over, where there is no room.
  uint32_t Restore(uint32_t parent, uint64_t salt, PrefixRows::Tokens tokens, bool hit,
                   std::span<const BlockId> blocks);
  void Remove(uint32_t row);  // Requires: no row follows it, and it is not pinned.

  bool CheckInvariants() const;

 private:
  PrefixIndex(const Geometry& geometry, BlockPool& pool, const PrefixIndexOptions& options,
              uint32_t max_rows);

  std::span<BlockId> mutable_blocks(uint32_t row);
  uint64_t block_bytes(size_t group) const { return geometry_.groups[group].block_bytes; }
  void UpdateHeap();

  // Fills path_ with the rows that are held of these tokens.
  void Walk(std::span<const TokenId> tokens, uint64_t salt);
  void TouchPath(bool hit);
  uint32_t WalkIntoRow(std::span<const TokenId> tokens, uint64_t salt);
  bool Covers(uint32_t length, const Sequence& sequence) const;
  uint32_t AddRow(uint32_t parent, uint64_t salt, std::span<const TokenId> tokens, size_t row,
                  const Sequence& sequence);
  uint64_t BytesOf(std::span<const BlockId> row) const;
  void Place(uint32_t id, std::span<const BlockId> row, uint64_t bytes);
  void FillRow(uint32_t id, size_t row, const Sequence& sequence);

  bool MakeRoom(uint64_t bytes, uint32_t num_rows);
  template <class Enough>
  uint64_t GiveBackUntil(const Enough& enough);
  uint64_t GiveBack(uint32_t row);
  bool IsIdle(uint32_t row) const;
  void ReleaseBlock(size_t group, BlockId& block);

  const Geometry& geometry_;
  BlockPool& pool_;
  const uint64_t max_bytes_;
  mem::Reservation heap_;
  PrefixRows rows_;
  std::vector<BlockId> blocks_;  // [rows_.num_places()][groups]
  uint64_t bytes_ = 0;
  PrefixStats stats_;           // without what Stats() recomputes
  std::vector<uint32_t> path_;  // rows from the start of a prompt on
  std::vector<BlockId> row_;    // scratch: a block for each group
};

}  // namespace tael::kv
