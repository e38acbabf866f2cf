#include "kv/block_pool.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checked.h"
#include "base/units.h"

namespace tael::kv {
namespace {

constexpr size_t kTargetSlabBytes = 1024 * 1024;
constexpr size_t kMinSlots = 4;
constexpr size_t kMaxBlockBytes = size_t{1} << 30;  // fits the 32-bit field with room to spare
constexpr size_t kBlockAlign = 64;
// New runs begin at a lane of slots that is wholly free. With lanes of four blocks and small pages,
// attention at 2,048 tokens took 4-5 % longer than over blocks in one line, since each run brings
// page walks of its own; with lanes of 16 and large pages it takes the same time
// (bench/micro/paging_main.cpp). Small slabs have small lanes, or one sequence would take them
// whole.
constexpr uint32_t kSmallLane = 4;
constexpr uint32_t kLargeLane = 16;

constexpr uint32_t ToUint(BlockId id) { return static_cast<uint32_t>(id); }

constexpr uint64_t LowBits(size_t n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

constexpr uint64_t LowestBits(uint64_t bits, size_t n) {
  uint64_t out = 0;
  for (; n > 0 && bits != 0; --n, bits &= bits - 1) out |= bits & (~bits + 1);
  return out;
}

// Up to n slots of wholly free lanes, lowest first; the last lane may be taken in part.
constexpr uint64_t LaneBits(uint64_t bits, size_t n, uint32_t lane_slots) {
  uint64_t out = 0;
  for (uint32_t slot = 0; slot < 64 && n > 0; slot += lane_slots) {
    const uint64_t lane = LowBits(lane_slots) << slot;
    if ((bits & lane) != lane) continue;
    const size_t take = std::min<size_t>(n, lane_slots);
    out |= LowBits(take) << slot;
    n -= take;
  }
  return out;
}

// Up to n free slots that follow `slot` without a gap.
constexpr uint64_t FollowingBits(uint64_t bits, uint32_t slot, size_t n) {
  if (slot >= 63) return 0;
  const auto run = static_cast<size_t>(std::countr_one(bits >> (slot + 1)));
  return LowBits(std::min(run, n)) << (slot + 1);
}

// The share of a slab that blocks of this size cannot use, in 1/65536.
uint64_t Waste(size_t slab_bytes, size_t block_bytes) {
  const size_t slots = std::min<size_t>(64, slab_bytes / block_bytes);
  return static_cast<uint64_t>(slab_bytes - slots * block_bytes) * 65536 / slab_bytes;
}

uint64_t WorstWaste(size_t slab_bytes, std::span<const size_t> sizes) {
  uint64_t worst = 0;
  for (size_t size : sizes) worst = std::max(worst, Waste(slab_bytes, size));
  return worst;
}

// About 1 MiB, less where the pool is small; whole pages; at least four of the largest blocks. Of
// the sizes within a factor of two, the one that leaves the least unused, then the nearest: 64 KiB
// and 48 KiB blocks get 960 KiB (15 and 20 blocks) rather than 1 MiB (16, and 21 with a rest).
size_t ChooseSlabBytes(std::span<const size_t> sizes, uint64_t capacity, size_t page) {
  const size_t largest = *std::ranges::max_element(sizes);
  const size_t smallest = *std::ranges::min_element(sizes);
  const uint64_t share = capacity / (4 * sizes.size());
  size_t target = std::min({kTargetSlabBytes, static_cast<size_t>(share), 64 * smallest});
  target = std::max(target, kMinSlots * largest);
  size_t best = RoundUp(target, page);
  const auto distance = [&](size_t x) { return x > target ? x - target : target - x; };
  for (size_t slots = kMinSlots; slots <= 64; ++slots) {
    const size_t slab = RoundUp(slots * largest, page);
    if (slab < target / 2 || slab > target * 2 || slab > capacity / sizes.size()) continue;
    const uint64_t a = WorstWaste(slab, sizes), b = WorstWaste(best, sizes);
    if (a < b || (a == b && distance(slab) < distance(best))) best = slab;
  }
  return best;
}

Error BadOptions(std::string detail) {
  return Error{ErrorCode::kInvalidArgument, "cannot make a KV pool", std::move(detail)};
}

}  // namespace

Result<std::unique_ptr<BlockPool>> BlockPool::Create(mem::MemoryBudget& budget,
                                                     PoolOptions options) {
  std::unique_ptr<BlockPool> pool(new BlockPool);
  TAEL_RETURN_IF_ERROR(pool->Init(budget, options));
  return pool;
}

Status BlockPool::Init(mem::MemoryBudget& budget, const PoolOptions& options) {
  poison_freed_ = options.poison_freed;
  commit_all_ = options.commit_all;
  TAEL_RETURN_IF_ERROR(MakeBins(options));
  const size_t large_page = options.large_pages ? mem::LargePageBytes() : 0;
  large_pages_ = large_page != 0 && slab_bytes_ % large_page == 0;
  const uint64_t num_slabs = options.capacity_bytes / slab_bytes_;
  if (num_slabs < bins_.size()) {
    return BadOptions("a capacity of " + FormatSize(options.capacity_bytes) + " is less than " +
                      std::to_string(bins_.size()) + " slabs of " + FormatSize(slab_bytes_) +
                      ", one for each block size");
  }
  if (num_slabs >= ToUint(kNullBlock) / kSlotsPerSlab) {
    return BadOptions(std::to_string(num_slabs) + " slabs are more than block ids can name");
  }
  TAEL_RETURN_IF_ERROR(ReserveMemory(budget, num_slabs * slab_bytes_, options.backing));
  slabs_ = std::vector<Slab>(num_slabs);
  refs_ = std::vector<std::atomic<uint32_t>>(num_slabs * kSlotsPerSlab);
  num_free_slabs_ = static_cast<uint32_t>(num_slabs);
  if (commit_all_) {
    range_.Commit();
    reservation_.SetUsed(committed_bytes());
  }
  return {};
}

Status BlockPool::MakeBins(const PoolOptions& options) {
  if (options.block_bytes.empty()) return BadOptions("there is no block size");
  for (size_t bytes : options.block_bytes) {
    if (bytes == 0 || bytes % kBlockAlign != 0 || bytes > kMaxBlockBytes) {
      return BadOptions("a block size of " + std::to_string(bytes) +
                        " is not a multiple of 64 from 64 to 2^30");
    }
  }
  std::vector<size_t> sizes = options.block_bytes;
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  const size_t page = options.page_bytes != 0 ? options.page_bytes : mem::PageSize();
  slab_bytes_ = options.slab_bytes != 0 ? options.slab_bytes
                                        : ChooseSlabBytes(sizes, options.capacity_bytes, page);
  if (!std::has_single_bit(page) || slab_bytes_ % page != 0 || slab_bytes_ < sizes.back()) {
    return BadOptions("a slab of " + std::to_string(slab_bytes_) + " bytes is not whole pages of " +
                      std::to_string(page) + " that hold a block of " +
                      std::to_string(sizes.back()));
  }
  for (size_t bytes : sizes) {
    const uint64_t slots = SlotsIn(slab_bytes_, bytes);
    const uint32_t lane = slots >= 2 * kLargeLane ? kLargeLane : kSmallLane;
    bins_.push_back({static_cast<uint32_t>(bytes), static_cast<uint32_t>(slots), lane});
  }
  for (size_t bytes : options.block_bytes) {
    const auto at = std::ranges::lower_bound(sizes, bytes) - sizes.begin();
    bin_of_class_.push_back(static_cast<uint32_t>(at));
  }
  return {};
}

Status BlockPool::ReserveMemory(mem::MemoryBudget& budget, uint64_t capacity_bytes,
                                mem::Backing backing) {
  const uint64_t num_slabs = capacity_bytes / slab_bytes_;
  const uint64_t heap = num_slabs * (sizeof(Slab) + kSlotsPerSlab * sizeof(refs_[0]));
  TAEL_ASSIGN_OR_RETURN(reservation_, budget.Reserve(mem::MemoryTag::kKv, capacity_bytes));
  TAEL_ASSIGN_OR_RETURN(bookkeeping_, budget.ReserveHeap(mem::MemoryTag::kKv, heap));
  // Aligned to the largest page size in use on our targets, so that injected sizes hold as well.
  constexpr size_t kRangeAlign = 64 * 1024;
  const size_t align = large_pages_ ? mem::LargePageBytes() : kRangeAlign;
  TAEL_ASSIGN_OR_RETURN(range_, mem::AnonymousMapping::Create(capacity_bytes, align, backing));
  if (large_pages_) {
    range_.UseLargePages();
  } else {
    range_.UseSmallPages();
  }
  return {};
}

BlockPool::~BlockPool() {
  TAEL_CHECK(num_free_slabs_ == slabs_.size());  // otherwise somebody still holds a block
}

Status BlockPool::Allocate(SizeClass size_class, BlockId near, std::span<BlockId> out) {
  const Request request{size_class, near, out};
  return Allocate({&request, 1});
}

Status BlockPool::Allocate(std::span<const Request> requests) {
  for (size_t i = 0; i < requests.size(); ++i) {
    if (Claim(requests[i])) continue;
    while (i-- > 0) {
      for (BlockId id : requests[i].out) PutBack(id);
    }
    return Error{ErrorCode::kNoFreeBlocks, "the KV pool has too few free blocks", {}};
  }
  for (const Request& request : requests) Publish(request.out);
  return {};
}

// Claims the whole request, or nothing.
bool BlockPool::Claim(const Request& request) {
  TAEL_CHECK(static_cast<size_t>(request.size_class) < bin_of_class_.size());
  const uint32_t bin = bin_of_class_[static_cast<size_t>(request.size_class)];
  const size_t wanted = request.out.size();
  size_t got = ClaimNear(bin, request.near, request.out);
  if (got == wanted) return true;
  {
    const std::lock_guard lock(mutex_);
    if (CountFreeLocked(bin) >= wanted - got) got += ClaimLocked(bin, request.out.subspan(got));
  }
  if (got == wanted) return true;
  while (got > 0) PutBack(request.out[--got]);
  return false;
}

// Takes the slots that `pick(free_bits)` chooses, if the slab belongs to the bin.
template <class Pick>
size_t BlockPool::ClaimIn(uint32_t slab_index, uint32_t bin, Pick pick, std::span<BlockId> out) {
  Slab& slab = slabs_[slab_index];
  uint64_t bits = slab.free_bits.load(std::memory_order_relaxed);
  uint64_t mask = 0;
  do {
    mask = slab.bin.load(std::memory_order_relaxed) == bin ? pick(bits) : 0;
    if (mask == 0) return 0;
  } while (!slab.free_bits.compare_exchange_weak(bits, bits & ~mask, std::memory_order_acq_rel,
                                                 std::memory_order_relaxed));
  size_t got = 0;
  for (; mask != 0; mask &= mask - 1) {
    const auto slot = static_cast<uint32_t>(std::countr_zero(mask));
    out[got++] = BlockId{slab_index * kSlotsPerSlab + slot};
  }
  // A caller without the mutex may have raced with the slab's return and new life in another bin.
  // Now that it holds slots the slab stays what it is.
  if (slab.bin.load(std::memory_order_relaxed) == bin) return got;
  while (got > 0) PutBack(out[--got]);
  return 0;
}

size_t BlockPool::ClaimNear(uint32_t bin, BlockId near, std::span<BlockId> out) {
  const uint32_t slab = ToUint(near) / kSlotsPerSlab, slot = ToUint(near) % kSlotsPerSlab;
  if (slab >= slabs_.size()) return 0;  // kNullBlock, too
  return ClaimIn(
      slab, bin, [&](uint64_t bits) { return FollowingBits(bits, slot, out.size()); }, out);
}

// Free lanes first, then new slabs while more than a quarter of the pool is left, then the holes
// between other sequences' runs. With several block sizes holes come before new slabs: a size that
// spread over more slabs than it fills would take those that the plan gave to another.
// Requires: mutex_ is held.
size_t BlockPool::ClaimLocked(uint32_t bin, std::span<BlockId> out) {
  const auto num_slabs = static_cast<uint32_t>(slabs_.size());
  size_t got = 0;
  for (uint32_t i = 0; i < num_slabs && got < out.size(); ++i) {
    const std::span<BlockId> rest = out.subspan(got);
    got += ClaimIn(
        i, bin, [&](uint64_t bits) { return LaneBits(bits, rest.size(), bins_[bin].lane_slots); },
        rest);
  }
  while (got < out.size() && bins_.size() == 1 && num_free_slabs_ > num_slabs / 4) {
    got += ClaimFreshSlab(bin, out.subspan(got));
  }
  for (uint32_t i = 0; i < num_slabs && got < out.size(); ++i) {
    const std::span<BlockId> rest = out.subspan(got);
    got += ClaimIn(
        i, bin, [&](uint64_t bits) { return LowestBits(bits, rest.size()); }, rest);
  }
  while (got < out.size() && num_free_slabs_ > 0) got += ClaimFreshSlab(bin, out.subspan(got));
  return got;
}

// Gives the lowest free slab to the bin and claims its first slots in the same step, so that it is
// never seen empty. Requires: mutex_ is held, num_free_slabs_ > 0, out is not empty.
size_t BlockPool::ClaimFreshSlab(uint32_t bin, std::span<BlockId> out) {
  uint32_t index = 0;
  while (slabs_[index].bin.load(std::memory_order_relaxed) != kNoBin) ++index;
  Slab& slab = slabs_[index];
  slab.block_bytes = bins_[bin].block_bytes;
  slab.num_slots = bins_[bin].num_slots;
  const auto got = static_cast<uint32_t>(std::min<size_t>(out.size(), slab.num_slots));
  for (uint32_t slot = 0; slot < got; ++slot) out[slot] = BlockId{index * kSlotsPerSlab + slot};
  slab.bin.store(bin, std::memory_order_relaxed);
  slab.free_bits.store(LowBits(slab.num_slots) & ~LowBits(got), std::memory_order_release);
  --num_free_slabs_;
  if (large_pages_) CommitSlab(slab);
  return got;
}

// The first write to any block commits all of the slab: so the ledger says from the start.
// Requires: mutex_ is held.
void BlockPool::CommitSlab(Slab& slab) {
  slab.touched_bits.store(LowBits(slab.num_slots), std::memory_order_relaxed);
  touched_bytes_ += static_cast<uint64_t>(slab.num_slots) * slab.block_bytes;
  reservation_.SetUsed(committed_bytes());
}

// Makes claimed blocks the caller's: one reference each, and the ledger knows of them.
void BlockPool::Publish(std::span<const BlockId> ids) {
  const auto is_fresh = [&](BlockId id) {
    const uint64_t touched =
        slabs_[ToUint(id) / kSlotsPerSlab].touched_bits.load(std::memory_order_relaxed);
    return (touched >> (ToUint(id) % kSlotsPerSlab) & 1) == 0;
  };
  bool any_fresh = false;
  for (BlockId id : ids) {
    refs_[ToUint(id)].store(1, std::memory_order_relaxed);
    any_fresh = any_fresh || is_fresh(id);
  }
  if (!any_fresh) return;
  const std::lock_guard lock(mutex_);
  for (BlockId id : ids) {
    if (!is_fresh(id)) continue;
    Slab& slab = slabs_[ToUint(id) / kSlotsPerSlab];
    slab.touched_bits.fetch_or(uint64_t{1} << (ToUint(id) % kSlotsPerSlab),
                               std::memory_order_relaxed);
    touched_bytes_ += slab.block_bytes;
  }
  reservation_.SetUsed(committed_bytes());
}

void BlockPool::AddRef(BlockId id) {
  TAEL_CHECK(ToUint(id) < refs_.size());
  const uint32_t before = refs_[ToUint(id)].fetch_add(1, std::memory_order_relaxed);
  TAEL_CHECK(before > 0);  // a free block cannot be shared
}

void BlockPool::Release(BlockId id) {
  TAEL_CHECK(ToUint(id) < refs_.size());
  const uint32_t before = refs_[ToUint(id)].fetch_sub(1, std::memory_order_acq_rel);
  TAEL_CHECK(before > 0);  // released twice
  if (before > 1) return;
  if (poison_freed_) std::memset(data(id), 0xff, slabs_[ToUint(id) / kSlotsPerSlab].block_bytes);
  PutBack(id);
}

// Sets the free bit. Requires: no reference is left, or none was published.
void BlockPool::PutBack(BlockId id) {
  const uint32_t index = ToUint(id) / kSlotsPerSlab;
  Slab& slab = slabs_[index];
  const uint64_t bit = uint64_t{1} << (ToUint(id) % kSlotsPerSlab);
  const uint64_t full = LowBits(slab.num_slots);  // read while we still hold the slot
  const uint64_t before = slab.free_bits.fetch_or(bit, std::memory_order_acq_rel);
  if ((before | bit) == full) RetireIfEmpty(index);
}

// Another thread may have claimed a slot meanwhile, or may have retired the slab before us: the
// compare-exchange from "all free" decides.
void BlockPool::RetireIfEmpty(uint32_t slab_index) {
  const std::lock_guard lock(mutex_);
  Slab& slab = slabs_[slab_index];
  if (slab.bin.load(std::memory_order_relaxed) == kNoBin) return;
  uint64_t full = LowBits(slab.num_slots);
  if (!slab.free_bits.compare_exchange_strong(full, 0, std::memory_order_acq_rel,
                                              std::memory_order_relaxed)) {
    return;
  }
  const uint64_t touched = slab.touched_bits.exchange(0, std::memory_order_relaxed);
  touched_bytes_ -= static_cast<uint64_t>(std::popcount(touched)) * slab.block_bytes;
  if (touched != 0) {
    const size_t end = large_pages_
                           ? slab_bytes_
                           : static_cast<size_t>(std::bit_width(touched)) * slab.block_bytes;
    const size_t offset = slab_index * slab_bytes_;
    // Poisoned blocks keep their NaNs: zeros would hide a read after the release.
    if (!poison_freed_ && !commit_all_)
      range_.Discard(offset, std::min(slab_bytes_, RoundUp(end, mem::PageSize())));
    reservation_.SetUsed(committed_bytes());
  }
  slab.bin.store(kNoBin, std::memory_order_relaxed);
  slab.num_slots = 0;
  slab.block_bytes = 0;
  ++num_free_slabs_;
}

uint32_t BlockPool::refs(BlockId id) const {
  TAEL_CHECK(ToUint(id) < refs_.size());
  return refs_[ToUint(id)].load(std::memory_order_relaxed);
}

// Requires: mutex_ is held.
uint64_t BlockPool::CountFreeLocked(uint32_t bin) const {
  uint64_t count = static_cast<uint64_t>(num_free_slabs_) * bins_[bin].num_slots;
  for (const Slab& slab : slabs_) {
    if (slab.bin.load(std::memory_order_relaxed) != bin) continue;
    count += static_cast<uint64_t>(std::popcount(slab.free_bits.load(std::memory_order_relaxed)));
  }
  return count;
}

uint64_t BlockPool::NumFree(SizeClass size_class) const {
  TAEL_CHECK(static_cast<size_t>(size_class) < bin_of_class_.size());
  const std::lock_guard lock(mutex_);
  return CountFreeLocked(bin_of_class_[static_cast<size_t>(size_class)]);
}

uint64_t BlockPool::NumInUse(SizeClass size_class) const {
  TAEL_CHECK(static_cast<size_t>(size_class) < bin_of_class_.size());
  const uint32_t bin = bin_of_class_[static_cast<size_t>(size_class)];
  const std::lock_guard lock(mutex_);
  uint64_t count = 0;
  for (const Slab& slab : slabs_) {
    if (slab.bin.load(std::memory_order_relaxed) != bin) continue;
    const uint64_t free = slab.free_bits.load(std::memory_order_relaxed);
    count += slab.num_slots - static_cast<uint32_t>(std::popcount(free));
  }
  return count;
}

PoolStats BlockPool::Stats() const {
  const std::lock_guard lock(mutex_);
  PoolStats stats;
  stats.capacity_bytes = slabs_.size() * slab_bytes_;
  stats.slab_bytes = slab_bytes_;
  stats.num_slabs = static_cast<uint32_t>(slabs_.size());
  stats.num_slabs_in_use = stats.num_slabs - num_free_slabs_;
  stats.touched_bytes = touched_bytes_;
  for (const Slab& slab : slabs_) {
    const uint64_t bits = slab.free_bits.load(std::memory_order_relaxed);
    const auto used = slab.num_slots - static_cast<uint32_t>(std::popcount(bits));
    stats.num_blocks_in_use += used;
    stats.block_bytes_in_use += static_cast<uint64_t>(used) * slab.block_bytes;
  }
  return stats;
}

bool BlockPool::SlabIsSound(uint32_t slab_index) const {
  const Slab& slab = slabs_[slab_index];
  const uint32_t bin = slab.bin.load(std::memory_order_relaxed);
  const uint64_t free = slab.free_bits.load(std::memory_order_relaxed);
  const uint64_t touched = slab.touched_bits.load(std::memory_order_relaxed);
  uint64_t referenced = 0;
  for (uint32_t slot = 0; slot < kSlotsPerSlab; ++slot) {
    const bool held = refs_[slab_index * kSlotsPerSlab + slot].load(std::memory_order_relaxed) > 0;
    referenced |= static_cast<uint64_t>(held) << slot;
  }
  if (bin == kNoBin) return slab.num_slots == 0 && free == 0 && touched == 0 && referenced == 0;
  if (bin >= bins_.size()) return false;
  const uint64_t full = LowBits(bins_[bin].num_slots);
  return slab.num_slots == bins_[bin].num_slots && slab.block_bytes == bins_[bin].block_bytes &&
         (free ^ referenced) == full && (free & referenced) == 0 && referenced != 0 &&
         (touched & referenced) == referenced && (touched & ~full) == 0;
}

bool BlockPool::CheckInvariants() const {
  const std::lock_guard lock(mutex_);
  uint32_t num_free_slabs = 0;
  uint64_t touched_bytes = 0;
  for (uint32_t i = 0; i < slabs_.size(); ++i) {
    if (!SlabIsSound(i)) return false;
    const Slab& slab = slabs_[i];
    const uint64_t touched = slab.touched_bits.load(std::memory_order_relaxed);
    touched_bytes += static_cast<uint64_t>(std::popcount(touched)) * slab.block_bytes;
    if (slab.num_slots == 0) ++num_free_slabs;
  }
  return num_free_slabs == num_free_slabs_ && touched_bytes == touched_bytes_ &&
         reservation_.used_bytes() == committed_bytes();
}

}  // namespace tael::kv
