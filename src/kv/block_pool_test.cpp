#include "kv/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tael::kv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr size_t kBlock = 4096;
constexpr SizeClass kClass{0};

std::vector<int> Ints(std::span<const BlockId> ids) {
  std::vector<int> out;
  for (BlockId id : ids) out.push_back(static_cast<int>(id));
  return out;
}

size_t ResidentPages(const BlockPool& pool) {
  const PoolStats stats = pool.Stats();
  std::byte* const begin = pool.data(BlockId{0});
  const size_t page = mem::PageSize();
  std::vector<unsigned char> in_core(stats.capacity_bytes / page);
  EXPECT_EQ(::mincore(begin, stats.capacity_bytes, in_core.data()), 0);
  return static_cast<size_t>(std::ranges::count_if(in_core, [](auto x) { return (x & 1) != 0; }));
}

// Slabs of eight blocks, four slabs, unless a test says otherwise.
struct PoolTest : testing::Test {
  mem::MemoryBudget budget{uint64_t{1} << 30};
  std::unique_ptr<BlockPool> pool;

  void SetUp() override { Make({{kBlock}, 32 * kBlock, 8 * kBlock, 0, false}); }
  void TearDown() override { EXPECT_TRUE(pool == nullptr || pool->CheckInvariants()); }

  void Make(const PoolOptions& options) {
    auto made = BlockPool::Create(budget, options);
    ASSERT_TRUE(made.has_value()) << made.error().Message();
    pool = *std::move(made);
  }
  std::vector<BlockId> Take(size_t n, BlockId near = kNullBlock, SizeClass size_class = kClass) {
    std::vector<BlockId> ids(n, kNullBlock);
    const Status status = pool->Allocate(size_class, near, ids);
    if (!status) ids.clear();
    return ids;
  }
  void Give(std::span<const BlockId> ids) {
    for (BlockId id : ids) pool->Release(id);
  }
};

TEST_F(PoolTest, BlocksFollowTheLastBlockWhileItsNeighboursAreFree) {
  const auto first = Take(2);
  const auto second = Take(1);
  EXPECT_THAT(Ints(first), ElementsAre(0, 1));
  EXPECT_THAT(Ints(second), ElementsAre(4));  // a lane of its own, so that both can grow
  const auto more = Take(3, first.back());
  EXPECT_THAT(Ints(more), ElementsAre(2, 3, 64));  // 4 is taken: on to a fresh slab
  const auto grown = Take(2, second.back());
  EXPECT_THAT(Ints(grown), ElementsAre(5, 6));
  for (const auto& ids : {first, second, more, grown}) Give(ids);
}

TEST_F(PoolTest, ARunOfManyBlocksCrossesSlabs) {
  const auto ids = Take(11);
  EXPECT_THAT(Ints(ids), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 64, 65, 66));
  Give(ids);
}

TEST_F(PoolTest, HolesAreFilledOnceThreeQuartersOfTheSlabsAreTaken) {
  const auto a = Take(1), b = Take(1), c = Take(1), d = Take(1), e = Take(1), f = Take(1);
  EXPECT_THAT(Ints(f), ElementsAre(128 + 4));  // the last lane of the third of four slabs
  const auto g = Take(2);
  EXPECT_THAT(Ints(g), ElementsAre(1, 2));  // the fourth slab is kept for whoever needs it
  for (const auto& ids : {a, b, c, d, e, f, g}) Give(ids);
}

TEST_F(PoolTest, EveryLastBlockCanBeUsed) {
  const auto a = Take(1), b = Take(1), c = Take(29);
  EXPECT_EQ(c.size(), 29u);
  EXPECT_EQ(pool->NumFree(kClass), 1u);
  const auto d = Take(1);
  EXPECT_EQ(d.size(), 1u);
  EXPECT_TRUE(Take(1).empty());
  for (const auto& ids : {a, b, c, d}) Give(ids);
}

