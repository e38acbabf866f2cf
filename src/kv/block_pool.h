// KV blocks, carved out of slabs of one reserved address range.
//
//   range    [slab 0][slab 1][slab 2] ...         about 1 MiB each, page aligned
//   slab     [slot 0][slot 1] ... at most 64      blocks of one size class
//   BlockId  slab * 64 + slot
//
// Slabs are given to a block size when it needs one and return to the pool, their pages to the
// kernel, when their last block is freed. A block's bytes are committed by the first write: a block
// that is not used is not touched (with large pages: a slab, as a whole). Size classes of equal
// block size share slabs: they are one bin.
//
//   state      refs   free bit   who may write the block
//   free         0       1       nobody
//   private      1       0       the sequence that holds it
//   shared      >1       0       nobody: copy first (copy-on-write)
//
// Free blocks are bits of one atomic 64-bit word per slab. Taking the neighbour of one's last block
// and giving a block back are compare-exchange and fetch-or on that word; slabs change hands under
// a mutex. Any thread may call anything, except where a function says otherwise. Running out is a
// normal answer (kNoFreeBlocks) that the engine turns into reclaim, waiting or refusal; never an
// abort.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "mem/mapping.h"
#include "mem/memory_budget.h"

namespace tael::kv {

enum class BlockId : uint32_t {};
inline constexpr BlockId kNullBlock{0xffffffff};  // a dropped position in a block table
enum class SizeClass : uint32_t {};

struct PoolOptions {
  std::vector<size_t> block_bytes;  // one per size class, each a multiple of 64
  uint64_t capacity_bytes = 0;      // bytes of slabs at most; rounded down to whole slabs
  size_t slab_bytes = 0;            // 0: chosen (about 1 MiB)
  size_t page_bytes = 0;            // 0: the system's; tests inject others
  bool poison_freed = false;        // debugging: freed blocks read as NaN, and stay mapped
  bool large_pages = false;         // where the system has them and they divide a slab
  bool commit_all = false;          // all pages now and for good, instead of as blocks are used
  mem::Backing backing = mem::Backing::kPrivate;
};

struct PoolStats {
  uint64_t capacity_bytes = 0;
  uint64_t slab_bytes = 0;
  uint32_t num_slabs = 0;         // slabs in the range
  uint32_t num_slabs_in_use = 0;  // given to a size class
  uint64_t num_blocks_in_use = 0;
  uint64_t block_bytes_in_use = 0;
  // Bytes of blocks handed out at least once since their slab was taken: what is committed at most.
  // This is what the ledger calls used.
  uint64_t touched_bytes = 0;
};

class BlockPool {
 public:
  // Reserves capacity_bytes from the budget under `kv`, and the address range; touches nothing.
  // Fails: kOutOfBudget; kInvalidArgument for sizes of zero or a capacity below one slab per class.
  static Result<std::unique_ptr<BlockPool>> Create(mem::MemoryBudget& budget, PoolOptions options);
  ~BlockPool();  // Requires: no block is in use.
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  static constexpr uint32_t kSlotsPerSlab = 64;  // at most
  // Blocks of a size that a slab holds.
  static uint64_t SlotsIn(uint64_t slab_bytes, uint64_t block_bytes) {
    return std::min<uint64_t>(kSlotsPerSlab, slab_bytes / block_bytes);
  }

  // Claims out.size() blocks with one reference each, all or nothing. `near` is a hint: its
  // following neighbours are taken when they are free, so that a sequence's blocks form runs; where
  // there are none, a new run starts at a lane of slots that is wholly free. (near, history)
  // decides the ids. Fails: kNoFreeBlocks; then nothing has changed. Several threads that share the
  // last blocks may all be refused.
  Status Allocate(SizeClass size_class, BlockId near, std::span<BlockId> out);

  struct Request {
    SizeClass size_class{};
    BlockId near = kNullBlock;
    std::span<BlockId> out;
  };
  // Grants every request or none: a row of blocks across layer groups.
  Status Allocate(std::span<const Request> requests);

  void AddRef(BlockId id);
  // Drops one reference; the last one frees the block.
  void Release(BlockId id);

  std::byte* data(BlockId id) const {
    const auto value = static_cast<uint32_t>(id);
    const Slab& slab = slabs_[value / kSlotsPerSlab];
    return range_.data() + static_cast<size_t>(value / kSlotsPerSlab) * slab_bytes_ +
           (value % kSlotsPerSlab) * static_cast<size_t>(slab.block_bytes);
  }
  uint32_t refs(BlockId id) const;

