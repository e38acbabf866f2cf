// Sequences with a tail: which tokens stay, what is never written, and what a failure leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "kv/block_pool.h"
#include "kv/sequence.h"
#include "kv/testing.h"
#include "kv/window_policy.h"

namespace tael::kv {
namespace {

constexpr GroupId kGroup{0};
constexpr size_t kDim = 8;

// One layer with one head. A token's KV is its id, in all dimensions.
struct TailTest : testing::Test {
  mem::MemoryBudget budget{0};
  Geometry geometry =
      MakeGeometry(std::vector<LayerShape>(
                       1, {.num_kv_heads = 1, .head_dim = kDim, .type = kernels::KvType::kF32}),
                   ScalarKernels());
  std::unique_ptr<BlockPool> pool;
  Window window;

  void SetUp() override {
    ApplyWindow({.tokens = 96, .sinks = 4, .shape = WindowShape::kUniform, .evict = Evict::kHeavy},
                geometry);
    const LayerShape& shape = geometry.groups[0].shape;
    window = {shape.window, shape.sinks, shape.tail};
    ASSERT_EQ(window.tail, 16u);      // a quarter of 96, in blocks
    ASSERT_EQ(window.recent(), 64u);  // 4 + 16 + 64 + 8 <= 96
    ASSERT_EQ(window.first_choice(), 112u);
    pool = TestPool(budget, geometry, 100);
  }
  void TearDown() override { EXPECT_TRUE(pool->CheckInvariants()); }

