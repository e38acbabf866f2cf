// KV blocks, carved out of slabs of one reserved address range.
//
//   range    [slab 0][slab 1][slab 2] ...         about 1 MiB each, page aligned
//   slab     [slot 0][slot 1] ... at most 64      blocks of one size class
//   BlockId  slab * 64 + slot
//
// Slabs are given to a size class when it needs one and return to the pool, their pages to the
// kernel, when their last block is freed. A block's bytes are committed by the first write: a block
// that is not used is not touched.
//
//   state      refs   free bit   who may write the block
//   free         0       1       nobody
//   private      1       0       the lease that holds it
//   shared      >1       0       nobody: copy first (copy-on-write)
//
// Free blocks are bits of one atomic 64-bit word per slab (find by count-trailing-zeros, claim by
// compare-exchange), so any thread may allocate and release. Running out is a normal answer
// (kNoFreeBlocks) that the engine turns into reclaim, waiting or refusal; never an abort.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
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
};

struct PoolStats {
  uint64_t capacity_bytes = 0;
  uint64_t slab_bytes = 0;
  uint32_t num_slabs = 0;         // slabs in the range
  uint32_t num_slabs_in_use = 0;  // given to a size class
  uint64_t num_blocks_in_use = 0;
  uint64_t block_bytes_in_use = 0;
};

class BlockPool {
 public:
  // Reserves capacity_bytes from the budget under `kv`, and the address range; touches nothing.
  // Fails: kOutOfBudget; kInvalidArgument for sizes of zero or a capacity below one slab per class.
  static Result<std::unique_ptr<BlockPool>> Create(mem::MemoryBudget& budget, PoolOptions options);
  ~BlockPool();  // Requires: no block is in use.
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Claims out.size() blocks with one reference each, all or nothing. `near` is a hint: its
  // following neighbours are taken when they are free, so that a sequence's blocks form runs.
  // Fails: kNoFreeBlocks; then nothing has changed.
  Status Allocate(SizeClass size_class, BlockId near, std::span<BlockId> out);

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

  // Blocks of this class that Allocate() could still grant: free slots plus free slabs.
  uint64_t NumFree(SizeClass size_class) const;
  PoolStats Stats() const;

  // Recomputes every count from bitmaps and references. O(blocks); for tests and fuzzers.
  bool CheckInvariants() const;

 private:
  static constexpr uint32_t kSlotsPerSlab = 64;
  struct Slab {
    std::atomic<uint64_t> free_bits{0};  // bit set == free slot; 0 while the slab is unassigned
    uint32_t block_bytes = 0;
    uint32_t num_slots = 0;  // 0: not given to a class
    uint32_t size_class = 0;
  };

  BlockPool() = default;

  mem::Reservation reservation_;
  mem::AnonymousMapping range_;
  size_t slab_bytes_ = 0;
  std::vector<Slab> slabs_;
  // The helper that implements this class completes the private part.
};

}  // namespace tael::kv