// Three runs of the first size leave holes in its one slab; they must not open the second slab.
TEST(BlockPoolSizes, OneDoesNotSpreadOverTheSlabsOfAnother) {
  mem::MemoryBudget budget(0);
  constexpr size_t kLarge = 64 << 10, kSmall = 32 << 10, kSlab = size_t{2} << 20;
  auto pool = BlockPool::Create(
      budget, {.block_bytes = {kLarge, kSmall}, .capacity_bytes = 2 * kSlab, .slab_bytes = kSlab});
  ASSERT_TRUE(pool.has_value());
  std::vector<BlockId> ids(4);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE((*pool)->Allocate(SizeClass{0}, kNullBlock, {&ids[i], 1}).has_value());
  }
  EXPECT_TRUE((*pool)->Allocate(SizeClass{1}, kNullBlock, {&ids[3], 1}).has_value());
  for (const BlockId id : ids) (*pool)->Release(id);
}

TEST_F(PoolTest, AFailedAllocateChangesNothing) {
  const auto held = Take(25);
  const PoolStats before = pool->Stats();
  const size_t pages = ResidentPages(*pool);
  std::vector<BlockId> ids(8);
  const Status refused = pool->Allocate(kClass, held.back(), ids);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoFreeBlocks);
  const PoolStats after = pool->Stats();
  EXPECT_EQ(after.num_blocks_in_use, before.num_blocks_in_use);
  EXPECT_EQ(after.num_slabs_in_use, before.num_slabs_in_use);
  EXPECT_EQ(after.touched_bytes, before.touched_bytes);
  EXPECT_EQ(ResidentPages(*pool), pages);
  EXPECT_EQ(pool->NumFree(kClass), 7u);
  const auto rest = Take(7);
  EXPECT_EQ(rest.size(), 7u);
  Give(rest);
  Give(held);
}

TEST_F(PoolTest, ARowThatDoesNotFitWhollyIsNotGrantedInPart) {
  const auto held = Take(24);  // one slab of eight is left
  std::vector<BlockId> a(5), b(4);
  const std::vector<BlockPool::Request> requests = {{kClass, held.back(), a},
                                                    {kClass, kNullBlock, b}};
  EXPECT_FALSE(pool->Allocate(requests).has_value());
  EXPECT_EQ(pool->Stats().num_slabs_in_use, 3u);
  EXPECT_EQ(pool->Stats().touched_bytes, 24 * kBlock);
  EXPECT_EQ(pool->NumFree(kClass), 8u);
  Give(held);
}

TEST_F(PoolTest, ASharedBlockOutlivesTheOneWhoMadeIt) {
  const auto ids = Take(3);
  pool->AddRef(ids[0]);
  EXPECT_EQ(pool->refs(ids[0]), 2u);
  Give(ids);
  EXPECT_EQ(pool->refs(ids[0]), 1u);
  EXPECT_EQ(pool->refs(ids[1]), 0u);
  EXPECT_EQ(pool->Stats().num_blocks_in_use, 1u);
  pool->Release(ids[0]);
  EXPECT_EQ(pool->Stats().num_slabs_in_use, 0u);
}

using PoolDeathTest = PoolTest;

TEST_F(PoolDeathTest, ABlockCannotBeReleasedTwice) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ids = Take(2);
  pool->Release(ids[1]);
  EXPECT_DEATH(pool->Release(ids[1]), "before > 0");
  EXPECT_DEATH(pool->AddRef(ids[1]), "before > 0");
  pool->Release(ids[0]);
}

TEST_F(PoolDeathTest, APoolDoesNotDieBeforeItsBlocks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ids = Take(1);
  EXPECT_DEATH(pool.reset(), "num_free_slabs_");
  Give(ids);
}

TEST_F(PoolTest, ABlockThatIsNotUsedIsNotTouched) {
  constexpr size_t kLarge = 64 * 1024;
  Make({{kLarge}, 1024 * kLarge, 0, 0, false});
  const auto ids = Take(1000);
  ASSERT_EQ(ids.size(), 1000u);
  EXPECT_EQ(ResidentPages(*pool), 0u);
  std::memset(pool->data(ids[500]), 1, kLarge);
  EXPECT_EQ(ResidentPages(*pool), kLarge / mem::PageSize());
  Give(ids);
  EXPECT_EQ(ResidentPages(*pool), 0u);
}

