#include "kv/sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace tael::kv {
namespace {

using testing::ElementsAre;

constexpr size_t kBlock = 4096;
constexpr GroupId kFull{0};
constexpr GroupId kLocal{1};

// One group that sees everything and one with a window, of equal block size.
Geometry TwoGroups(uint32_t window, size_t local_bytes = kBlock) {
  Geometry geometry;
  geometry.groups.resize(2);
  geometry.groups[0].block_bytes = kBlock;
  geometry.groups[1].block_bytes = local_bytes;
  geometry.groups[1].shape.window = window;
  return geometry;
}

std::vector<int> Ints(std::span<const BlockId> ids) {
  std::vector<int> out;
  for (BlockId id : ids) out.push_back(static_cast<int>(id));
  return out;
}

uint32_t Below(std::mt19937& random, uint32_t n) { return static_cast<uint32_t>(random() % n); }

struct SequenceTest : testing::Test {
  mem::MemoryBudget budget{0};
  Geometry geometry = TwoGroups(40);
  std::unique_ptr<BlockPool> pool;

  void SetUp() override { Make(64, 32); }
  void TearDown() override { EXPECT_TRUE(pool->CheckInvariants()); }

  void Make(size_t num_blocks, size_t slots) {
    PoolOptions options;
    for (const LayerGroup& group : geometry.groups)
      options.block_bytes.push_back(group.block_bytes);
    options.capacity_bytes = num_blocks * kBlock;
    options.slab_bytes = slots * kBlock;
    pool = *BlockPool::Create(budget, options);
  }
  void Append(Sequence& sequence, uint32_t num_tokens) {
    ASSERT_TRUE(sequence.Extend(num_tokens).has_value());
    sequence.Commit(num_tokens);
  }
  uint64_t in_use() const { return pool->Stats().num_blocks_in_use; }
};

TEST_F(SequenceTest, EveryGroupGrowsInARunOfItsOwn) {
  Sequence sequence(geometry, *pool);
  Append(sequence, 17);
  EXPECT_THAT(Ints(sequence.table(kFull)), ElementsAre(0, 1));
  EXPECT_THAT(Ints(sequence.table(kLocal)), ElementsAre(16, 17));
  Append(sequence, 15);
  EXPECT_EQ(in_use(), 4u);  // the room was there
  Append(sequence, 1);
  EXPECT_THAT(Ints(sequence.table(kFull)), ElementsAre(0, 1, 2));
  EXPECT_THAT(Ints(sequence.table(kLocal)), ElementsAre(16, 17, 18));
  EXPECT_EQ(sequence.bytes_in_use(), 6 * kBlock);
}

TEST_F(SequenceTest, ExtendMakesRoomOnceForTokensThatAreNotCommittedYet) {
  Sequence sequence(geometry, *pool);
  ASSERT_TRUE(sequence.Extend(16).has_value());
  ASSERT_TRUE(sequence.Extend(16).has_value());
  EXPECT_EQ(in_use(), 2u);
  EXPECT_EQ(sequence.length(), 0u);
  ASSERT_TRUE(sequence.Extend(0).has_value());
}

TEST_F(SequenceTest, AnExtensionThatDoesNotFitChangesNothing) {
  Sequence sequence(geometry, *pool);
  Append(sequence, 24 * 16);  // 24 full blocks and the last 3 of the window: 27
  ASSERT_EQ(in_use(), 27u);
  const auto full = Ints(sequence.table(kFull));
  const auto local = Ints(sequence.table(kLocal));
  const Status refused = sequence.Extend(20 * 16);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoFreeBlocks);
  EXPECT_EQ(Ints(sequence.table(kFull)), full);
  EXPECT_EQ(Ints(sequence.table(kLocal)), local);
  EXPECT_EQ(sequence.Blocks(kFull).blocks.size(), full.size());
  EXPECT_EQ(in_use(), 27u);
  EXPECT_FALSE(sequence.Extend(0xffffffff).has_value());
  Append(sequence, 18 * 16);  // 36 more blocks do
}

