#include "kv/prefix_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

#include "kv/prefix_context.h"
#include "kv/testing.h"

namespace tael::kv {
namespace {

constexpr uint64_t kSalt = 77;

uint64_t SameForAll(const void*, size_t, uint64_t) { return 42; }

struct PrefixIndexTest : testing::Test {
  mem::MemoryBudget budget{0};
  Geometry geometry = TestGeometry(std::array<uint32_t, 1>{0});
  std::unique_ptr<BlockPool> pool;
  std::unique_ptr<PrefixIndex> index;

  void SetUp() override { Make({0}, 64); }
  void TearDown() override {
    EXPECT_TRUE(index->CheckInvariants());
    index.reset();
    EXPECT_TRUE(pool->CheckInvariants());
    EXPECT_EQ(pool->Stats().num_blocks_in_use, 0u);
  }
  // A cap of so many blocks.
  void Make(std::vector<uint32_t> windows, size_t cap, HashFunction hash = &Hash64) {
    index.reset();
    geometry = TestGeometry(windows);
    pool = TestPool(budget, geometry, 512);
    index = *PrefixIndex::Create(budget, geometry, *pool,
                                 {.max_bytes = cap * kTestBlock, .hash = hash});
  }
  // What the index gives for this prompt.
  Sequence Adopted(std::span<const TokenId> tokens, uint64_t salt = kSalt,
                   uint32_t most = 0xffffffff) {
    Sequence sequence(geometry, *pool);
    const uint32_t length = index->Adopt(tokens, salt, most, sequence);
    EXPECT_EQ(sequence.length(), length);
    EXPECT_TRUE(Holds(sequence, tokens, salt));
    return sequence;
  }
  uint32_t Held(std::span<const TokenId> tokens, uint64_t salt = kSalt) {
    return Adopted(tokens, salt).length();
  }
  // Runs a prompt as an engine would, and publishes it.
  Sequence Serve(std::span<const TokenId> tokens, uint64_t salt = kSalt) {
    Sequence sequence = Adopted(tokens, salt);
    EXPECT_TRUE(Feed(sequence, tokens, tokens.size(), salt).has_value());
    EXPECT_TRUE(Holds(sequence, tokens, salt));
    index->Publish(tokens, salt, sequence);
    EXPECT_TRUE(index->CheckInvariants());
    return sequence;
  }
  uint64_t in_use() const { return pool->Stats().num_blocks_in_use; }
};

// ---- finding ----

TEST_F(PrefixIndexTest, FullRowsArePublishedAndFoundFromTheirBeginnings) {
  const auto text = Text(0, 40);
  EXPECT_EQ(Held(text), 0u);
  Serve(text);
  EXPECT_EQ(Held(text), 32u);
  EXPECT_EQ(Held(Text(0, 17)), 17u);
  EXPECT_EQ(Held(Text(0, 15)), 15u);
  EXPECT_EQ(Held(Join(Text(0, 20), Text(500, 40))), 20u);  // they part inside a row
  EXPECT_EQ(index->Stats().lookups, 6u);
  EXPECT_EQ(index->Stats().hits, 4u);
  EXPECT_EQ(index->Stats().hit_tokens, 84u);
  EXPECT_EQ(index->Stats().rejected_hits, 0u);
}

// A few tokens that all prompts begin with are no hit; behind a row every token is.
TEST_F(PrefixIndexTest, OfAFirstRowOnlyALargePartIsWorthACopy) {
  Serve(Text(0, 40));
  EXPECT_EQ(Held(Join(Text(0, 7), Text(500, 20))), 0u);
  EXPECT_EQ(Held(Join(Text(0, 8), Text(500, 20))), 8u);
  EXPECT_EQ(Held(Join(Text(0, 17), Text(500, 20))), 17u);
}

TEST_F(PrefixIndexTest, OfSeveralRowsTheOneWithTheLongestBeginningIsTaken) {
  const auto shared = Text(0, 16);
  for (const size_t common : {3u, 11u, 7u}) {
    Serve(Join(Join(shared, Text(100, common)), Text(1000 * int(common), 16 - common)));
  }
  EXPECT_EQ(Held(Join(shared, Text(100, 16))), 16u + 11);
  EXPECT_EQ(Held(Join(shared, Text(100, 16)), kSalt + 1), 0u);
}

TEST_F(PrefixIndexTest, WhoeverGoesOnInsideOfARowGetsACopyOfIt) {
  Serve(Text(0, 32));
  const auto other = Join(Text(0, 20), Text(500, 20));
  Sequence sequence = Adopted(other);
  EXPECT_EQ(in_use(), 2u);
  EXPECT_TRUE(sequence.SharesLastBlock(GroupId{0}));
  ASSERT_TRUE(Feed(sequence, other, other.size(), kSalt).has_value());
  EXPECT_FALSE(sequence.SharesLastBlock(GroupId{0}));
  EXPECT_EQ(in_use(), 2u + 2);
  EXPECT_TRUE(Holds(sequence, other, kSalt));
  EXPECT_TRUE(Holds(Adopted(Text(0, 32)), Text(0, 32), kSalt));
}

TEST_F(PrefixIndexTest, AHitSharesBlocksAndCopiesNone) {
  const auto text = Text(0, 48);
  const Sequence first = Serve(text);
  EXPECT_EQ(in_use(), 3u);
  const Sequence second = Adopted(text);
  EXPECT_EQ(in_use(), 3u);
  EXPECT_TRUE(std::ranges::equal(first.table(GroupId{0}), second.table(GroupId{0})));
  EXPECT_EQ(pool->refs(first.table(GroupId{0})[0]), 3u);  // two sequences and the index
}

TEST_F(PrefixIndexTest, RunningSequencesOfOnePromptHoldItOnce) {
  const auto shared = Text(0, 64);
  std::vector<Sequence> sequences;
  for (int i = 0; i < 5; ++i) sequences.push_back(Serve(Join(shared, Text(1000 * (i + 1), 32))));
  EXPECT_EQ(in_use(), 4u + 5 * 2);
}

TEST_F(PrefixIndexTest, NoMoreIsAdoptedThanAskedFor) {
  const auto text = Text(0, 48);
  Serve(text);
  EXPECT_EQ(Adopted(text, kSalt, 48).length(), 48u);
  EXPECT_EQ(Adopted(text, kSalt, 47).length(), 47u);  // its last token has to be computed
  EXPECT_EQ(Adopted(text, kSalt, 0).length(), 0u);
}

TEST_F(PrefixIndexTest, TheSameTokensBehindOthersAreAnotherRow) {
  const auto a = Text(0, 16), b = Text(100, 16), c = Text(200, 16);
  Serve(Join(a, c));
  EXPECT_EQ(Held(Join(b, c)), 0u);
  EXPECT_EQ(Held(c), 0u);
  EXPECT_EQ(Held(Join(c, a)), 0u);
  Serve(b);
  EXPECT_EQ(Held(Join(b, c)), 16u);
}

// ---- B1: a hash is no proof ----

TEST_F(PrefixIndexTest, WithOneHashForEverythingNoPromptGetsAnothersRows) {
  Make({0, 24}, 400, &SameForAll);
  std::vector<std::vector<TokenId>> prompts;
  for (int i = 0; i < 50; ++i) {
    // Some share their beginning, all share tokens at other places.
    prompts.push_back(Join(Text(i % 7 * 16, 16 + i % 3 * 16), Text(i * 3, 20)));
  }
  for (const auto& prompt : prompts) Serve(prompt);  // Adopted() and Serve() look at what they got
  EXPECT_GT(index->Stats().rejected_hits, 1000u);
  const uint64_t before = index->Stats().hits;
  for (const auto& prompt : prompts) Serve(prompt);
  EXPECT_EQ(index->Stats().hits, before + prompts.size());
}

TEST_F(PrefixIndexTest, AnEqualHashUnderAnotherParentOrSaltIsRejected) {
  Make({0}, 64, &SameForAll);
  const auto a = Text(0, 16), b = Text(100, 16);
  Serve(Join(a, b));
  EXPECT_EQ(Held(b), 0u);  // there, but behind a
  EXPECT_EQ(Held(Join(a, a)), 16u);
  EXPECT_EQ(Held(Join(a, b), kSalt + 1), 0u);
  EXPECT_EQ(Held(Join(a, b)), 32u);
  EXPECT_GE(index->Stats().rejected_hits, 5u);
}

// ---- B2: the key holds everything that changes KV ----

TEST_F(PrefixIndexTest, AnotherContextIsNoHit) {
  const PrefixContext base{
      .model = "m", .kv_type = "f16", .rope = "", .window = "off", .tenant = "t"};
  const auto text = Text(0, 32);
  Serve(text, base.Salt());
  EXPECT_EQ(Held(text, base.Salt()), 32u);
  for (const auto field : {&PrefixContext::model, &PrefixContext::kv_type, &PrefixContext::rope,
                           &PrefixContext::window, &PrefixContext::tenant}) {
    PrefixContext other = base;
    other.*field += "2";
    EXPECT_EQ(Held(text, other.Salt()), 0u);
    for (const auto second : {&PrefixContext::model, &PrefixContext::kv_type, &PrefixContext::rope,
                              &PrefixContext::window, &PrefixContext::tenant}) {
      if (field == second) continue;
      other = base;
      std::swap(other.*field, other.*second);
      EXPECT_EQ(Held(text, other.Salt()), 0u);
    }
  }
}

// ---- the cap ----

TEST_F(PrefixIndexTest, TheCapHoldsWhileRowsAreAdded) {
  Make({0}, 10);
  for (int i = 0; i < 40; ++i) {
    const auto text = Text(i * 1000, 16 * (1 + static_cast<size_t>(i) % 6));
    Serve(text);
    EXPECT_LE(index->bytes(), 10 * kTestBlock);
    EXPECT_EQ(Held(text), text.size());
    EXPECT_LE(in_use(), 10u);
  }
  EXPECT_GT(index->Stats().evicted, 100u);
}

TEST_F(PrefixIndexTest, APromptLargerThanTheCapIsCountedAndEvictsNothing) {
  Make({0}, 6);
  Serve(Text(0, 80));
  const auto large = Text(1000, 7 * 16);
  Serve(large);
  EXPECT_EQ(Held(large), 0u);
  EXPECT_EQ(Held(Text(0, 80)), 80u);
  EXPECT_EQ(index->Stats().refused, 1u);
  // Known early: its first rows, published while the rest is computed, are refused as well.
  Sequence sequence(geometry, *pool);
  ASSERT_TRUE(Feed(sequence, large, 32, kSalt).has_value());
  index->Publish(large, kSalt, sequence);
  EXPECT_EQ(Held(large), 0u);
}

TEST_F(PrefixIndexTest, ACapBelowOneRowIsRefused) {
  const auto none = PrefixIndex::Create(budget, geometry, *pool, {.max_bytes = kTestBlock - 1});
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument);
}

TEST_F(PrefixIndexTest, RowsInUseCountAndStay) {
  Make({0}, 4);
  const Sequence running = Serve(Text(0, 48));
  const auto other = Text(1000, 32);
  Serve(other);
  EXPECT_EQ(Held(other), 16u);  // there was room for one row
  EXPECT_EQ(index->Evict(1000), kTestBlock);
  EXPECT_EQ(Held(Text(0, 48)), 48u);
}

TEST_F(PrefixIndexTest, ItsOwnMemoryIsInTheLedgerWhenItIsNotSmall) {
  const auto prefix = [&] {
    return budget.Snapshot().parts[static_cast<size_t>(mem::MemoryTag::kPrefix)];
  };
  EXPECT_EQ(prefix().reserved_bytes, 0u);
  index.reset();
  pool = TestPool(budget, geometry, 16384);
  index = *PrefixIndex::Create(budget, geometry, *pool, {.max_bytes = 16384 * kTestBlock});
  EXPECT_GT(prefix().reserved_bytes, 16384u * 100);
  const uint64_t before = prefix().used_bytes;
  EXPECT_LT(before, 16384u * 8);
  Serve(Text(0, 1600));
  EXPECT_GT(prefix().used_bytes, before + 100 * 100);
  EXPECT_LT(prefix().used_bytes, before + 100 * 200);
  mem::MemoryBudget small(100000);
  EXPECT_FALSE(PrefixIndex::Create(small, geometry, *pool, {.max_bytes = 16384 * kTestBlock}));
}

// ---- eviction ----

TEST_F(PrefixIndexTest, RowsNeverHitGoFirstThenTheLeastRecentlyUsed) {
  Serve(Text(1000, 32));
  Serve(Text(2000, 32));
  Serve(Text(3000, 32));
  EXPECT_EQ(Held(Text(2000, 32)), 32u);
  EXPECT_EQ(Held(Text(1000, 32)), 32u);
  Serve(Text(4000, 32));
  const auto gone = [&](int first) {
    // Without a lookup, which would be a use.
    return index->FindRow(kNoRow, kSalt, PrefixRows::Tokens(Text(first, 16))) == kNoRow;
  };
  for (const int next : {3000, 4000, 2000, 1000}) {
    EXPECT_FALSE(gone(next));
    EXPECT_EQ(index->Evict(2 * kTestBlock), 2 * kTestBlock);
    EXPECT_TRUE(gone(next)) << next;
  }
  EXPECT_EQ(index->Evict(1), 0u);
  EXPECT_EQ(in_use(), 0u);
}

TEST_F(PrefixIndexTest, TheEndOfAChainGoesBeforeItsBeginning) {
  Serve(Text(0, 80));
  EXPECT_EQ(index->Evict(2 * kTestBlock), 2 * kTestBlock);
  EXPECT_EQ(Held(Text(0, 80)), 48u);
  EXPECT_EQ(index->Evict(kTestBlock + 1), 2 * kTestBlock);  // whole blocks
  EXPECT_EQ(Held(Text(0, 80)), 16u);
}

TEST_F(PrefixIndexTest, PublishingAgainIsAUseAndNoHit) {
  {
    const Sequence first = Serve(Text(1000, 16));
    Serve(Text(2000, 16));
    index->Publish(Text(1000, 16), kSalt, first);
  }
  EXPECT_EQ(index->Stats().rows, 2u);
  EXPECT_EQ(index->Stats().hits, 0u);
  EXPECT_EQ(index->bytes(), 2 * kTestBlock);
  EXPECT_EQ(index->Evict(kTestBlock), kTestBlock);
  EXPECT_EQ(Held(Text(2000, 16)), 0u);
  EXPECT_EQ(Held(Text(1000, 16)), 16u);
}

TEST_F(PrefixIndexTest, APinnedPromptIsNeverEvicted) {
  Make({0}, 8);
  const auto system = Text(0, 48);
  Serve(system);
  EXPECT_EQ(index->Pin(system, kSalt), 48u);
  EXPECT_EQ(index->Stats().idle_bytes, 0u);
  for (int i = 1; i < 20; ++i) Serve(Join(system, Text(i * 1000, 64)));
  const uint64_t others = index->bytes() - 3 * kTestBlock;
  EXPECT_GT(others, 0u);
  EXPECT_EQ(index->Evict(1u << 20), others);
  EXPECT_EQ(Held(system), 48u);
  index->Unpin(system, kSalt);
  EXPECT_EQ(index->Evict(1u << 20), 3 * kTestBlock);
  EXPECT_EQ(index->Pin(system, kSalt), 0u);
  index->Unpin(system, kSalt);
}

TEST_F(PrefixIndexTest, ClearDropsEverythingAndLeavesRunningSequencesAlone) {
  const auto text = Text(0, 48);
  const Sequence running = Serve(text);
  index->Pin(text, kSalt);
  index->Clear();
  EXPECT_EQ(index->Stats().rows, 0u);
  EXPECT_EQ(index->bytes(), 0u);
  EXPECT_TRUE(Holds(running, text, kSalt));
  EXPECT_EQ(Held(text), 0u);
}

TEST_F(PrefixIndexTest, IdleBytesAreWhatEvictWouldGiveBack) {
  const Sequence running = Serve(Text(0, 48));
  Serve(Join(Text(0, 32), Text(1000, 32)));
  EXPECT_EQ(index->Stats().bytes, 5 * kTestBlock);
  EXPECT_EQ(index->Stats().idle_bytes, 2 * kTestBlock);
  EXPECT_EQ(index->Evict(1u << 20), 2 * kTestBlock);
}

// ---- windows ----

// Group 1 sees 40 tokens: at length 112 those from 73 on, in the blocks from 64 on.
TEST_F(PrefixIndexTest, ALengthIsOfferedOnlyWhereTheWindowBehindItIsHeld) {
  Make({0, 40}, 256);
  const auto text = Text(0, 112);
  Serve(text);  // published at its end: the local blocks of 0..63 are gone
  EXPECT_EQ(Held(text), 112u);
  EXPECT_EQ(index->bytes(), (7 + 3) * kTestBlock);
  EXPECT_EQ(Held(Text(0, 103)), 103u);  // needs 64 on
  EXPECT_EQ(Held(Text(0, 102)), 0u);    // needs 63 on, and at 96 57 on
  EXPECT_EQ(Held(Text(0, 80)), 0u);
  EXPECT_EQ(Held(Join(text, Text(900, 50))), 112u);
}

TEST_F(PrefixIndexTest, AnAdoptedSequenceHoldsItsWindowAndNotMore) {
  Make({0, 40}, 256);
  const auto text = Text(0, 112);
  {
    Sequence sequence(geometry, *pool);
    for (size_t end = 16; end <= 112; end += 16) {
      ASSERT_TRUE(Feed(sequence, text, end, kSalt).has_value());
      index->Publish(text, kSalt, sequence);  // while it runs: every block is caught
    }
  }
  EXPECT_EQ(index->bytes(), 14 * kTestBlock);
  const Sequence whole = Adopted(text);
  EXPECT_EQ(whole.bytes_in_use(), (7 + 3) * kTestBlock);
  EXPECT_EQ(Held(Text(0, 64)), 64u);
  EXPECT_EQ(Held(Text(0, 100)), 100u);
}

// From token 64 on a pinned prompt shows other tokens than those that everybody's window shows.
TEST_F(PrefixIndexTest, WhoKeepsASystemPromptAdoptsOnlyWhatItWouldHaveComputedItself) {
  Make({64, 64}, 256);
  for (LayerGroup& group : geometry.groups) group.shape.sinks = 4;
  const auto text = Text(0, 160);
  {
    Sequence donor(geometry, *pool);
    for (size_t end = 16; end <= 160; end += 16) {
      ASSERT_TRUE(Feed(donor, text, end, kSalt).has_value());
      index->Publish(text, kSalt, donor);
    }
  }
  EXPECT_EQ(Held(text), 160u);
  Sequence pinned(geometry, *pool);
  pinned.PinFirst(20);
  EXPECT_EQ(index->Adopt(text, kSalt, 160, pinned), 64u);
  EXPECT_TRUE(Holds(pinned, text, kSalt));
  Sequence few(geometry, *pool);
  few.PinFirst(3);  // sinks anyway
  EXPECT_EQ(index->Adopt(text, kSalt, 160, few), 160u);
  Sequence narrow(geometry, *pool);
  narrow.LimitWindow(48);
  EXPECT_EQ(index->Adopt(text, kSalt, 160, narrow), 48u);
}

TEST_F(PrefixIndexTest, WindowedBlocksThatNoSequenceHoldsAreGivenBackWhileTheRowIsInUse) {
  Make({0, 40}, 256);
  const auto text = Text(0, 112);
  Sequence sequence(geometry, *pool);
  for (size_t end = 16; end <= 112; end += 16) {
    ASSERT_TRUE(Feed(sequence, text, end, kSalt).has_value());
    index->Publish(text, kSalt, sequence);
  }
  EXPECT_EQ(in_use(), 14u);  // the index keeps four that the sequence has dropped
  EXPECT_EQ(index->Stats().idle_bytes, 4 * kTestBlock);
  EXPECT_EQ(index->Evict(1u << 20), 4 * kTestBlock);
  EXPECT_EQ(in_use(), 10u);
  EXPECT_EQ(Held(text), 112u);
  EXPECT_EQ(Held(Text(0, 64)), 0u);
  EXPECT_EQ(index->Stats().evicted, 0u);
}

TEST_F(PrefixIndexTest, ALongPromptUnderTheCapKeepsItsLastWindow) {
  Make({0, 40}, 14);  // 20 whole rows of one group, or fewer of both
  const auto text = Text(0, 160);
  Sequence sequence(geometry, *pool);
  for (size_t end = 16; end <= 160; end += 16) {
    ASSERT_TRUE(Feed(sequence, text, end, kSalt).has_value());
    index->Publish(text, kSalt, sequence);
    ASSERT_TRUE(index->CheckInvariants());
  }
  EXPECT_EQ(Held(text), 160u);
}

TEST_F(PrefixIndexTest, ARowGetsBlocksBackFromASequenceThatHasThem) {
  Make({0, 40}, 256);
  const auto text = Text(0, 112);
  Serve(text);
  EXPECT_EQ(Held(Text(0, 64)), 0u);
  Serve(Text(0, 64));
  EXPECT_EQ(Held(Text(0, 64)), 64u);
  EXPECT_EQ(index->Stats().rows, 7u);
}

TEST_F(PrefixIndexTest, GivingARowItsBlocksBackEvictsNoRow) {
  Make({24}, 4);
  Serve(Text(0, 64));  // four rows, as many as there may be; two of them have lost their block
  EXPECT_EQ(index->bytes(), 2 * kTestBlock);
  Serve(Text(0, 32));
  EXPECT_EQ(Held(Text(0, 32)), 32u);
  EXPECT_EQ(index->Stats().rows, 4u);
}

TEST_F(PrefixIndexTest, APinnedPromptKeepsItsWindowedBlocks) {
  Make({0, 40}, 256);
  const auto system = Text(0, 64);
  Serve(system);
  index->Pin(system, kSalt);
  const Sequence running = Serve(Join(system, Text(5000, 100)));
  index->Evict(1u << 20);
  EXPECT_EQ(Held(system), 64u);
}

}  // namespace
}  // namespace tael::kv