TEST_F(PoolTest, PagesComeBackWithTheLastBlockOfASlabAndNotBefore) {
  const auto ids = Take(8);
  for (BlockId id : ids) std::memset(pool->data(id), 1, kBlock);
  const size_t slab_pages = 8 * kBlock / mem::PageSize();
  EXPECT_EQ(ResidentPages(*pool), slab_pages);
  for (size_t i = 8; i-- > 1;) pool->Release(ids[i]);
  EXPECT_EQ(ResidentPages(*pool), slab_pages);
  EXPECT_EQ(pool->Stats().touched_bytes, 8 * kBlock);
  pool->Release(ids[0]);
  EXPECT_EQ(ResidentPages(*pool), 0u);
  EXPECT_EQ(pool->Stats().touched_bytes, 0u);
}

// 2 MiB slabs of 32 blocks have lanes of 16.
TEST_F(PoolTest, LargeSlabsStartRunsAtLanesOfSixteen) {
  constexpr size_t kLarge = 64 * 1024;
  Make({{kLarge}, 256 * kLarge, 32 * kLarge, 0, false, false});
  const auto a = Take(2), b = Take(1), c = Take(1);
  EXPECT_THAT(Ints(a), ElementsAre(0, 1));
  EXPECT_THAT(Ints(b), ElementsAre(16));
  EXPECT_THAT(Ints(c), ElementsAre(64));
  const auto more = Take(20, a.back());
  EXPECT_EQ(static_cast<int>(more[13]), 15);  // its own lane to the end, then a lane further on
  EXPECT_EQ(static_cast<int>(more[14]), 64 + 16);
  for (const auto& ids : {a, b, c, more}) Give(ids);
}

// Sequences that grow in turn, after much coming and going, still get long runs.
TEST_F(PoolTest, RunsStayLongAfterManyHistories) {
  constexpr size_t kLarge = 64 * 1024;
  Make({{kLarge}, 4096 * kLarge, 32 * kLarge, 0, false, false});
  std::mt19937 random(1);
  std::vector<std::vector<BlockId>> sequences(16);
  size_t runs = 0, blocks = 0;
  for (int step = 0; step < 100000; ++step) {
    auto& ids = sequences[random() % sequences.size()];
    const bool ends = ids.size() >= 128;
    for (size_t i = 1; ends && i < ids.size(); ++i) {
      if (step > 50000) runs += static_cast<int>(ids[i]) != static_cast<int>(ids[i - 1]) + 1;
      if (step > 50000) ++blocks;
    }
    if (ends) {
      Give(ids);
      ids.clear();
    } else {
      const auto got = Take(1 + random() % 3, ids.empty() ? kNullBlock : ids.back());
      ids.insert(ids.end(), got.begin(), got.end());
    }
  }
  EXPECT_GT(blocks, 10 * runs);
  for (const auto& ids : sequences) Give(ids);
}

TEST_F(PoolTest, WithLargePagesASlabCountsAsAWhole) {
  const size_t large = mem::LargePageBytes();
  if (large == 0) GTEST_SKIP() << "the system gives no large pages";
  Make({{large / 32}, 8 * large, large, 0, false, true});
  const auto ids = Take(1);
  EXPECT_EQ(pool->Stats().touched_bytes, large);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pool->data(ids[0])) % large, 0u);
  std::memset(pool->data(ids[0]), 1, large / 32);
  EXPECT_LE(ResidentPages(*pool), large / mem::PageSize());
  Give(ids);
  EXPECT_EQ(ResidentPages(*pool), 0u);
  EXPECT_EQ(pool->Stats().touched_bytes, 0u);
}