TEST_F(SequenceTest, ABlockIsDroppedWhenNoLaterQuerySeesIt) {
  Sequence sequence(geometry, *pool);
  // The query at position 55 sees 16..55: block 0 goes with the commit that makes length 55.
  Append(sequence, 54);
  EXPECT_EQ(sequence.Blocks(kLocal).first_token, 0u);
  Append(sequence, 1);
  EXPECT_EQ(sequence.Blocks(kLocal).first_token, 16u);
  EXPECT_EQ(sequence.table(kLocal).front(), kNullBlock);
  EXPECT_EQ(sequence.table(kLocal).size(), 4u);
  EXPECT_EQ(sequence.Blocks(kLocal).blocks.size(), 3u);
  EXPECT_EQ(sequence.Blocks(kFull).blocks.size(), 4u);
}

TEST_F(SequenceTest, AChunkKeepsItsWholeWindowUntilItIsCommitted) {
  Sequence sequence(geometry, *pool);
  Append(sequence, 64);
  ASSERT_TRUE(sequence.Extend(200).has_value());
  // Its first query, at 64, still sees 25..64.
  EXPECT_EQ(sequence.Blocks(kLocal).first_token, 16u);
  EXPECT_EQ(sequence.Blocks(kLocal).blocks.size(), 16u);
  sequence.Commit(200);
  EXPECT_EQ(sequence.Blocks(kLocal).first_token, 224u);  // 264 - 39 = 225
  EXPECT_EQ(sequence.Blocks(kLocal).blocks.size(), 3u);
}

TEST_F(SequenceTest, AnIdleSequenceHoldsItsWindowAndNotMore) {
  for (uint32_t window : {1u, 15u, 16u, 17u, 64u, 100u}) {
    geometry = TwoGroups(window);
    Make(512, 32);
    Sequence sequence(geometry, *pool);
    std::mt19937 random(window);
    while (sequence.length() < 3000) {
      Append(sequence, 1 + Below(random, 3 * window + 5));
      const uint32_t length = sequence.length();
      const uint32_t visible = length < window ? 0 : length - window + 1;
      const auto live = sequence.Blocks(kLocal);
      ASSERT_EQ(live.first_token, visible / 16 * 16);
      ASSERT_EQ(live.blocks.size(), (length + 15) / 16 - visible / 16);
      ASSERT_LE(live.blocks.size(), (window - 1 + 15) / 16 + 1);
    }
    EXPECT_EQ(in_use(), sequence.table(kFull).size() + sequence.Blocks(kLocal).blocks.size());
  }
}

TEST_F(SequenceTest, AViewGivesTheBytesOfTheBlocksInTheTable) {
  Sequence sequence(geometry, *pool);
  Append(sequence, 100);
  for (GroupId group : {kFull, kLocal}) {
    const auto view = sequence.Blocks(group);
    for (size_t i = 0; i < view.blocks.size(); ++i) {
      const auto token = view.first_token + static_cast<uint32_t>(i) * 16;
      EXPECT_EQ(view.blocks[i], sequence.MutableBlock(group, token + 7));
      EXPECT_EQ(view.blocks[i], pool->data(sequence.table(group)[token / 16]));
    }
  }
}

TEST_F(SequenceTest, TruncateGivesBackWhatIsBehindTheEnd) {
  Sequence sequence(geometry, *pool);
  Append(sequence, 38);
  ASSERT_TRUE(sequence.Extend(30).has_value());
  EXPECT_EQ(in_use(), 10u);
  sequence.Truncate(38);  // a draft that was not accepted
  EXPECT_EQ(in_use(), 6u);
  sequence.Truncate(16);
  EXPECT_EQ(in_use(), 2u);
  EXPECT_EQ(sequence.length(), 16u);
  Append(sequence, 1);
  EXPECT_THAT(Ints(sequence.table(kFull)), ElementsAre(0, 1));
  sequence.Truncate(0);
  EXPECT_EQ(in_use(), 0u);
}

TEST_F(SequenceTest, AWindowThatMovedOnCannotBeTakenBack) {
  Sequence sequence(geometry, *pool);
  Append(sequence, 100);  // 61..99 stay, in blocks from 48 on
  EXPECT_TRUE(sequence.CanTruncate(100));
  EXPECT_TRUE(sequence.CanTruncate(87));   // the next query sees 48..87
  EXPECT_FALSE(sequence.CanTruncate(86));  // 47 is gone
  EXPECT_FALSE(sequence.CanTruncate(101));
  EXPECT_TRUE(sequence.CanTruncate(0));
  sequence.Truncate(87);
  EXPECT_EQ(sequence.Blocks(kLocal).first_token, 48u);
  sequence.Truncate(0);
  EXPECT_EQ(in_use(), 0u);
  Append(sequence, 20);
  EXPECT_EQ(sequence.Blocks(kLocal).first_token, 0u);
}