  static float* KeyOf(std::byte* block, uint32_t slot) {
    return reinterpret_cast<float*>(block) + slot % 16;
  }
  // Appends tokens `id`, `id` + 1, ... and gives `mass` to each of the slots.
  Status Append(Sequence& sequence, uint32_t count, float id,
                const std::vector<std::pair<uint32_t, double>>& masses = {}) {
    TAEL_RETURN_IF_ERROR(sequence.Extend(count));
    for (uint32_t t = sequence.length(); t < sequence.length() + count; ++t, ++id) {
      const std::vector<float> kv(kDim, id);
      std::byte* block = sequence.MutableBlock(kGroup, t);
      const auto& table = ScalarKernels().kv[static_cast<size_t>(kernels::KvType::kF32)];
      table.store_k(kv.data(), kDim, t % 16, block);
      table.store_v(kv.data(), kDim, t % 16, block + geometry.groups[0].k_tile_bytes);
    }
    for (const auto& [slot, mass] : masses) {
      sequence.Masses(kGroup, 0)[slot] += static_cast<int64_t>(mass * TailScores::kUnit);
    }
    sequence.Commit(count);
    return {};
  }
  // To `length`, in passes as long as they may be; ids are positions.
  void GrowTo(Sequence& sequence, uint32_t length) {
    while (sequence.length() < length) {
      const uint32_t count = std::min(sequence.MostAtOnce(), length - sequence.length());
      ASSERT_TRUE(Append(sequence, count, static_cast<float>(sequence.length())).has_value());
    }
  }
  // What lies in the tail: the key's first dimension, by slot.
  std::vector<float> Tail(const Sequence& sequence) const {
    std::vector<float> out;
    for (const std::byte* block : sequence.Blocks(kGroup).tail) {
      for (uint32_t slot = 0; slot < 16; ++slot) {
        float key = 0, value = 0;
        std::memcpy(&key, block + slot * sizeof(float), sizeof key);
        std::memcpy(&value, block + geometry.groups[0].k_tile_bytes + slot * kDim * sizeof(float),
                    sizeof value);
        EXPECT_EQ(key, value);
        out.push_back(key);
      }
    }
    return out;
  }
};

TEST_F(TailTest, NothingIsDroppedBeforeTheWindowIsFull) {
  Sequence sequence(geometry, *pool);
  EXPECT_EQ(sequence.MostAtOnce(), 112u);
  GrowTo(sequence, 111);
  EXPECT_EQ(sequence.bytes_in_use(), 7 * geometry.groups[0].block_bytes);
  EXPECT_EQ(sequence.MostAtOnce(), 1u);
  EXPECT_TRUE(sequence.TailPositions(kGroup, 0).empty());
  EXPECT_EQ(sequence.FirstVisible(kGroup, 111), 0u);
  EXPECT_EQ(sequence.FirstVisible(kGroup, 112), 48u);
}

TEST_F(TailTest, TheTokensWithMostAttentionStayWhereTheyAreOrTakeASlot) {
  Sequence sequence(geometry, *pool);
  ASSERT_TRUE(Append(sequence, 100, 0, {{20, 0.1}, {33, 0.5}, {40, 0.2}}).has_value());
  ASSERT_TRUE(Append(sequence, 12, 100).has_value());
  // Of 16..47 the last 16 leave; 33 and 40 take the first two slots of those that got nothing.
  EXPECT_THAT(Tail(sequence),
              testing::ElementsAre(33, 40, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31));
  EXPECT_EQ(sequence.TailPositions(kGroup, 0)[0], 33u);
  EXPECT_EQ(sequence.MostAtOnce(), 16u);
  EXPECT_EQ(sequence.Blocks(kGroup).first_token, 48u);
  EXPECT_EQ(sequence.bytes_in_use(), 6 * geometry.groups[0].block_bytes);
  EXPECT_EQ(sequence.hidden_tokens(), 0u);
  // The next block: token 50 has become a recent slot further down.
  const uint32_t slot_of_50 = 50 - 16;
  ASSERT_TRUE(Append(sequence, 16, 112, {{slot_of_50, 0.3}}).has_value());
  EXPECT_EQ(Tail(sequence)[2], 50);
  EXPECT_EQ(sequence.table(kGroup)[3], kNullBlock);
  EXPECT_EQ(sequence.hidden_tokens(), 128u - 4 - 16 - 80);  // sinks, tail, recent
}

TEST_F(TailTest, ASequenceHoldsNoMoreThanItsPlanHoweverLongItGrows) {
  Sequence sequence(geometry, *pool);
  const uint64_t most = MostRows(geometry.groups[0].shape, 16) * geometry.groups[0].block_bytes;
  while (sequence.length() < 3000) {
    const uint32_t count = std::min(sequence.MostAtOnce(), 1 + sequence.length() % 7);
    ASSERT_TRUE(sequence.Extend(count).has_value());
    EXPECT_LE(sequence.bytes_in_use(), most);
    sequence.Commit(count);
  }
  EXPECT_EQ(sequence.Blocks(kGroup).tail.size(), 1u);
}

TEST_F(TailTest, ATailThatIsSharedIsCopiedBeforeItChangesAndTheOthersKeepTheirs) {
  Sequence sequence(geometry, *pool);
  GrowTo(sequence, 112);
  GrowTo(sequence, 120);
  Sequence fork = sequence.Fork();
  const std::vector<float> before = Tail(sequence);
  EXPECT_EQ(sequence.table(kGroup)[1], fork.table(kGroup)[1]);
  ASSERT_TRUE(Append(fork, 8, 500, {{32 + 5, 0.7}}).has_value());  // token 53
  EXPECT_EQ(Tail(fork)[0], 53);
  EXPECT_EQ(Tail(sequence), before);
  EXPECT_NE(sequence.table(kGroup)[1], fork.table(kGroup)[1]);
  // The other one now has its tail for itself, and scores of its own.
  ASSERT_TRUE(Append(sequence, 8, 600, {{32 + 9, 0.7}}).has_value());
  EXPECT_EQ(Tail(sequence)[0], 57);
  EXPECT_EQ(Tail(fork)[0], 53);
}

TEST_F(TailTest, AForkBeforeTheFirstChoiceMakesItsTailFromCopies) {
  Sequence sequence(geometry, *pool);
  GrowTo(sequence, 100);
  Sequence fork = sequence.Fork();
  ASSERT_TRUE(Append(fork, 12, 100, {{40, 0.5}}).has_value());
  EXPECT_EQ(Tail(fork)[0], 40);
  float key = 0;  // of token 16, in the block that the fork had shared
  std::memcpy(&key, sequence.Blocks(kGroup).blocks[1], sizeof key);
  EXPECT_EQ(key, 16);
}

TEST_F(TailTest, WithoutRoomForACopyNothingChanges) {
  Sequence sequence(geometry, *pool);
  GrowTo(sequence, 112);
  GrowTo(sequence, 120);
  Sequence fork = sequence.Fork();
  std::vector<BlockId> rest;
  for (;;) {
    std::vector<BlockId> one(1);
    const BlockPool::Request request{SizeClass{0}, kNullBlock, one};
    if (!pool->Allocate({&request, 1})) break;
    rest.push_back(one[0]);
  }
  pool->Release(rest.back());  // one block: for the copy of the last block, not of the tail too
  rest.pop_back();
  const std::vector<float> before = Tail(fork);
  const std::vector<BlockId> table(fork.table(kGroup).begin(), fork.table(kGroup).end());
  const Status status = fork.Extend(8);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kNoFreeBlocks);
  EXPECT_EQ(Tail(fork), before);
  EXPECT_THAT(fork.table(kGroup), testing::ElementsAreArray(table));
  for (const BlockId id : rest) pool->Release(id);
  EXPECT_TRUE(Append(fork, 8, 500).has_value());
}

TEST_F(TailTest, GoingBackIsOnlyPossibleToWhereNoScoreReaches) {
  Sequence sequence(geometry, *pool);
  GrowTo(sequence, 50);
  EXPECT_TRUE(sequence.CanTruncate(50));
  EXPECT_FALSE(sequence.CanTruncate(49));
  EXPECT_TRUE(sequence.CanTruncate(4));
  GrowTo(sequence, 200);
  EXPECT_FALSE(sequence.CanTruncate(16));
  EXPECT_TRUE(sequence.CanTruncate(3));
  sequence.Truncate(3);
  EXPECT_EQ(sequence.bytes_in_use(), geometry.groups[0].block_bytes);
  EXPECT_TRUE(sequence.Blocks(kGroup).tail.empty());
  GrowTo(sequence, 112);  // and everything begins anew
  EXPECT_EQ(Tail(sequence)[0], 16);
}

TEST_F(TailTest, ALimitTakesTheTailAndLiftingItDoesNotBringItBack) {
  Sequence sequence(geometry, *pool);
  GrowTo(sequence, 150);
  EXPECT_EQ(sequence.Blocks(kGroup).tail.size(), 1u);
  sequence.LimitWindow(48);
  EXPECT_TRUE(sequence.Blocks(kGroup).tail.empty());
  EXPECT_EQ(sequence.window(kGroup), (Window{48, 4, 0}));
  EXPECT_EQ(sequence.FirstVisible(kGroup, 150), 150u - 44 + 1);
  EXPECT_LE(sequence.MostAtOnce(), 16u);
  GrowTo(sequence, 170);
  sequence.LimitWindow(0);
  EXPECT_EQ(sequence.window(kGroup), (Window{96, 4, 0}));
  GrowTo(sequence, 400);
  EXPECT_EQ(sequence.FirstVisible(kGroup, 400), 400u - 92 + 1);
}

TEST_F(TailTest, PinnedTokensTakeTheirRoomFromTheRecentOnes) {
  Sequence sequence(geometry, *pool);
  sequence.PinFirst(33);
  const Window pinned = sequence.window(kGroup);
  EXPECT_EQ(pinned, (Window{96, 33, 16}));
  EXPECT_EQ(pinned.recent(), 32u);  // 33 + 16 + 32 + 8 <= 96
  EXPECT_EQ(pinned.first_choice(), 48u + 16 + 32 + 16);
  GrowTo(sequence, 300);
  EXPECT_EQ(Tail(sequence).size(), 16u);
  EXPECT_GE(sequence.TailPositions(kGroup, 0)[0], 48u);
  EXPECT_EQ(sequence.Blocks(kGroup).sinks.size(), 3u);
}

TEST_F(TailTest, NobodyElseMayTakeOverItsRows) {
  Sequence sequence(geometry, *pool);
  GrowTo(sequence, 64);
  EXPECT_EQ(sequence.intact_tokens(), 0u);
}

}  // namespace
}  // namespace tael::kv