TEST_F(PoolTest, SlabsThatAreNoLargePagesKeepSmallOnes) {
  Make({{kBlock}, 32 * kBlock, 8 * kBlock, 0, false, true});
  const auto ids = Take(1);
  EXPECT_EQ(pool->Stats().touched_bytes, kBlock);
  Give(ids);
}

TEST_F(PoolTest, TheLedgerFollowsWhatWasHandedOut) {
  const auto kv_used = [&] {
    return budget.Snapshot().parts[static_cast<size_t>(mem::MemoryTag::kKv)].used_bytes;
  };
  EXPECT_EQ(budget.reserved_bytes(), 32 * kBlock);
  EXPECT_EQ(kv_used(), 0u);
  auto ids = Take(5);
  EXPECT_EQ(kv_used(), 5 * kBlock);
  pool->Release(ids.back());  // stays committed: its slab lives
  ids.pop_back();
  EXPECT_EQ(kv_used(), 5 * kBlock);
  const auto again = Take(1, ids.back());
  EXPECT_EQ(kv_used(), 5 * kBlock);
  Give(again);
  Give(ids);
  EXPECT_EQ(kv_used(), 0u);
  pool.reset();
  EXPECT_EQ(budget.reserved_bytes(), 0u);
}

TEST_F(PoolTest, SlabsWanderBetweenBlockSizes) {
  Make({{kBlock, 2 * kBlock, kBlock}, 32 * kBlock, 8 * kBlock, 0, false});
  EXPECT_EQ(pool->NumFree(SizeClass{0}), 32u);
  EXPECT_EQ(pool->NumFree(SizeClass{1}), 16u);
  const auto small = Take(1);
  EXPECT_EQ(pool->NumFree(SizeClass{1}), 12u);
  const auto large = Take(12, small[0], SizeClass{1});  // `near` is of another size: ignored
  EXPECT_THAT(Ints(std::span(large).first(5)), ElementsAre(64, 65, 66, 67, 128));
  EXPECT_EQ(pool->data(large[1]) - pool->data(large[0]), 2 * static_cast<ptrdiff_t>(kBlock));
  EXPECT_EQ(pool->NumFree(SizeClass{2}), 7u);  // equal sizes share slabs
  Give(large);
  const auto other = Take(31, kNullBlock, SizeClass{2});
  EXPECT_EQ(other.size(), 31u);
  Give(other);
  Give(small);
}

TEST_F(PoolTest, AnEagerPoolIsInMemoryFromStartToEnd) {
  Make({.block_bytes = {kBlock},
        .capacity_bytes = 32 * kBlock,
        .slab_bytes = 8 * kBlock,
        .commit_all = true});
  const size_t all = 32 * kBlock / mem::PageSize();
  EXPECT_EQ(ResidentPages(*pool), all);
  EXPECT_EQ(budget.Snapshot().used_bytes, 32 * kBlock);
  Give(Take(10));
  EXPECT_EQ(ResidentPages(*pool), all);
  EXPECT_EQ(budget.Snapshot().used_bytes, 32 * kBlock);
}

TEST_F(PoolTest, CompactingGivesSlabsBackAndKeepsWhatBlocksHold) {
  std::mt19937 rng(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<BlockId> ids = Take(32);
    std::ranges::shuffle(ids, rng);
    const size_t kept = 1 + rng() % 31;
    Give(std::span(ids).subspan(kept));
    ids.resize(kept);
    for (size_t i = 0; i < kept; ++i) {
      std::memset(pool->data(ids[i]), static_cast<int>(i + 1), kBlock);
      if (i % 3 == 0) pool->AddRef(ids[i]);
    }
    const std::vector<BlockPool::Move> moves = pool->Compact();
    ASSERT_TRUE(pool->CheckInvariants());
    EXPECT_EQ(pool->Stats().num_slabs_in_use, (kept + 7) / 8) << kept << " blocks, 8 to a slab";
    EXPECT_TRUE(std::ranges::is_sorted(moves, {}, &BlockPool::Move::from));
    for (size_t i = 0; i < kept; ++i) {
      const BlockId now = BlockPool::After(moves, ids[i]);
      EXPECT_EQ(pool->data(now)[0], static_cast<std::byte>(i + 1));
      EXPECT_EQ(pool->data(now)[kBlock - 1], static_cast<std::byte>(i + 1));
      EXPECT_EQ(pool->refs(now), i % 3 == 0 ? 2u : 1u);
      if (i % 3 == 0) pool->Release(now);
      pool->Release(now);
    }
    EXPECT_EQ(pool->Stats().num_slabs_in_use, 0u);
  }
}