  // Blocks of this class that Allocate() could still grant: free slots plus free slabs. Classes
  // draw on the same slabs, so the numbers of two classes do not add up.
  uint64_t NumFree(SizeClass size_class) const;
  // Blocks of this class's size that somebody holds.
  uint64_t NumInUse(SizeClass size_class) const;
  PoolStats Stats() const;

  // A block that lies elsewhere now.
  struct Move {
    BlockId from, to;
  };
  // Moves blocks, with their references, out of slabs that are mostly empty into holes of others of
  // the same block size, so that whole slabs return to the kernel. Whoever holds a block then has
  // to look it up in the moves, which are sorted by `from`, before anything else happens here.
  // Moves nothing while a Standstill is alive. Requires: no other thread is inside the pool, or
  // reads or writes a block, unless it holds one.
  std::vector<Move> Compact();
  // Held by who reads or releases blocks on a thread of its own. Move-only.
  class [[nodiscard]] Standstill {
   public:
    explicit Standstill(BlockPool& pool) : pool_(&pool) { pool_->num_standstills_.fetch_add(1); }
    Standstill(Standstill&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)) {}
    Standstill& operator=(Standstill&&) = delete;
    ~Standstill() {
      if (pool_ != nullptr) pool_->num_standstills_.fetch_sub(1);
    }

   private:
    BlockPool* pool_;
  };
  // Where a block is after the moves.
  static BlockId After(std::span<const Move> moves, BlockId id);

  // Recomputes every count from bitmaps and references. O(blocks); for tests and fuzzers.
  // Requires: no other thread is inside the pool.
  bool CheckInvariants() const;

 private:
  static constexpr uint32_t kNoBin = 0xffffffff;

  struct Bin {  // one block size
    uint32_t block_bytes = 0;
    uint32_t num_slots = 0;   // per slab
    uint32_t lane_slots = 0;  // where runs begin: at multiples of this
  };
  // The plain fields change under mutex_ while no block of the slab is in use, so that whoever
  // holds a block may read them.
  struct Slab {
    std::atomic<uint64_t> free_bits{0};     // bit set == free slot; 0 while the slab is unassigned
    std::atomic<uint64_t> touched_bits{0};  // handed out since the slab was taken
    std::atomic<uint32_t> bin{kNoBin};
    uint32_t block_bytes = 0;
    uint32_t num_slots = 0;
  };

  BlockPool() = default;
  Status Init(mem::MemoryBudget& budget, const PoolOptions& options);
  Status MakeBins(const PoolOptions& options);
  Status ReserveMemory(mem::MemoryBudget& budget, uint64_t capacity_bytes, mem::Backing backing);
  void CommitSlab(Slab& slab);
  uint64_t committed_bytes() const { return commit_all_ ? range_.size() : touched_bytes_; }

  // Claiming takes bits only; what was claimed is either published, or put back.
  bool Claim(const Request& request);
  template <class Pick>
  size_t ClaimIn(uint32_t slab_index, uint32_t bin, Pick pick, std::span<BlockId> out);
  size_t ClaimNear(uint32_t bin, BlockId near, std::span<BlockId> out);
  size_t ClaimLocked(uint32_t bin, std::span<BlockId> out);
  size_t ClaimFreshSlab(uint32_t bin, std::span<BlockId> out);
  void Publish(std::span<const BlockId> ids);
  void PutBack(BlockId id);
  void CompactBin(uint32_t bin, std::vector<Move>& moves);
  BlockId MoveTo(uint32_t slab_index, BlockId from);
  void RetireIfEmpty(uint32_t slab_index);
  uint64_t CountFreeLocked(uint32_t bin) const;
  bool SlabIsSound(uint32_t slab_index) const;

  mem::Reservation reservation_;
  mem::Reservation bookkeeping_;  // slabs_ and refs_, where they are worth a line in the ledger
  mem::AnonymousMapping range_;
  size_t slab_bytes_ = 0;
  bool poison_freed_ = false;
  bool large_pages_ = false;
  bool commit_all_ = false;
  std::vector<Bin> bins_;
  std::vector<uint32_t> bin_of_class_;
  std::vector<Slab> slabs_;
  std::vector<std::atomic<uint32_t>> refs_;  // by BlockId

  std::atomic<uint32_t> num_standstills_{0};
  mutable std::mutex mutex_;  // slabs changing hands, and the three below
  uint32_t num_free_slabs_ = 0;
  uint64_t touched_bytes_ = 0;  // as committed_bytes(), also told to reservation_
};

}  // namespace tael::kv
