// Sequences whose prompt is compressed: which blocks stay, that none is written or lost, and what
// can be undone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "kv/block_pool.h"
#include "kv/prefix_index.h"
#include "kv/prompt_compression.h"
#include "kv/sequence.h"
#include "kv/testing.h"

namespace tael::kv {
namespace {

constexpr GroupId kGroup{0};

TEST(CompressPolicy, SaysHowManyTokensOfAPromptStay) {
  EXPECT_EQ(CompressPolicy{}.Budget(5000), 5000u);
  EXPECT_EQ(CompressPolicy::Auto().Budget(256), 256u);
  EXPECT_EQ(CompressPolicy::Auto().Budget(1000), 400u);
  EXPECT_EQ((CompressPolicy{.percent = 10}.Budget(1000)), 100u);
  EXPECT_EQ((CompressPolicy{.percent = 10}.Budget(100)), 64u);  // the least
  EXPECT_EQ((CompressPolicy{.percent = 10}.Budget(50)), 50u);
  EXPECT_EQ((CompressPolicy{.tokens = 300}.Budget(200)), 200u);
  EXPECT_EQ((CompressPolicy{.tokens = 300}.Budget(2000)), 300u);
}

TEST(CompressPolicy, TheLastQueriesOfAPromptAreLookedAt) {
  EXPECT_EQ(PlanCompression({}, 1000).at, 0u);
  EXPECT_EQ(PlanCompression({.tokens = 300}, 300).at, 0u);
  const Compression usual = PlanCompression({.percent = 40}, 1000);
  EXPECT_EQ(usual.at, 1000u);
  EXPECT_EQ(usual.observe_from, 976u);
  EXPECT_EQ(usual.recent_from, 976u);
  EXPECT_EQ(usual.budget, 400u);
  EXPECT_EQ(PlanCompression({.percent = 90}, 80).observe_from, 60u);
  EXPECT_EQ(PlanCompression({.tokens = 64}, 995).recent_from, 960u);
}

TEST(PromptScores, ABlockIsAsGoodAsItsBestTokenAndTheFirstAlwaysStays) {
  PromptScores scores;
  scores.Begin(6 * kTestTokens);
  scores.BeginPass();
  const std::map<size_t, int64_t> given = {{17, 5}, {18, 5}, {40, 9}, {63, 7}, {64, 7}, {95, 1}};
  for (const auto& [slot, mass] : given) scores.masses()[slot] = mass;
  scores.EndPass();
  scores.BeginPass();
  scores.masses()[20] = 100;  // a pass that is thrown away
  scores.BeginPass();
  scores.EndPass();
  EXPECT_THAT(scores.BestBlocks(6, 1), testing::ElementsAre(0));
  EXPECT_THAT(scores.BestBlocks(6, 2), testing::ElementsAre(0, 2));
  EXPECT_THAT(scores.BestBlocks(6, 3), testing::ElementsAre(0, 2, 3));  // of equals the older
  EXPECT_THAT(scores.BestBlocks(6, 5), testing::ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(scores.BestBlocks(5, 2), testing::ElementsAre(0, 2));
}

// Two groups that see everything, and one with a window of its own.
struct CompressionTest : testing::Test {
  mem::MemoryBudget budget{0};
  Geometry geometry = TestGeometry(std::vector<uint32_t>{0, 40, 0});
  std::unique_ptr<BlockPool> pool = TestPool(budget, geometry, 400);

  void TearDown() override { EXPECT_TRUE(pool->CheckInvariants()); }

  // Feeds `tokens` up to `end`, in passes of `chunk`. While a prompt is observed the first slot of
  // each block in `good` gets attention.
  static void FeedTo(Sequence& sequence, std::span<const TokenId> tokens, uint32_t end,
                     const std::set<uint32_t>& good = {}, uint32_t chunk = 16) {
    while (sequence.length() < end) {
      const uint32_t count = std::min({chunk, end - sequence.length(), sequence.MostAtOnce()});
      const uint32_t begin = sequence.length();
      ASSERT_TRUE(sequence.Extend(count).has_value());
      for (uint32_t i = 0; i < 3; ++i) {
        const std::vector<uint32_t> kv = KvOf(tokens.first(begin + count), i);
        for (uint32_t t = begin; t < begin + count; ++t) {
          std::byte* block = sequence.MutableBlock(GroupId{i}, t);
          std::memcpy(block + t % kTestTokens * sizeof(uint32_t), &kv[t], sizeof(uint32_t));
        }
        const std::span<int64_t> masses = sequence.Observed(GroupId{i});
        for (const uint32_t block : good) {
          if (block * kTestTokens < masses.size()) masses[block * kTestTokens] += count;
        }
      }
      sequence.Commit(count);
    }
  }
  // Positions of the tokens in a group's live blocks, in the order of the table. Fails where a slot
  // holds anything but a token of this text.
  static std::vector<uint32_t> Live(const Sequence& sequence, GroupId group,
                                    std::span<const TokenId> tokens) {
    std::map<uint32_t, uint32_t> position_of;
    const std::vector<uint32_t> kv =
        KvOf(tokens.first(sequence.length()), static_cast<size_t>(group));
    for (uint32_t t = 0; t < kv.size(); ++t) position_of[kv[t]] = t;
    const Sequence::View view = sequence.Blocks(group);
    std::vector<const std::byte*> blocks(view.tail.begin(), view.tail.end());
    blocks.insert(blocks.end(), view.blocks.begin(), view.blocks.end());
    std::vector<uint32_t> live;
    for (const std::byte* block : blocks) {
      for (uint32_t slot = 0; slot < kTestTokens; ++slot) {
        if (!live.empty() && live.back() + 1 == sequence.length()) return live;
        uint32_t found = 0;
        std::memcpy(&found, block + slot * sizeof found, sizeof found);
        EXPECT_TRUE(position_of.contains(found)) << "not of this text";
        live.push_back(position_of[found]);
      }
    }
    return live;
  }
  static std::vector<uint32_t> BlocksOf(std::span<const uint32_t> live) {
    std::vector<uint32_t> blocks;
    for (const uint32_t t : live) {
      if (t % kTestTokens == 0) blocks.push_back(t / kTestTokens);
    }
    return blocks;
  }
};

// 160 tokens: the last 32 are looked at and stay, of the 8 blocks before the first and three
// others.
constexpr Compression kPlan{.at = 160, .observe_from = 128, .recent_from = 128, .budget = 96};

TEST_F(CompressionTest, TheBestBlocksMoveTogetherAndTheOthersAreGivenBack) {
  const auto tokens = Text(1, 400);
  for (const uint32_t chunk : {1u, 7u, 16u, 300u}) {
    Sequence sequence(geometry, *pool);
    sequence.CompressAt(kPlan);
    EXPECT_EQ(sequence.MostAtOnce(), 160u);
    FeedTo(sequence, tokens, 160, {2, 5, 6}, chunk);
    EXPECT_EQ(sequence.table(kGroup).size(), 10u);
    EXPECT_EQ(sequence.compressed_tokens(), 0u);
    sequence.Compress();
    for (const GroupId group : {GroupId{0}, GroupId{2}}) {
      EXPECT_THAT(BlocksOf(Live(sequence, group, tokens)), testing::ElementsAre(0, 2, 5, 6, 8, 9));
      EXPECT_EQ(sequence.FirstVisible(group, 160), 128u);
      EXPECT_EQ(sequence.table(group)[4], kNullBlock);
      EXPECT_EQ(sequence.table(group)[7], kNullBlock);
    }
    EXPECT_EQ(sequence.Blocks(GroupId{1}).first_token, 112u);  // its own window, and no other
    EXPECT_EQ(sequence.compressed_tokens(), 64u);
    EXPECT_EQ(sequence.bytes_in_use(), (6 + 3 + 6) * kTestBlock);
    EXPECT_EQ(pool->Stats().num_blocks_in_use, 15u);
    FeedTo(sequence, tokens, 200, {1});  // nobody asks any more
    EXPECT_THAT(BlocksOf(Live(sequence, kGroup, tokens)),
                testing::ElementsAre(0, 2, 5, 6, 8, 9, 10, 11, 12));
    EXPECT_EQ(sequence.hidden_tokens(), 64u);
  }
  EXPECT_EQ(pool->Stats().num_blocks_in_use, 0u);
}

TEST_F(CompressionTest, ItIsDoneWhenMoreFollowsIfNobodyAskedForItBefore) {
  const auto tokens = Text(1, 400);
  Sequence sequence(geometry, *pool);
  sequence.CompressAt(kPlan);
  FeedTo(sequence, tokens, 160, {3});
  EXPECT_FALSE(sequence.observes());
  ASSERT_TRUE(sequence.Extend(1).has_value());
  sequence.Commit(0);
  EXPECT_EQ(sequence.compressed_tokens(), 64u);
  sequence.Truncate(160);
  EXPECT_THAT(BlocksOf(Live(sequence, kGroup, tokens)), testing::ElementsAre(0, 1, 2, 3, 8, 9));
}

TEST_F(CompressionTest, APassThatIsThrownAwayLeavesNoTrace) {
  const auto tokens = Text(1, 400);
  Sequence sequence(geometry, *pool);
  sequence.CompressAt(kPlan);
  for (const uint32_t length : {100u, 140u}) {
    FeedTo(sequence, tokens, length, {2, 5, 6});
    ASSERT_TRUE(sequence.Extend(60 - (length - 100)).has_value());
    sequence.Observed(kGroup)[7 * kTestTokens] = 1 << 20;
    sequence.Truncate(length);
    FeedTo(sequence, tokens, length + 1, {2, 5, 6});  // a shorter one takes its place
  }
  FeedTo(sequence, tokens, 160, {2, 5, 6});
  sequence.Compress();
  EXPECT_THAT(BlocksOf(Live(sequence, kGroup, tokens)), testing::ElementsAre(0, 2, 5, 6, 8, 9));
}

TEST_F(CompressionTest, ASecondPromptChoosesAmongWhatTheFirstLeft) {
  const auto tokens = Text(1, 500);
  Geometry open = TestGeometry(std::vector<uint32_t>{0, 0, 0});
  Sequence sequence(open, *pool);
  sequence.CompressAt(kPlan);
  FeedTo(sequence, tokens, 160, {2, 5, 6});
  FeedTo(sequence, tokens, 250);
  // Slots: 0 2 5 6 8 9 10 ... 15; what is recent begins in block 14.
  sequence.CompressAt({.at = 256, .observe_from = 230, .recent_from = 224, .budget = 100});
  EXPECT_EQ(sequence.observe_from(), 250u);
  FeedTo(sequence, tokens, 256, {2, 4, 5, 8});
  sequence.Compress();
  // 68 / 16 = 4 of them stay; of 5, 8, 9 and 12 the older three.
  EXPECT_THAT(BlocksOf(Live(sequence, kGroup, tokens)), testing::ElementsAre(0, 5, 8, 9, 14, 15));
  EXPECT_EQ(sequence.compressed_tokens(), 160u);
  EXPECT_TRUE(sequence.CanTruncate(16));
  EXPECT_FALSE(sequence.CanTruncate(17));
}

TEST_F(CompressionTest, GoingBackIsPossibleToWhatLiesWhereItLayAndToWhatCameAfter) {
  const auto tokens = Text(1, 400);
  Geometry open = TestGeometry(std::vector<uint32_t>{0, 0, 0});
  Sequence sequence(open, *pool);
  sequence.CompressAt(kPlan);
  FeedTo(sequence, tokens, 160, {1, 2, 6});
  sequence.Compress();
  FeedTo(sequence, tokens, 200);
  for (const uint32_t length : {0u, 1u, 47u, 48u, 160u, 161u, 200u}) {
    EXPECT_TRUE(sequence.CanTruncate(length)) << length;
  }
  for (const uint32_t length : {49u, 64u, 128u, 159u}) {
    EXPECT_FALSE(sequence.CanTruncate(length)) << length;
  }
  sequence.Truncate(170);
  EXPECT_THAT(BlocksOf(Live(sequence, kGroup, tokens)), testing::ElementsAre(0, 1, 2, 6, 8, 9, 10));
  EXPECT_EQ(sequence.intact_tokens(), 48u);
  sequence.Truncate(40);  // as if nothing had been compressed
  EXPECT_EQ(sequence.compressed_tokens(), 0u);
  EXPECT_EQ(sequence.intact_tokens(), 40u);
  EXPECT_EQ(sequence.MostAtOnce(), UINT32_MAX);
  FeedTo(sequence, tokens, 200);
  EXPECT_EQ(Live(sequence, kGroup, tokens).size(), 200u);
}

TEST_F(CompressionTest, GoingBackBeforeItIsDoneGivesItUp) {
  const auto tokens = Text(1, 400);
  Sequence sequence(geometry, *pool);
  sequence.CompressAt(kPlan);
  FeedTo(sequence, tokens, 160, {3});
  sequence.Truncate(159);
  EXPECT_TRUE(sequence.Observed(kGroup).empty());
  FeedTo(sequence, tokens, 200);
  EXPECT_EQ(sequence.compressed_tokens(), 0u);
}

TEST_F(CompressionTest, ALimitTakesWhatWasLeftOfThePrompt) {
  const auto tokens = Text(1, 400);
  Sequence sequence(geometry, *pool);
  sequence.CompressAt(kPlan);
  FeedTo(sequence, tokens, 160, {2, 5, 6});
  sequence.Compress();
  sequence.LimitWindow(50);
  EXPECT_TRUE(sequence.Blocks(kGroup).tail.empty());
  EXPECT_EQ(sequence.Blocks(kGroup).first_token, 128u);
  EXPECT_EQ(sequence.FirstVisible(kGroup, 190), 141u);
  EXPECT_EQ(sequence.compressed_tokens(), 0u);
  sequence.LimitWindow(0);
  FeedTo(sequence, tokens, 300);
  EXPECT_EQ(sequence.FirstVisible(kGroup, 300), 128u);
  // A prompt behind it begins with what is left.
  sequence.CompressAt({.at = 340, .observe_from = 320, .recent_from = 320, .budget = 70});
  FeedTo(sequence, tokens, 340, {2, 3});
  sequence.Compress();
  EXPECT_THAT(BlocksOf(Live(sequence, kGroup, tokens)), testing::ElementsAre(8, 10, 11, 20, 21));
  EXPECT_TRUE(sequence.CanTruncate(0));
  EXPECT_FALSE(sequence.CanTruncate(1));
}

TEST_F(CompressionTest, OthersFindInTheIndexWhatWasThereBeforeAndNothingElse) {
  Geometry open = TestGeometry(std::vector<uint32_t>{0, 0, 0});
  auto index = PrefixIndex::Create(budget, open, *pool, {.max_bytes = 1 << 20});
  ASSERT_TRUE(index.has_value());
  const auto tokens = Text(1, 400);
  {
    Sequence sequence(open, *pool);
    sequence.CompressAt(kPlan);
    FeedTo(sequence, tokens, 100, {1, 4, 6});
    (*index)->Publish(tokens, 0, sequence);
    FeedTo(sequence, tokens, 160, {1, 4, 6});
    sequence.Compress();
    FeedTo(sequence, tokens, 200);
    (*index)->Publish(tokens, 0, sequence);  // block 2 of its table is another's now
    EXPECT_EQ((*index)->Stats().rows, 6u);   // 96 of 100
  }
  Sequence other(open, *pool);
  EXPECT_EQ((*index)->Adopt(tokens, 0, 399, other), 96u);
  EXPECT_TRUE(Holds(other, tokens));
}

// Sequences that grow, fork, are compressed, go back and move, beside an index that holds rows of
// theirs.
class Crowd {
 public:
  static constexpr size_t kMost = 4;

  Crowd(const Geometry& geometry, BlockPool& pool, PrefixIndex& index, uint32_t seed)
      : geometry_(geometry), pool_(pool), index_(index), random_(seed) {}

  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }

  // One step of somebody; everybody else is as before.
  void Step(std::span<const TokenId> tokens) {
    if (sequences.empty() || (Below(9) == 0 && sequences.size() < kMost)) {
      sequences.emplace_back(geometry_, pool_);
      index_.Adopt(tokens, 0, Below(200), sequences.back());
      return;
    }
    const size_t who = Below(static_cast<uint32_t>(sequences.size()));
    std::vector<std::vector<uint32_t>> before;
    for (const Sequence& one : sequences)
      before.push_back(CompressionTest::Live(one, kGroup, tokens));
    Change(who, tokens);
    for (size_t i = 0; i < before.size(); ++i) {
      if (i == who) continue;
      EXPECT_EQ(CompressionTest::Live(sequences[i], kGroup, tokens), before[i]);
    }
    const auto own = CompressionTest::Live(sequences[who], kGroup, tokens);
    EXPECT_TRUE(std::ranges::is_sorted(own));
    if (Below(12) == 0) sequences.erase(sequences.begin() + static_cast<ptrdiff_t>(who));
    if (Below(12) == 0) Compact();
  }

  std::vector<Sequence> sequences;

 private:
  void Change(size_t who, std::span<const TokenId> tokens) {
    Sequence& one = sequences[who];
    const uint32_t length = one.length(), what = Below(8);
    if (what < 4 && length < 300) {
      CompressionTest::FeedTo(one, tokens, length + 1 + Below(60), {Below(3), Below(8)},
                              1 + Below(40));
    } else if (what == 4 && length < 300) {
      const uint32_t at = length + 1 + Below(120), from = at - std::min(at, 1 + Below(40));
      one.CompressAt({at, from, from / kTestTokens * kTestTokens, Below(at)});
    } else if (what == 5 && sequences.size() < kMost) {
      sequences.push_back(one.Fork());
    } else if (what == 6) {
      index_.Publish(tokens, 0, one);
    } else if (const uint32_t to = Below(length + 1); one.CanTruncate(to)) {
      one.Truncate(to);
    }
  }

  void Compact() {
    const auto moves = pool_.Compact();
    for (Sequence& one : sequences) one.Follow(moves);
    index_.Follow(moves);
  }

  const Geometry& geometry_;
  BlockPool& pool_;
  PrefixIndex& index_;
  std::mt19937 random_;
};

// MutableBlock() refuses to write what others hold; what it allowed would show in their text.
TEST_F(CompressionTest, NothingThatIsSharedIsWrittenWhateverComesInWhichOrder) {
  const Geometry open = TestGeometry(std::vector<uint32_t>{0, 24, 0});
  const auto tokens = Text(1, 900);
  for (uint32_t seed = 0; seed < 40; ++seed) {
    auto index = PrefixIndex::Create(budget, open, *pool, {.max_bytes = 60 * 3 * kTestBlock});
    ASSERT_TRUE(index.has_value());
    Crowd crowd(open, *pool, **index, seed);
    for (int step = 0; step < 150; ++step) {
      crowd.Step(tokens);
      ASSERT_TRUE(pool->CheckInvariants()) << seed << ", " << step;
      ASSERT_FALSE(HasFailure()) << "seed " << seed << ", step " << step;
    }
    crowd.sequences.clear();
    (*index)->Evict(~uint64_t{0});
    EXPECT_EQ(pool->Stats().num_blocks_in_use, 0u) << seed;
  }
}

}  // namespace
}  // namespace tael::kv