TEST_F(PoolTest, CompactingMovesNothingWhereNoSlabBecomesEmpty) {
  const std::vector<BlockId> ids = Take(15);  // of two slabs
  EXPECT_TRUE(pool->Compact().empty());
  Give(ids);
}

TEST_F(PoolTest, FreedBlocksReadAsNanWhenPoisoned) {
  Make({{kBlock}, 32 * kBlock, 8 * kBlock, 0, true});
  const auto ids = Take(2);
  std::byte* const freed = pool->data(ids[1]);
  std::memset(freed, 0, kBlock);
  Give(ids);
  EXPECT_TRUE(std::all_of(freed, freed + kBlock, [](std::byte b) { return b == std::byte{0xff}; }));
}

TEST_F(PoolTest, SlabsFitTheBlockSizes) {
  const auto slab_bytes = [&](std::vector<size_t> sizes, uint64_t capacity, size_t page) {
    PoolOptions options{std::move(sizes), capacity, 0, page, false};
    const auto made = BlockPool::Create(budget, options);
    return made ? (*made)->Stats().slab_bytes : 0;
  };
  constexpr uint64_t kLots = uint64_t{256} << 20;
  EXPECT_EQ(slab_bytes({64 << 10}, kLots, 4096), 1u << 20);
  EXPECT_EQ(slab_bytes({60 << 10}, kLots, 4096), 17u * 60 << 10);
  EXPECT_EQ(slab_bytes({64 << 10, 48 << 10}, kLots, 4096), 960u << 10);
  EXPECT_EQ(slab_bytes({2048}, kLots, 4096), 128u << 10);       // 64 blocks at most
  EXPECT_EQ(slab_bytes({1 << 20}, kLots, 4096), 4u << 20);      // four at least
  EXPECT_EQ(slab_bytes({4096}, 256 << 10, 4096), 64u << 10);    // a small pool has several slabs
  EXPECT_EQ(slab_bytes({60 << 10}, kLots, 65536) % 65536, 0u);  // whole pages of any size
}

TEST_F(PoolTest, OptionsThatCannotBeAreRefused) {
  const auto refusal = [&](const PoolOptions& options) {
    const auto made = BlockPool::Create(budget, options);
    EXPECT_FALSE(made.has_value());
    return made ? Error{} : made.error();
  };
  const std::vector<PoolOptions> bad = {
      {{}, 1 << 20, 0, 0, false},                                // no sizes
      {{0}, 1 << 20, 0, 0, false},                               // nothing in a block
      {{100}, 1 << 20, 0, 0, false},                             // not a multiple of 64
      {{size_t{1} << 40}, 1 << 20, 0, 0, false},                 // absurd
      {{kBlock}, 0, 0, 0, false},                                // nothing in the pool
      {{kBlock, 2 * kBlock}, 8 * kBlock, 8 * kBlock, 0, false},  // one slab for two sizes
      {{kBlock}, 1 << 20, 6000, 0, false},                       // a slab that is not whole pages
      {{kBlock}, 1 << 20, 6000, 3000, false},                    // a page that is no power of two
      {{64}, uint64_t{1} << 45, 4096, 4096, false},              // more than ids can name
  };
  for (const PoolOptions& options : bad) {
    EXPECT_EQ(refusal(options).code, ErrorCode::kInvalidArgument);
  }
  EXPECT_THAT(refusal(bad[5]).Message(), HasSubstr("32.8 kB"));
  EXPECT_EQ(refusal({{kBlock}, uint64_t{2} << 30, 0, 0, false}).code, ErrorCode::kOutOfBudget);
  EXPECT_EQ(budget.reserved_bytes(), 32 * kBlock);  // the fixture's pool; nothing leaked
}