TEST_F(SequenceTest, AMovedSequenceTakesItsBlocksAlong) {
  Sequence first(geometry, *pool);
  Append(first, 20);
  Sequence second(std::move(first));
  EXPECT_EQ(second.length(), 20u);
  EXPECT_EQ(in_use(), 4u);
  Sequence third(geometry, *pool);
  Append(third, 40);
  third = std::move(second);
  EXPECT_EQ(in_use(), 4u);
  Append(third, 13);
  EXPECT_EQ(in_use(), 6u);
}

TEST_F(SequenceTest, GroupsOfUnequalBlocksShareOnePool) {
  geometry = TwoGroups(0, 3 * kBlock);
  Make(96, 12);
  Sequence sequence(geometry, *pool);
  Append(sequence, 16 * 16);
  EXPECT_EQ(sequence.bytes_in_use(), 16 * 4 * kBlock);
  EXPECT_EQ(pool->Stats().block_bytes_in_use, sequence.bytes_in_use());
}

TEST_F(SequenceTest, ManySequencesInterleavedLeaveNothingBehind) {
  geometry = TwoGroups(50);
  Make(256, 16);
  std::mt19937 random(7);
  std::vector<Sequence> sequences;
  for (int i = 0; i < 6; ++i) sequences.emplace_back(geometry, *pool);
  for (int step = 0; step < 20000; ++step) {
    Sequence& sequence = sequences[Below(random, 6)];
    const uint32_t num_tokens = Below(random, 64);
    if (Below(random, 40) == 0) {
      sequence = Sequence(geometry, *pool);
    } else if (sequence.Extend(num_tokens)) {
      sequence.Commit(Below(random, num_tokens + 1));  // some of the room stays
    } else if (sequence.CanTruncate(sequence.length() / 2)) {
      sequence.Truncate(sequence.length() / 2);
    }
    uint64_t bytes = 0;
    for (const Sequence& each : sequences) bytes += each.bytes_in_use();
    ASSERT_EQ(pool->Stats().block_bytes_in_use, bytes);
  }
  sequences.clear();
  EXPECT_EQ(in_use(), 0u);
  EXPECT_EQ(pool->Stats().num_slabs_in_use, 0u);
}

TEST_F(SequenceTest, FollowsItsBlocksWhenThePoolMovesThem) {
  geometry = TwoGroups(0);
  Make(64, 8);
  std::vector<Sequence> sequences;
  for (int i = 0; i < 4; ++i) {
    sequences.emplace_back(geometry, *pool);
    Append(sequences.back(), 100);
    for (uint32_t block = 0; block < 7; ++block) {
      std::memset(sequences[i].MutableBlock(kFull, block * 16), 10 * i + 1, kBlock);
      std::memset(sequences[i].MutableBlock(kLocal, block * 16), 10 * i + 2, kBlock);
    }
  }
  sequences.erase(sequences.begin() + 1);
  sequences[0].Truncate(20);
  const auto before = in_use();
  const auto moves = pool->Compact();
  EXPECT_FALSE(moves.empty());
  for (Sequence& sequence : sequences) sequence.Follow(moves);
  EXPECT_EQ(in_use(), before);
  EXPECT_EQ(pool->Stats().num_slabs_in_use, (before + 7) / 8);
  for (int i = 0; i < 3; ++i) {
    const int was = i == 0 ? 0 : i + 1;
    for (const std::byte* block : sequences[i].Blocks(kFull).blocks) {
      EXPECT_EQ(block[kBlock - 1], static_cast<std::byte>(10 * was + 1));
    }
    for (const std::byte* block : sequences[i].Blocks(kLocal).blocks) {
      EXPECT_EQ(block[0], static_cast<std::byte>(10 * was + 2));
    }
    Append(sequences[i], 30);  // and goes on
  }
}

// ---- windows with sinks ----

