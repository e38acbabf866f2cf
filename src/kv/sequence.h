// The KV of one sequence: a block table per layer group.
//
//   tokens   0 .. sinks-1 | ......... | first visible ........ length-1 | length .. capacity-1
//            live blocks  | dropped   | live blocks                     | allocated, not yet filled
//                     gap_begin    gap_end
//
// Tables are append-only: a dropped position keeps its place as kNullBlock, so logical block index
// = token / 16 for ever, and dropping is moving the gap's end (O(1), no memmove). What is dropped
// follows from the windows of the geometry (window_policy.h), which a sequence may narrow for
// itself.
//
// With a tail (window_policy.h) the blocks behind the sinks' stay where they are, and what is in
// them changes: whenever a block is complete, the oldest block of recent tokens is dropped, and
// those of its tokens that got more attention than some of the tail's take their slots. Each layer
// has tokens of its own there: a slot is a place to keep one, whatever its position. The others are
// forgotten, or merged into one that takes a slot, too (slot_merge.h).
//
//   tokens   sinks' blocks | tail, slot by slot | dropped | recent tokens
//                                          gap_begin    gap_end
//
// A prompt that is compressed (prompt_compression.h) leaves such a run, too: the blocks that stay
// move together, in the table only, and the gap opens behind them. Slots are in the order of the
// text, and the same tokens for all layers of a group.
//
// Blocks may be shared with other sequences and with the prefix index (prefix_index.h). A shared
// block is never written: a sequence that has to fill the rest of one gets a copy in Extend(), as
// it does of the tail's blocks.
//
// Owned by the thread that schedules; not synchronised. Worker threads read tables and write into
// blocks between two calls, never during one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/block_pool.h"
#include "kv/layer_group.h"
#include "kv/prompt_compression.h"
#include "kv/tail_scores.h"
#include "kv/window_policy.h"

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

  // Makes room for `num_tokens` more in every group, all or nothing, and begins a pass over them.
  // Blocks that will be written although somebody else holds them too, the partly filled last one
  // or a tail's, are copied first (copy-on-write); the copies are part of the same allocation.
  // Compresses first what is due. Fails: kNoFreeBlocks; then nothing else has changed.
  Status Extend(uint32_t num_tokens);
  // Declares `num_tokens` of the room filled, then frees the blocks of windowed groups that no
  // later query can see. Requires: Extend() made the room; where has_tail() or observes(), all of
  // it or nothing, and MostAtOnce() at most.
  void Commit(uint32_t num_tokens);

  // Whether any window keeps a tail. Then attention adds what each token gets to Masses().
  bool has_tail() const;
  // How many tokens one pass may bring: a tail's next choice must not fall into it, nor the end of
  // a prompt that is compressed there.
  uint32_t MostAtOnce() const;
  // Of the layer at `index` in its group, by slot (tail_scores.h): for a pass to add to. Empty
  // where the group keeps no tail now.
  std::span<int64_t> Masses(GroupId group, size_t index);
  // The last pass's, for who looks on.
  std::span<const int64_t> Masses(GroupId group, size_t index) const;
  // Positions of the tokens in such a layer's tail; empty before the first choice. Of merged ones:
  // the whole number below the mean.
  std::span<const uint32_t> TailPositions(GroupId group, size_t index) const;
  // By slot of its tail: what attention adds to the scores of the keys there, since some stand for
  // many. Empty where nothing is merged.
  std::span<const float> TailBiases(GroupId group, size_t index) const;

  // The prompt that ends at plan.at is compressed once it is held: by Compress(), or when more
  // follows. Attention adds what the queries from observe_from() on give to Observed(). Replaces
  // what was planned before; going back with Truncate() gives the plan up. Layers with windows of
  // their own keep theirs. Nothing is planned for a prompt that is held already, nor where
  // LimitWindow() holds.
  void CompressAt(const Compression& plan);
  // Whether a prompt is still to be compressed that is not yet whole.
  bool observes() const { return limits_.compression.at > length_; }
  // Whether one is whole, and not yet compressed.
  bool is_due() const { return limits_.compression.at != 0 && !observes(); }
  // The first query whose attention counts: who adopts KV adopts none behind it.
  uint32_t observe_from() const { return limits_.compression.observe_from; }
  // Of a group, by slot as View has them: for a pass to add to. Empty where nobody asks.
  std::span<int64_t> Observed(GroupId group);
  // Lets go of blocks if the prompt is whole: shared ones lose a reference and are not written.
  void Compress();
  // How many tokens compression has let go of, in each layer that has no window of its own.
  uint32_t compressed_tokens() const;

  // The first `tokens` (a system prompt) stay like sinks where there are sinks, but fill at most
  // half of a window. Requires: length() == 0.
  void PinFirst(uint32_t tokens);
  // From the next query on no window is wider than `tokens` (0: than the policy's); frees at once
  // what no longer is seen. What is gone stays gone: lifting the limit lets the window grow again,
  // without a tail and without what compression had left of a prompt.
  void LimitWindow(uint32_t tokens);
  uint32_t window_limit() const { return limits_.window; }  // 0: none
  // What queries see of a group now.
  Window window(GroupId group) const;
  // The first token that the query at `position` sees for being recent. Before it: the sinks.
  uint32_t FirstVisible(GroupId group, uint32_t position) const;
  // How many of its tokens the last one saw in no layer. Tails count as if they held the same.
  uint32_t hidden_tokens() const;
  // Tokens 0 .. n-1 have the KV that any sequence of this geometry would give them; what PinFirst()
  // and LimitWindow() show or hide differs for those behind. Only so many may be shared. None where
  // has_tail(): who takes them over would not know what attention they got.
  uint32_t intact_tokens() const;
  // The first token from length() on that sees something else than it would in any sequence of this
  // geometry: KV that others computed is right before it only.
  uint32_t first_of_its_own() const;
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
  // Appends a row whose KV somebody else holds, or the first `num_tokens` of it: a block for each
  // group, which gets one more reference, or kNullBlock where the group has dropped them.
  // Requires: length() is a multiple of 16, there is no room after it, the nulls of a group follow
  // one another, and 0 < num_tokens <= 16.
  void AppendShared(std::span<const BlockId> row, uint32_t num_tokens = kernels::kBlockTokens);
  // Whether Extend() has to copy the block that is partly filled.
  bool SharesLastBlock(GroupId group) const;
  // Whether the query at `length`, or any later one, may look at this block of the group.
  bool Needs(GroupId group, uint32_t block, uint32_t length) const;

  // Takes over where the pool has moved blocks to (BlockPool::Compact).
  void Follow(std::span<const BlockPool::Move> moves);

  // Base addresses of the live blocks of a group in token order, in runs: [0, sinks), the tail, and
  // [first_token, capacity), which holds all of them as long as nothing was dropped. Valid until
  // the next non-const call.
  struct View {
    std::span<const std::byte* const> sinks;
    std::span<const std::byte* const> tail;  // or what is left of a prompt; all slots are seen
    std::span<const std::byte* const> blocks;
    uint32_t first_token = 0;  // of blocks[0]: multiple of 16
    uint32_t tail_slot = 0;    // of tail[0]
    uint32_t first_slot = 0;   // of first_token
    Window window;
    uint32_t horizon = 0;  // what lies before is seen by nobody for being recent

    uint32_t FirstVisible(uint32_t position) const {
      return std::max(window.FirstVisible(position), horizon);
    }
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
    uint32_t gap_begin = 0;               // blocks [gap_begin, gap_end) are dropped
    uint32_t gap_end = 0;
    uint32_t horizon = 0;  // tokens behind the sinks and before this were given up for good
    std::vector<TailScores> scores = {};  // of each layer, in groups with a tail
    bool tail_is_lost = false;            // LimitWindow() took it
    PromptScores prompt = {};             // while a prompt is observed
    uint32_t kept = 0;                    // blocks that compression left, from the first place on
    uint32_t in_place = 0;                // of these, first ones that are where they were

    bool has_gap() const { return gap_begin < gap_end; }
  };
  // What a sequence has beyond the geometry's windows.
  struct Limits {
    uint32_t pinned = 0;           // tokens of PinFirst()
    uint32_t window = 0;           // of LimitWindow(); 0: none
    uint32_t intact = UINT32_MAX;  // the first token that saw what others would not
    Compression compression = {};  // to come
    uint32_t compressed_at = 0;    // the length when it was done last
  };
  template <class Visit>
  void VisitShared(size_t group, uint32_t end, const Visit& visit) const;
  void TakeCopies(size_t group, uint32_t end);
  bool Chooses(size_t group, uint32_t length) const;
  void Choose(size_t group);
  void MergeLosers(size_t group, size_t layer, uint32_t leaving, const TailScores::Choice& choice);
  void ForgetCompression();
  void BeginObserving(uint32_t end);
  void CompressGroup(GroupTable& table, const Compression& plan);
  void ReleaseFrom(size_t group, size_t first_block);
  void ReleaseAll();
  void DropBlock(GroupTable& table, size_t block);
  void DropHidden(size_t group);
  bool Sees(size_t group, uint32_t length) const;
  uint32_t FirstOfItsOwn(size_t group) const;

  const Geometry* geometry_ = nullptr;
  BlockPool* pool_ = nullptr;
  std::vector<GroupTable> tables_;
  std::vector<BlockPool::Request> requests_;  // scratch of Extend(): one per group
  uint32_t length_ = 0;
  Limits limits_;
};

}  // namespace tael::kv