// A plain model of the pool: who holds what. It knows from the ids alone which slabs are taken, and
// so whether a request must be granted.
class Model {
 public:
  Model(std::vector<uint32_t> slots_by_class, uint32_t num_slabs)
      : slots_(std::move(slots_by_class)), num_slabs_(num_slabs) {}

  uint64_t NumFree(uint32_t c) const {
    std::map<uint32_t, uint32_t> slabs;  // slab -> slots of its size
    uint64_t held = 0;
    for (const auto& [id, block] : blocks_) {
      slabs[id / 64] = slots_[block.size_class];
      if (slots_[block.size_class] == slots_[c]) ++held;
    }
    uint64_t total = (num_slabs_ - slabs.size()) * slots_[c];
    for (const auto& [slab, slots] : slabs) {
      if (slots == slots_[c]) total += slots;
    }
    return total - held;
  }

  struct Block {
    uint32_t size_class;
    uint32_t refs;
  };
  std::map<uint32_t, Block> blocks_;

 private:
  std::vector<uint32_t> slots_;
  uint32_t num_slabs_;
};

struct Storm {
  BlockPool& pool;
  Model model;
  std::mt19937 random;
  std::vector<BlockId> held;  // one entry per reference
  size_t num_granted = 0;
  size_t num_refused = 0;

  size_t Below(size_t n) { return random() % n; }

  void Allocate() {
    const auto c = static_cast<uint32_t>(Below(3));
    std::vector<BlockId> ids(1 + Below(12));
    const BlockId near = held.empty() || Below(4) == 0 ? kNullBlock : held[Below(held.size())];
    const bool fits = ids.size() <= model.NumFree(c);
    ASSERT_EQ(pool.Allocate(SizeClass{c}, near, ids).has_value(), fits);
    ++(fits ? num_granted : num_refused);
    if (!fits) return;
    for (BlockId id : ids) {
      const bool is_new = model.blocks_.insert({static_cast<uint32_t>(id), {c, 1}}).second;
      ASSERT_TRUE(is_new) << "a block was handed out twice";
      held.push_back(id);
    }
  }

  void Share() {
    const BlockId id = held[Below(held.size())];
    pool.AddRef(id);
    ++model.blocks_.at(static_cast<uint32_t>(id)).refs;
    held.push_back(id);
  }

  void Release() {
    const size_t at = Below(held.size());
    const BlockId id = std::exchange(held[at], held.back());
    held.pop_back();
    pool.Release(id);
    if (--model.blocks_.at(static_cast<uint32_t>(id)).refs == 0) {
      model.blocks_.erase(static_cast<uint32_t>(id));
    }
  }

  void Check() {
    ASSERT_TRUE(pool.CheckInvariants());
    for (const auto& [id, block] : model.blocks_) ASSERT_EQ(pool.refs(BlockId{id}), block.refs);
    ASSERT_EQ(pool.Stats().num_blocks_in_use, model.blocks_.size());
    for (uint32_t c = 0; c < 3; ++c) ASSERT_EQ(pool.NumFree(SizeClass{c}), model.NumFree(c));
  }
};

TEST_F(PoolTest, RandomHistoriesAgreeWithAPlainModel) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    Make({{kBlock, 2 * kBlock, kBlock}, 128 * kBlock, 8 * kBlock, 0, false});
    Storm storm{*pool, Model({8, 4, 8}, 16), std::mt19937(seed), {}, 0, 0};
    for (int i = 0; i < 250000 && !HasFatalFailure(); ++i) {
      // Phases of growth and of shrinking, so that the pool is full at times and empty at others.
      const size_t dice = storm.Below(100);
      const size_t grow = (i / 400) % 2 == 0 ? 30 : 4;
      if (storm.held.empty() || dice < grow) {
        storm.Allocate();
      } else if (dice < 40) {
        storm.Share();
      } else {
        storm.Release();
      }
      if (i % 500 == 0) storm.Check();
    }
    storm.Check();
    EXPECT_GT(storm.num_granted, 1000u);
    EXPECT_GT(storm.num_refused, 1000u);
    Give(storm.held);
    EXPECT_EQ(pool->Stats().num_slabs_in_use, 0u);
  }
}