struct SinkTest : SequenceTest {
  // The local group: 40 tokens, of which the first 20 stay; 20 recent ones.
  void SetUp() override {
    geometry.groups[1].shape.sinks = 20;
    Make(256, 32);
  }
  std::vector<int> Dropped(const Sequence& sequence) const {
    std::vector<int> out;
    for (size_t i = 0; i < sequence.table(kLocal).size(); ++i) {
      if (sequence.table(kLocal)[i] == kNullBlock) out.push_back(static_cast<int>(i));
    }
    return out;
  }
};

TEST_F(SinkTest, TheGapOpensBehindThePinnedBlocksAndItsEndMovesOn) {
  Sequence sequence(geometry, *pool);
  Append(sequence, 66);  // the next query sees 47..66
  EXPECT_THAT(Dropped(sequence), ElementsAre());
  EXPECT_EQ(sequence.Blocks(kLocal).first_token, 0u);
  Append(sequence, 1);  // 48..67, and 0..19 in blocks 0 and 1
  EXPECT_THAT(Dropped(sequence), ElementsAre(2));
  Append(sequence, 500);
  const auto view = sequence.Blocks(kLocal);
  EXPECT_EQ(view.first_token, 544u);  // 567 - 19 = 548
  EXPECT_EQ(view.sinks.size(), 2u);
  EXPECT_EQ(view.sinks[1], pool->data(sequence.table(kLocal)[1]));
  EXPECT_EQ(view.blocks.size(), 2u);
  EXPECT_EQ(sequence.bytes_in_use(), (36 + 4) * kBlock);
  EXPECT_EQ(in_use(), 36u + 4u);
}

TEST_F(SinkTest, HowManyTokensComeAtOnceMakesNoDifference) {
  Sequence one(geometry, *pool), many(geometry, *pool);
  for (int i = 0; i < 350; ++i) Append(one, 1);
  Append(many, 349);
  Append(many, 1);
  EXPECT_EQ(Dropped(one), Dropped(many));
  EXPECT_EQ(one.bytes_in_use(), many.bytes_in_use());
  EXPECT_EQ(one.hidden_tokens(), 0u);  // the other group sees all
}

TEST_F(SinkTest, ItCanGoBackToWhatItsSinksHoldAndNoFurtherThanItsWindow) {
  Sequence sequence(geometry, *pool);
  Append(sequence, 300);                   // blocks from 281 / 16 = 17 on
  EXPECT_TRUE(sequence.CanTruncate(291));  // sees 272..291
  EXPECT_FALSE(sequence.CanTruncate(290));
  EXPECT_FALSE(sequence.CanTruncate(33));
  EXPECT_TRUE(sequence.CanTruncate(32));  // the pinned blocks
  sequence.Truncate(291);
  EXPECT_EQ(Dropped(sequence).size(), 15u);
  sequence.Truncate(25);
  EXPECT_THAT(Dropped(sequence), ElementsAre());
  EXPECT_EQ(in_use(), 4u);
  Append(sequence, 30);
  EXPECT_EQ(sequence.Blocks(kLocal).blocks.size(), 4u);
  EXPECT_EQ(sequence.Blocks(kLocal).first_token, 0u);
}

TEST_F(SinkTest, AnIdleSequenceHoldsItsSinksAndItsWindowAndNotMore) {
  for (uint32_t window : {17u, 40u, 64u, 100u}) {
    for (uint32_t sinks : {1u, 4u, 16u}) {
      geometry = TwoGroups(window);
      geometry.groups[1].shape.sinks = sinks;
      Make(512, 32);
      Sequence sequence(geometry, *pool);
      std::mt19937 random(window + sinks);
      while (sequence.length() < 2000) {
        Append(sequence, 1 + Below(random, 3 * window + 5));
        const uint32_t length = sequence.length();
        const uint32_t first = length < window - sinks ? 0 : length - (window - sinks) + 1;
        const uint32_t pinned = (sinks + 15) / 16;
        const uint32_t all = (length + 15) / 16;
        const uint32_t want = first / 16 <= pinned ? all : pinned + all - first / 16;
        ASSERT_EQ(in_use() - sequence.table(kFull).size(), want);
        ASSERT_EQ(sequence.FirstVisible(kLocal, length), first);
      }
    }
  }
}

