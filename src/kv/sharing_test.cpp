// Sequences that share blocks: forks, copy-on-write, adopted rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>
#include <vector>

#include "kv/testing.h"

namespace tael::kv {
namespace {

constexpr GroupId kFull{0};
constexpr GroupId kLocal{1};
constexpr std::array<uint32_t, 2> kWindows = {0, 40};

// `tokens` up to `end`, and then others.
std::vector<TokenId> Branch(std::span<const TokenId> tokens, size_t end, int first, size_t count) {
  return Join(tokens.first(end), Text(first, count));
}

struct SharingTest : testing::Test {
  mem::MemoryBudget budget{0};
  Geometry geometry = TestGeometry(kWindows);
  std::unique_ptr<BlockPool> pool = TestPool(budget, geometry, 256);

  ~SharingTest() override {
    EXPECT_TRUE(pool->CheckInvariants());
    EXPECT_EQ(pool->Stats().num_blocks_in_use, 0u);
  }
  Sequence Fed(std::span<const TokenId> tokens) {
    Sequence sequence(geometry, *pool);
    EXPECT_TRUE(Feed(sequence, tokens, tokens.size()).has_value());
    return sequence;
  }
  uint64_t in_use() const { return pool->Stats().num_blocks_in_use; }
};

TEST_F(SharingTest, AForkTakesNoBlocks) {
  const auto text = Text(0, 37);
  const Sequence sequence = Fed(text);
  const uint64_t before = in_use();
  const Sequence fork = sequence.Fork();
  EXPECT_EQ(in_use(), before);
  EXPECT_EQ(fork.length(), 37u);
  EXPECT_TRUE(Holds(fork, text));
  for (const GroupId group : {kFull, kLocal}) {
    EXPECT_TRUE(std::ranges::equal(fork.table(group), sequence.table(group)));
    for (const BlockId block : fork.table(group)) EXPECT_EQ(pool->refs(block), 2u);
  }
}

TEST_F(SharingTest, WhoeverWritesFirstGetsACopyOfThePartlyFilledBlock) {
  const auto text = Text(0, 37);
  Sequence first = Fed(text);
  Sequence second = first.Fork();
  const uint64_t before = in_use();
  const auto left = Branch(text, 37, 1000, 60), right = Branch(text, 37, 2000, 60);
  ASSERT_TRUE(Feed(second, right, 38).has_value());
  EXPECT_EQ(in_use(), before + 2);  // a tail for each group
  EXPECT_NE(first.table(kFull)[2], second.table(kFull)[2]);
  EXPECT_EQ(first.table(kFull)[1], second.table(kFull)[1]);
  ASSERT_TRUE(Feed(first, left, 38).has_value());
  EXPECT_EQ(in_use(), before + 2);  // alone with its own again
  ASSERT_TRUE(Feed(first, left, left.size()).has_value());
  ASSERT_TRUE(Feed(second, right, right.size()).has_value());
  EXPECT_TRUE(Holds(first, left));
  EXPECT_TRUE(Holds(second, right));
}

TEST_F(SharingTest, NothingIsCopiedWhereTheForkEndsWithABlock) {
  const auto text = Text(0, 48);
  Sequence first = Fed(text);
  Sequence second = first.Fork();
  const auto right = Branch(text, 48, 2000, 5);
  ASSERT_TRUE(Feed(second, right, right.size()).has_value());
  EXPECT_EQ(first.table(kFull)[2], second.table(kFull)[2]);
  EXPECT_EQ(pool->refs(second.table(kFull)[2]), 2u);
  EXPECT_TRUE(Holds(first, text));
}

TEST_F(SharingTest, ACopyAndTheRoomBehindItAreGrantedTogetherOrNotAtAll) {
  pool = TestPool(budget, geometry, 64);
  const auto text = Text(0, 37);
  Sequence first = Fed(text);  // 3 + 3 blocks
  Sequence second = first.Fork();
  const auto full = std::vector(second.table(kFull).begin(), second.table(kFull).end());
  const auto local = std::vector(second.table(kLocal).begin(), second.table(kLocal).end());
  // 64 blocks less 6: 29 for each group, of which one is the copy.
  EXPECT_FALSE(second.Extend(11 + 29 * 16).has_value());
  EXPECT_TRUE(std::ranges::equal(second.table(kFull), full));
  EXPECT_TRUE(std::ranges::equal(second.table(kLocal), local));
  EXPECT_EQ(in_use(), 6u);
  EXPECT_TRUE(Holds(second, text));
  EXPECT_TRUE(second.Extend(11 + 28 * 16).has_value());
  EXPECT_EQ(in_use(), 64u);
  second.Truncate(second.length());
  EXPECT_EQ(in_use(), 8u);
}

TEST_F(SharingTest, OneFreeBlockIsNotEnoughForTheCopiesOfTwoGroups) {
  pool = TestPool(budget, geometry, 64);
  const auto text = Text(0, 37);
  const Sequence first = Fed(text);  // 3 + 3 blocks
  Sequence second = first.Fork();
  Sequence rest(geometry, *pool);
  ASSERT_TRUE(rest.Extend(28 * 16).has_value());
  BlockId block{};
  ASSERT_TRUE(pool->Allocate(SizeClass{0}, kNullBlock, {&block, 1}).has_value());
  ASSERT_EQ(in_use(), 63u);
  EXPECT_FALSE(second.Extend(1).has_value());
  EXPECT_TRUE(std::ranges::equal(second.table(kFull), first.table(kFull)));
  EXPECT_TRUE(std::ranges::equal(second.table(kLocal), first.table(kLocal)));
  EXPECT_EQ(in_use(), 63u);
  pool->Release(block);
  EXPECT_TRUE(second.Extend(1).has_value());
}

TEST_F(SharingTest, TruncatingIntoASharedBlockMakesTheNextWriteCopyIt) {
  const auto text = Text(0, 48);
  Sequence first = Fed(text);
  Sequence second = first.Fork();
  second.Truncate(40);
  const auto other = Branch(text, 40, 3000, 30);
  ASSERT_TRUE(Feed(second, other, other.size()).has_value());
  EXPECT_NE(first.table(kFull)[2], second.table(kFull)[2]);
  EXPECT_TRUE(Holds(first, text));
  EXPECT_TRUE(Holds(second, other));
}

TEST_F(SharingTest, RoomThatWasNeverFilledIsNotShared) {
  const auto text = Text(0, 20);
  Sequence first = Fed(text);
  ASSERT_TRUE(first.Extend(60).has_value());
  const Sequence second = first.Fork();
  EXPECT_EQ(second.table(kFull).size(), 2u);
  EXPECT_EQ(pool->refs(first.table(kFull)[2]), 1u);
  // The room is there, but the tail has to be copied all the same.
  const uint64_t before = in_use();
  const auto more = Branch(text, 20, 500, 60);
  ASSERT_TRUE(Feed(first, more, more.size()).has_value());
  EXPECT_EQ(in_use(), before + 2 - 1);  // two copies; and the window dropped a block of its own
  EXPECT_TRUE(Holds(second, text));
  EXPECT_TRUE(Holds(first, more));
}

TEST_F(SharingTest, NoSharedBlockIsEverWritten) {
  const auto text = Text(0, 20);
  Sequence first = Fed(text);
  const Sequence second = first.Fork();
  EXPECT_DEATH(first.MutableBlock(kFull, 19), "refs");
  EXPECT_DEATH(second.MutableBlock(kLocal, 3), "refs");
}

TEST_F(SharingTest, ADroppedBlockStaysWithThoseWhoStillSeeIt) {
  const auto text = Text(0, 40);
  Sequence first = Fed(text);
  Sequence second = first.Fork();
  const auto more = Branch(text, 40, 700, 100);
  ASSERT_TRUE(Feed(second, more, more.size()).has_value());
  EXPECT_EQ(second.Blocks(kLocal).first_token, 96u);
  EXPECT_TRUE(Holds(first, text));
  // A fork of one whose window moved has the same holes.
  Sequence third = second.Fork();
  EXPECT_EQ(third.Blocks(kLocal).first_token, 96u);
  const auto end = Branch(more, 140, 900, 50);
  ASSERT_TRUE(Feed(third, end, end.size()).has_value());
  EXPECT_TRUE(Holds(third, end));
  EXPECT_TRUE(Holds(second, more));
}

TEST_F(SharingTest, SharedRowsBecomePartOfASequence) {
  const auto text = Text(0, 86);
  const Sequence donor = Fed(text);
  Sequence sequence(geometry, *pool);
  for (size_t row = 0; row < 5; ++row) {
    // At 80 the next query sees 41..80: the first two rows' local blocks are not needed.
    const BlockId local = row < 2 ? kNullBlock : donor.table(kLocal)[row];
    ASSERT_EQ(local == kNullBlock, row < 2);
    const std::array<BlockId, 2> blocks = {donor.table(kFull)[row], local};
    sequence.AppendShared(blocks);
  }
  EXPECT_EQ(sequence.length(), 80u);
  EXPECT_TRUE(Holds(sequence, text));
  EXPECT_FALSE(sequence.CanTruncate(64));  // 25 is gone
  const uint64_t before = in_use();
  const auto other = Branch(text, 80, 4000, 20);
  ASSERT_TRUE(Feed(sequence, other, other.size()).has_value());
  EXPECT_EQ(in_use(), before + 4);
  EXPECT_TRUE(Holds(sequence, other));
  EXPECT_TRUE(Holds(donor, text));
}

TEST_F(SharingTest, ABlockIsNeededUntilItsWindowHasMovedOn) {
  const Sequence sequence(geometry, *pool);
  EXPECT_TRUE(sequence.Needs(kFull, 0, 5000));
  EXPECT_TRUE(sequence.Needs(kLocal, 0, 39));
  EXPECT_TRUE(sequence.Needs(kLocal, 0, 54));   // 15..54
  EXPECT_FALSE(sequence.Needs(kLocal, 0, 55));  // 16..55
  EXPECT_TRUE(sequence.Needs(kLocal, 1, 55));
}

TEST_F(SharingTest, SharedBytesCountOnce) {
  const auto text = Text(0, 32);
  const Sequence first = Fed(text);
  Sequence second = first.Fork();
  const auto more = Branch(text, 32, 100, 16);
  ASSERT_TRUE(Feed(second, more, more.size()).has_value());
  const Sequence third = Fed(text);
  EXPECT_EQ(first.bytes_in_use(), 4 * kTestBlock);
  EXPECT_EQ(second.bytes_in_use(), 6 * kTestBlock);
  const std::array<const Sequence*, 3> all = {&first, &second, &third};
  EXPECT_EQ(UniqueBytes(all), 10 * kTestBlock);
  EXPECT_EQ(UniqueBytes(all), pool->Stats().block_bytes_in_use);
  EXPECT_EQ(UniqueBytes({}), 0u);
}

TEST_F(SharingTest, ReservedTablesDoNotGrowForTheCopy) {
  Sequence sequence(geometry, *pool);
  sequence.ReserveTables(48);
  const auto text = Text(0, 40);
  ASSERT_TRUE(Feed(sequence, text, 40).has_value());
  const BlockId* const before = sequence.table(kFull).data();
  const Sequence fork = sequence.Fork();
  ASSERT_TRUE(sequence.Extend(8).has_value());
  EXPECT_EQ(sequence.table(kFull).data(), before);
  EXPECT_EQ(sequence.table(kFull).size(), 3u);
}

// Forks of forks that write, truncate and die in any order: each always reads its own text.
TEST_F(SharingTest, ManyForksNeverSeeEachOther) {
  pool = TestPool(budget, geometry, 128);
  std::mt19937 random(11);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  struct Fork {
    Sequence sequence;
    std::vector<TokenId> text;
  };
  std::vector<Fork> forks;
  int next_id = 0;
  for (int step = 0; step < 20000; ++step) {
    if (forks.empty() || (forks.size() < 8 && below(10) == 0)) {
      forks.push_back({Sequence(geometry, *pool), {}});
    }
    Fork& fork = forks[below(forks.size())];
    const size_t dice = below(12);
    if (dice == 0) {
      std::swap(fork, forks.back());
      forks.pop_back();
      continue;
    }
    if (dice < 3 && forks.size() < 8) {
      Fork copy{fork.sequence.Fork(), fork.text};
      forks.push_back(std::move(copy));
      continue;
    }
    if (dice == 3) {
      const auto length = static_cast<uint32_t>(below(fork.text.size() + 1));
      if (!fork.sequence.CanTruncate(length)) continue;
      fork.sequence.Truncate(length);
      fork.text.resize(length);
      continue;
    }
    const auto longer = Branch(fork.text, fork.text.size(), next_id, below(30));
    next_id += 100;
    if (longer.size() < 200 && Feed(fork.sequence, longer, longer.size())) fork.text = longer;
    ASSERT_TRUE(Holds(fork.sequence, fork.text)) << "step " << step;
    if (step % 50 != 0) continue;
    std::vector<const Sequence*> all;
    for (const Fork& each : forks) {
      ASSERT_TRUE(Holds(each.sequence, each.text)) << "step " << step;
      all.push_back(&each.sequence);
    }
    ASSERT_EQ(UniqueBytes(all), pool->Stats().block_bytes_in_use);
  }
}

// Two windows with sinks of their own, which memory pressure narrows and lets grow again.
struct WindowSharingTest : SharingTest {
  struct Fork {
    Sequence sequence;
    std::vector<TokenId> text;
  };
  std::vector<Fork> forks;
  std::mt19937 random{12};

