// The KV of one sequence: a block table per layer group.
//
//   tokens   0 ........ first_visible(group) ........ length-1 | length .. capacity-1
//            dropped blocks (kNullBlock)   live blocks         | allocated, not yet filled
//
// Tables are append-only: a dropped position keeps its place as kNullBlock, so logical block index
// = token / 16 for ever, and dropping is moving a head index (O(1), no memmove).
//
// Blocks may be shared with other sequences and with the prefix index (prefix_index.h). A shared
// block is never written: a sequence that has to fill the rest of one gets a copy in Extend().
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

  // Makes room for `num_tokens` more in every group, all or nothing. Where they begin in a block
  // that somebody else holds too, the sequence gets a copy of it first (copy-on-write); the copies
  // are part of the same allocation. Fails: kNoFreeBlocks; then nothing has changed.
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

  // Another sequence with the same tokens. All blocks that hold one of them are shared, the partly
  // filled last one included; room that was never filled is not. Of the two, the one that extends
  // first gets a copy of that last block. Requires: before anything is written into room that was
  // there already, Extend() is called again.
  Sequence Fork() const;
  // Appends 16 tokens whose KV somebody else holds: a block for each group, which gets one more
  // reference, or kNullBlock where the group has dropped them. Requires: length() is a multiple of
  // 16, there is no room after it, and no null follows a group's first block.
  void AppendShared(std::span<const BlockId> row);
  // Whether the query at `length`, or any later one, may look at this block of the group.
  bool Needs(GroupId group, uint32_t block, uint32_t length) const;

  // Takes over where the pool has moved blocks to (BlockPool::Compact).
  void Follow(std::span<const BlockPool::Move> moves);

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
  const Geometry& geometry() const { return *geometry_; }
  uint64_t bytes_in_use() const;  // of all its blocks, also those that others hold too

 private:
  struct GroupTable {
    std::vector<BlockId> blocks;
    std::vector<const std::byte*> bases;  // bases[i] belongs to blocks[i]; null where dropped
    uint32_t num_dropped = 0;             // the head index, in blocks
  };
  bool TailIsShared(const GroupTable& table) const;
  void TakeCopyOfTail(size_t group, size_t copy);
  void ReleaseFrom(size_t group, size_t first_block);
  void ReleaseAll();

  const Geometry* geometry_ = nullptr;
  BlockPool* pool_ = nullptr;
  std::vector<GroupTable> tables_;
  std::vector<BlockPool::Request> requests_;  // scratch of Extend(): one per group
  uint32_t length_ = 0;
};

// Bytes of the blocks that these sequences hold between them, each counted once.
uint64_t UniqueBytes(std::span<const Sequence* const> sequences);

}  // namespace tael::kv