TEST_F(SinkTest, ATighterLimitFreesAtOnceAndLiftingItLetsTheWindowGrowAgain) {
  Sequence sequence(geometry, *pool);
  Append(sequence, 300);
  EXPECT_EQ(sequence.hidden_tokens(), 0u);
  EXPECT_EQ(in_use(), 19u + 4u);
  sequence.LimitWindow(36);  // both groups; the full one had no sinks to keep
  EXPECT_EQ(sequence.window(kFull), (Window{36, 0}));
  EXPECT_EQ(sequence.window(kLocal), (Window{36, 20}));
  EXPECT_EQ(in_use(), 3u + 4u);  // 265.. and 0..19, 285..
  EXPECT_EQ(sequence.FirstVisible(kFull, 300), 265u);
  EXPECT_FALSE(sequence.CanTruncate(299 - 40));
  Append(sequence, 10);
  sequence.LimitWindow(0);
  EXPECT_EQ(sequence.window(kFull), Window{});
  // What was given up stays so; from there on everything is seen.
  EXPECT_EQ(sequence.FirstVisible(kFull, 310), 275u);
  EXPECT_EQ(sequence.FirstVisible(kFull, 900), 275u);
  EXPECT_EQ(sequence.FirstVisible(kLocal, 310), 295u);
  Append(sequence, 100);
  EXPECT_EQ(sequence.FirstVisible(kLocal, 410), 391u);
  EXPECT_FALSE(sequence.CanTruncate(400));
  EXPECT_TRUE(sequence.CanTruncate(410));
  EXPECT_TRUE(sequence.CanTruncate(0));
  sequence.Truncate(0);
  EXPECT_EQ(sequence.FirstVisible(kFull, 900), 0u);
}

TEST_F(SinkTest, PinnedTokensStayLikeSinksInHalfOfTheWindow) {
  geometry = TwoGroups(200);
  geometry.groups[0].shape = {.window = 64, .sinks = 4};
  geometry.groups[1].shape.sinks = 4;
  Make(256, 32);
  Sequence sequence(geometry, *pool);
  sequence.PinFirst(70);
  EXPECT_EQ(sequence.window(kFull), (Window{64, 32}));
  EXPECT_EQ(sequence.window(kLocal), (Window{200, 70}));
  Append(sequence, 1000);
  EXPECT_EQ(sequence.Blocks(kLocal).sinks.size(), 5u);
  EXPECT_EQ(sequence.hidden_tokens(), 800u);
  sequence.LimitWindow(80);  // and of a smaller one: fewer
  EXPECT_EQ(sequence.window(kLocal), (Window{80, 40}));
  EXPECT_EQ(sequence.Blocks(kLocal).sinks.size(), 3u);
  EXPECT_NE(sequence.table(kLocal)[2], kNullBlock);
  EXPECT_EQ(sequence.table(kLocal)[3], kNullBlock);
  EXPECT_EQ(sequence.hidden_tokens(), 920u);
}

TEST_F(SinkTest, TokensAreIntactUntilTheSequencesOwnLimitsShowSomethingElse) {
  Sequence plain(geometry, *pool);
  Append(plain, 400);
  EXPECT_EQ(plain.intact_tokens(), 400u);  // the window is everybody's
  plain.LimitWindow(36);
  EXPECT_EQ(plain.intact_tokens(), 400u);
  Append(plain, 1);
  EXPECT_EQ(plain.intact_tokens(), 400u);
  plain.LimitWindow(0);
  Append(plain, 1);  // the full group lacks what was dropped
  EXPECT_EQ(plain.intact_tokens(), 400u);
  plain.Truncate(0);
  Append(plain, 20);
  EXPECT_EQ(plain.intact_tokens(), 20u);

  Sequence limited(geometry, *pool);
  limited.LimitWindow(36);
  Append(limited, 36);
  EXPECT_EQ(limited.intact_tokens(), 36u);  // 35 still saw all
  Append(limited, 100);
  EXPECT_EQ(limited.intact_tokens(), 36u);

  geometry.groups[1].shape = {.window = 100, .sinks = 4};
  Sequence pinned(geometry, *pool);
  pinned.PinFirst(30);
  Append(pinned, 90);
  EXPECT_EQ(pinned.intact_tokens(), 90u);
  Append(pinned, 90);
  EXPECT_EQ(pinned.intact_tokens(), 100u);
}

}  // namespace
}  // namespace tael::kv
