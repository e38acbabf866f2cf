// The KV of one sequence: a block table per layer group.
//
//   tokens   0 ........ first_visible(group) ........ length-1 | length .. capacity-1
//            dropped blocks (kNullBlock)   live blocks         | allocated, not yet filled
//
// Tables are append-only: a dropped position keeps its place as kNullBlock, so logical block index
// = token / 16 for ever, and dropping is moving a head index (O(1), no memmove).
//
// Owned by the thread that schedules; not synchronised. Worker threads read tables and write into
// blocks between two calls, never during one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/block_pool.h"
#include "kv/layer_group.h"

namespace tael::kv {

class Sequence {
 public:
  // `geometry` and `pool` outlive the sequence. Size class i of the pool is group i.
  Sequence(const Geometry& geometry, BlockPool& pool);
  Sequence(Sequence&& other) noexcept;
  Sequence& operator=(Sequence&& other) noexcept;
  ~Sequence();  // releases every block, last first

  uint32_t length() const { return length_; }  // tokens whose KV is stored

  // Sizes the tables once for a context of this many tokens, so that Extend() never allocates heap.
  void ReserveTables(uint32_t max_tokens);

  // Makes room for `num_tokens` more in every group, all or nothing.
  // Fails: kNoFreeBlocks; then nothing has changed.
  Status Extend(uint32_t num_tokens);
  // Declares `num_tokens` of the room filled, then frees the blocks of windowed groups that no
  // later query can see. Requires: Extend() made the room.
  void Commit(uint32_t num_tokens);
  // Forgets tokens from the end; frees blocks that become empty, and room that was never filled.
  // Speculation extends for the whole draft, commits what was accepted and truncates to length().
  // Requires: CanTruncate(length).
  void Truncate(uint32_t length);
  // Whether the next query at `length` would find every key that it may see: length <= length(),
  // and no window has moved past them. (0 always: nothing is seen.)
  bool CanTruncate(uint32_t length) const;

  // Base addresses of the live blocks of a group in token order, and the token index of the first
  // slot of the first of them. Valid until the next non-const call. [first live .. capacity)
  struct View {
    std::span<const std::byte* const> blocks;
    uint32_t first_token = 0;  // multiple of 16
  };
  View Blocks(GroupId group) const;
  // The block that holds `token` of a group. Requires: live, and this sequence's alone.
  std::byte* MutableBlock(GroupId group, uint32_t token) const;

  std::span<const BlockId> table(GroupId group) const;  // kNullBlock where dropped
  uint64_t bytes_in_use() const;

 private:
  struct GroupTable {
    std::vector<BlockId> blocks;
    std::vector<const std::byte*> bases;  // bases[i] belongs to blocks[i]; null where dropped
    uint32_t num_dropped = 0;             // the head index, in blocks
  };
  void ReleaseFrom(size_t group, size_t first_block);
  void ReleaseAll();

  const Geometry* geometry_ = nullptr;
  BlockPool* pool_ = nullptr;
  std::vector<GroupTable> tables_;
  std::vector<BlockPool::Request> requests_;  // scratch of Extend(): one per group
  uint32_t length_ = 0;
};

}  // namespace tael::kv