// A thread writes its number at both ends of its blocks: one that two threads hold at once shows.
struct Hammer {
  BlockPool& pool;
  std::vector<size_t> block_bytes;  // of classes 0 and 1
  uint32_t number;
  size_t max_held;
  std::mt19937 random{number};
  std::vector<std::pair<BlockId, size_t>> held = {};

  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random() % n); }

  void ReleaseLast() {
    const auto [id, bytes] = held.back();
    held.pop_back();
    uint32_t first = 0, last = 0;
    std::memcpy(&first, pool.data(id), sizeof(first));
    std::memcpy(&last, pool.data(id) + bytes - sizeof(last), sizeof(last));
    EXPECT_EQ(first, number);
    EXPECT_EQ(last, number);
    pool.Release(id);
  }

  void Run(int num_rounds) {
    const uint32_t num_ids = pool.Stats().num_slabs * 64;
    for (int i = 0; i < num_rounds; ++i) {
      const uint32_t size_class = Below(2);
      std::vector<BlockId> ids(1 + Below(6));
      // A stale hint half of the time: any id, of any size, free or not.
      const bool stale = held.empty() || Below(2) == 0;
      const BlockId near = stale ? BlockId{Below(num_ids)} : held.back().first;
      if (pool.Allocate(SizeClass{size_class}, near, ids)) {
        for (BlockId id : ids) {
          const size_t bytes = block_bytes[size_class];
          const auto slot = static_cast<uint32_t>(id) % 64;
          const std::byte* slab = pool.data(BlockId{static_cast<uint32_t>(id) - slot});
          EXPECT_EQ(pool.data(id), slab + slot * bytes) << "a slab of another size";
          std::memcpy(pool.data(id), &number, sizeof(number));
          std::memcpy(pool.data(id) + bytes - sizeof(number), &number, sizeof(number));
          held.emplace_back(id, bytes);
        }
      }
      for (const size_t keep = random() % max_held; held.size() > keep;) ReleaseLast();
    }
    while (!held.empty()) ReleaseLast();
  }
};

void HammerFromEightThreads(BlockPool& pool, std::vector<size_t> sizes, size_t max_held) {
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] { Hammer{pool, sizes, t + 1, max_held}.Run(5000); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(pool.CheckInvariants());
  EXPECT_EQ(pool.Stats().num_slabs_in_use, 0u);
  EXPECT_EQ(pool.Stats().touched_bytes, 0u);
}

TEST_F(PoolTest, ThreadsThatFightOverTheLastBlocksNeverShareOne) {
  const std::vector<size_t> sizes = {kBlock, 3 * kBlock};
  Make({sizes, 128 * kBlock, 8 * kBlock, 0, false});
  HammerFromEightThreads(*pool, sizes, 24);
}

// Both sizes have 64 slots per slab, so the free word alone cannot tell a slab's former life.
TEST_F(PoolTest, AStaleHintIsHarmlessWhileSlabsChangeHands) {
  const std::vector<size_t> sizes = {64, 128};
  Make({sizes, 4 * kBlock, 2 * kBlock, 0, false});
  HammerFromEightThreads(*pool, sizes, 1);
}

TEST_F(PoolTest, AnyThreadMayDropTheLastReference) {
  const auto ids = Take(8);
  for (BlockId id : ids) {
    for (int i = 0; i < 7; ++i) pool->AddRef(id);
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) threads.emplace_back([&] { Give(ids); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool->Stats().num_blocks_in_use, 0u);
}

}  // namespace
}  // namespace tael::kv