  void SetUp() override {
    geometry.groups[0].shape = {.window = 96, .sinks = 4};
    geometry.groups[1].shape = {.window = 64, .sinks = 20};
    pool = TestPool(budget, geometry, 256);
  }
  size_t Below(size_t n) { return static_cast<size_t>(random() % n); }
  void Begin() {
    forks.push_back({Sequence(geometry, *pool), {}});
    if (Below(3) == 0) forks.back().sequence.PinFirst(static_cast<uint32_t>(Below(60)));
  }
  void End(Fork& fork) {
    std::swap(fork, forks.back());
    forks.pop_back();
  }
  static void GoBack(Fork& fork, uint32_t length) {
    if (!fork.sequence.CanTruncate(length)) return;
    fork.sequence.Truncate(length);
    fork.text.resize(length);
  }
  void GoOn(Fork& fork, int first_id) {
    const auto longer = Branch(fork.text, fork.text.size(), first_id, Below(40));
    if (longer.size() < 600 && Feed(fork.sequence, longer, longer.size())) fork.text = longer;
  }
  void ExpectEveryForkReadsItsText(int step) const {
    std::vector<const Sequence*> all;
    for (const Fork& each : forks) {
      ASSERT_TRUE(Holds(each.sequence, each.text)) << "step " << step;
      all.push_back(&each.sequence);
    }
    ASSERT_EQ(UniqueBytes(all), pool->Stats().block_bytes_in_use);
  }
};

TEST_F(WindowSharingTest, WhatOneDropsStaysWithTheOthers) {
  const auto text = Text(0, 90);
  const Sequence first = Fed(text);
  Sequence second = first.Fork();
  const auto more = Branch(text, 90, 1000, 200);
  ASSERT_TRUE(Feed(second, more, more.size()).has_value());
  second.LimitWindow(32);
  EXPECT_TRUE(Holds(second, more));
  EXPECT_TRUE(Holds(first, text));
  for (const GroupId group : {kFull, kLocal}) {
    EXPECT_EQ(pool->refs(first.table(group)[0]), 2u);  // a sink of both
    EXPECT_EQ(pool->refs(first.table(group)[3]), 1u);
    EXPECT_EQ(second.table(group)[3], kNullBlock);
  }
}

// Forks of forks that write, evict, shrink, grow, truncate and die in any order. A freed block
// reads as poison, a write to a shared one is refused, and each always reads its own text.
TEST_F(WindowSharingTest, ManyForksWhoseWindowsShrinkNeverSeeEachOther) {
  constexpr size_t kMostForks = 8;
  for (int step = 0; step < 20000; ++step) {
    if (forks.empty() || (forks.size() < kMostForks && Below(10) == 0)) Begin();
    Fork& fork = forks[Below(forks.size())];
    const size_t dice = Below(12);
    if (dice == 0) {
      End(fork);
    } else if (dice < 3 && forks.size() < kMostForks) {
      Fork copy{fork.sequence.Fork(), fork.text};
      forks.push_back(std::move(copy));
    } else if (dice == 3) {
      GoBack(fork, static_cast<uint32_t>(Below(fork.text.size() + 1)));
    } else if (dice == 4) {
      fork.sequence.LimitWindow(std::array<uint32_t, 3>{0, 32, 50}[Below(3)]);
    } else {
      GoOn(fork, 100 * step);
    }
    if (step % 10 == 0) ExpectEveryForkReadsItsText(step);
    ASSERT_FALSE(HasFatalFailure());
  }
  forks.clear();
}

}  // namespace
}  // namespace tael::kv
