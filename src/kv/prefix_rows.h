// The rows of a prefix index as a forest: found by what they are, and ordered by when they were
// used last. Knows nothing of blocks, and decides nothing (prefix_index.h does).
//
//   row    16 token ids behind a parent row (or at the start), under a salt
//   key    hash(key of the parent, salt, token ids): finds candidates; a row is found only if its
//          parent, salt and ids are equal, too
//   child  rows behind one row, newest first: finds the one that begins as a text goes on
//   order  two lists, never hit and hit; in each the least recently used first. Whoever touches a
//          row touches those before it afterwards, so a parent is in a list that goes later, or
//          later in the same one.
//
// All memory is set aside at the start, and touched as rows come. Not synchronised.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "kernels/kernels.h"
#include "kv/hash.h"

namespace tael::kv {

inline constexpr uint32_t kNoRow = 0xffffffff;
inline constexpr uint64_t kMostRows = uint64_t{1} << 24;  // of an index, and of a file of one

class PrefixRows {
 public:
  using Tokens = std::span<const TokenId, kernels::kBlockTokens>;

  struct Row {
    uint64_t key = 0;
    uint64_t salt = 0;
    std::array<TokenId, kernels::kBlockTokens> tokens{};
    uint32_t parent = kNoRow;
    uint32_t num_children = 0;
    uint32_t num_pins = 0;
    bool hit = false;
    bool held = false;  // false: the place is free

   private:
    friend class PrefixRows;
    uint32_t next = kNoRow;  // in the bucket, or of the free places
    uint32_t first_child = kNoRow;
    uint32_t older_sibling = kNoRow;
    uint32_t newer_sibling = kNoRow;
    uint32_t older = kNoRow;
    uint32_t newer = kNoRow;
  };

  // Requires: 0 < max_rows < kNoRow.
  PrefixRows(uint32_t max_rows, HashFunction hash);

  uint32_t size() const { return num_held_; }
  bool full() const { return num_held_ == max_rows_; }
  uint32_t num_places() const { return static_cast<uint32_t>(rows_.size()); }  // ids are below it
  const Row& operator[](uint32_t id) const { return rows_[id]; }
  uint64_t num_rejected() const { return num_rejected_; }  // equal keys of unequal rows, in Find()

  uint64_t KeyOf(uint32_t parent, uint64_t salt, Tokens tokens) const;
  uint32_t Find(uint32_t parent, uint64_t salt, Tokens tokens);  // kNoRow if there is none
  // The row behind `parent` that has the longest beginning in common with `tokens`, of at least one
  // token. Looks at the newest rows there only, so that a lookup stays cheap.
  struct Beginning {
    uint32_t row = kNoRow;
    uint32_t num_tokens = 0;
  };
  Beginning FindBeginning(uint32_t parent, uint64_t salt, std::span<const TokenId> tokens) const;
  // As the most recently used of those never hit, or as the least recently used.
  // Requires: !full(), there is no such row, and only a hit parent's row is a hit.
  uint32_t AddNewest(uint32_t parent, uint64_t salt, Tokens tokens);
  uint32_t AddOldest(uint32_t parent, uint64_t salt, Tokens tokens, bool hit);
  void Remove(uint32_t id);  // Requires: no row follows it.

  void Touch(uint32_t id, bool hit);  // now the most recently used; also hit, if so
  void Pin(uint32_t id) { ++rows_[id].num_pins; }
  void Unpin(uint32_t id);

  uint32_t oldest(bool hit) const { return lists_[hit].oldest; }
  uint32_t newest(bool hit) const { return lists_[hit].newest; }
  uint32_t newer(uint32_t id) const { return rows_[id].newer; }
  uint32_t older(uint32_t id) const { return rows_[id].older; }

  static uint64_t HeapBytes(uint32_t max_rows);
  uint64_t HeapBytesInUse() const;
  bool IsSound() const;  // recomputes every count and link

 private:
  struct UseList {
    uint32_t oldest = kNoRow;
    uint32_t newest = kNoRow;
  };
  static uint32_t NumBuckets(uint32_t max_rows);
  uint32_t& bucket_of(uint64_t key) { return buckets_[key & (buckets_.size() - 1)]; }
  uint32_t Add(uint32_t parent, uint64_t salt, Tokens tokens);
  void Link(uint32_t id, uint32_t before, uint32_t after);  // between two neighbours in its list
  void Unlink(uint32_t id);
  uint32_t first_child(uint32_t parent) const {
    return parent == kNoRow ? first_root_ : rows_[parent].first_child;
  }
  uint32_t& first_child(uint32_t parent) {
    return parent == kNoRow ? first_root_ : rows_[parent].first_child;
  }
  void JoinSiblings(uint32_t id);
  void LeaveSiblings(uint32_t id);
  std::vector<uint32_t> Ranks() const;
  bool BucketsAreSound() const;
  bool SiblingsAreSound() const;

  const uint32_t max_rows_;
  const HashFunction hash_;
  std::vector<Row> rows_;
  std::vector<uint32_t> buckets_;  // first row of each; a power of two of them
  uint32_t free_ = kNoRow;         // first of the places that hold no row
  uint32_t first_root_ = kNoRow;   // newest of the rows without a parent
  uint32_t num_held_ = 0;
  std::array<UseList, 2> lists_;  // never hit, hit
  uint64_t num_rejected_ = 0;
};

}  // namespace tael::kv
