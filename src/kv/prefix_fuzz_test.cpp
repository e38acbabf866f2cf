// Random operations on sequences and the index against a plain model: what every sequence must
// read, and how many references every block must have. TAEL_TEST_OPERATIONS=1000000 runs so many
// for each seed; without it a short version runs.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kv/prefix_index.h"
#include "kv/snapshot.h"
#include "kv/testing.h"

namespace tael::kv {
namespace {

int NumOperations() {
  const char* text = std::getenv("TAEL_TEST_OPERATIONS");
  return text != nullptr ? std::atoi(text) : 30000;
}

uint64_t PoorHash(const void* data, size_t bytes, uint64_t seed) {
  return Hash64(data, bytes, seed) & 15;
}

struct Case {
  uint32_t seed;
  std::array<uint32_t, 3> windows;
  size_t pool_blocks;
  size_t cap_blocks;
  HashFunction hash;
};

class PrefixFuzz : public testing::TestWithParam<Case> {
 protected:
  static constexpr size_t kMostRunning = 7;
  static constexpr size_t kMostTokens = 220;

  struct Running {
    Sequence sequence;
    std::vector<TokenId> text;    // of what the sequence holds
    std::vector<TokenId> prompt;  // where it is going
    uint64_t salt = 0;
  };

  PrefixFuzz()
      : random_(GetParam().seed),
        geometry_(TestGeometry(GetParam().windows)),
        pool_(TestPool(budget_, geometry_, GetParam().pool_blocks)),
        index_(*PrefixIndex::Create(
            budget_, geometry_, *pool_,
            {.max_bytes = GetParam().cap_blocks * kTestBlock, .hash = GetParam().hash})) {}

  size_t Below(size_t n) { return static_cast<size_t>(random_() % n); }

  // Few texts with few tokens, so that they share beginnings and branch anywhere.
  std::vector<TokenId> RandomPrompt() {
    std::mt19937 text(static_cast<uint32_t>(Below(4)));
    std::vector<TokenId> tokens(1 + Below(kMostTokens));
    const size_t branch = Below(3) == 0 ? tokens.size() : Below(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto id = static_cast<int32_t>(text() % 4);
      tokens[i] = TokenId{i < branch ? id : static_cast<int32_t>(Below(3))};
    }
    return tokens;
  }

  void Admit() {
    if (running_.size() == kMostRunning) return;
    Running each{Sequence(geometry_, *pool_), {}, RandomPrompt(), Below(2)};
    const auto most = static_cast<uint32_t>(each.prompt.size() - 1);
    const uint32_t held = index_->Adopt(each.prompt, each.salt, most, each.sequence);
    ASSERT_LE(held, most);
    each.text.assign(each.prompt.begin(), each.prompt.begin() + held);
    ASSERT_TRUE(Holds(each.sequence, each.text, each.salt));
    running_.push_back(std::move(each));
  }

  void Append(Running& each) {
    size_t end = std::min(each.prompt.size(), each.text.size() + Below(40));
    if (each.text.size() == each.prompt.size() && end < kMostTokens) {
      each.prompt.push_back(TokenId{static_cast<int32_t>(Below(4))});  // an answer
      ++end;
    }
    Status status = Feed(each.sequence, each.prompt, end, each.salt);
    if (!status) {
      ASSERT_EQ(status.error().code, ErrorCode::kNoFreeBlocks);
      ASSERT_TRUE(Holds(each.sequence, each.text, each.salt));
      index_->Evict(8 * kTestBlock);
      status = Feed(each.sequence, each.prompt, end, each.salt);
    }
    if (status) each.text.assign(each.prompt.begin(), each.prompt.begin() + ptrdiff_t(end));
  }

  void Fork(size_t i) {
    if (running_.size() == kMostRunning) return;
    const Running& from = running_[i];
    Running fork{from.sequence.Fork(), from.text, from.text, from.salt};
    for (size_t n = Below(20); n > 0; --n) fork.prompt.push_back(TokenId{int32_t(Below(5))});
    running_.push_back(std::move(fork));
  }

  void Truncate(Running& each) {
    const auto length = static_cast<uint32_t>(Below(each.text.size() + 1));
    if (!each.sequence.CanTruncate(length)) return;
    each.sequence.Truncate(length);
    each.text.resize(length);
    each.prompt.resize(length);
    for (size_t n = 1 + Below(30); n > 0; --n) each.prompt.push_back(TokenId{int32_t(Below(4))});
  }

  void PinOrUnpin() {
    if (pinned_.empty()) {
      salt_of_pinned_ = Below(2);
      pinned_ = RandomPrompt();
      pinned_.resize(index_->Pin(pinned_, salt_of_pinned_));
    } else {
      index_->Unpin(pinned_, salt_of_pinned_);
      pinned_.clear();
    }
  }

  void Clear() {
    index_->Clear();
    pinned_.clear();
  }

  void SaveAndRestore() {
    {
      const auto snapshot = Snapshot::Collect(*index_, {}, budget_);
      ASSERT_TRUE(snapshot.has_value());
      const Status written = snapshot->Write(path_);
      ASSERT_TRUE(written.has_value()) << written.error().Message();
    }
    index_->Evict(Below(100) * kTestBlock);
    if (Below(2) == 0) Clear();
    const auto restored = RestoreSnapshot(path_, {}, budget_, *index_);
    ASSERT_TRUE(restored.has_value()) << restored.error().Message();
    restored_ += restored->rows;
  }

  void Step() {
    const size_t dice = Below(100);
    if (running_.empty() || dice < 8) return Admit();
    const size_t i = Below(running_.size());
    Running& each = running_[i];
    if (dice < 50) return Append(each);
    if (dice < 75) return index_->Publish(each.prompt, each.salt, each.sequence);
    if (dice < 80) return Fork(i);
    if (dice < 84) return Truncate(each);
    if (dice < 93) {
      std::swap(each, running_.back());
      return running_.pop_back();
    }
    if (dice < 96) {
      index_->Evict(Below(20) * kTestBlock);
      return;
    }
    if (dice < 98) return PinOrUnpin();
    if (Below(50) != 0) return;
    if (Below(3) == 0) return Clear();
    SaveAndRestore();
  }

  // References found by walking every table and every row.
  std::map<BlockId, uint32_t> CountReferences() const {
    std::map<BlockId, uint32_t> counts;
    const auto count = [&](std::span<const BlockId> blocks) {
      for (const BlockId block : blocks) {
        if (block != kNullBlock) ++counts[block];
      }
    };
    for (const Running& each : running_) {
      for (size_t i = 0; i < geometry_.groups.size(); ++i) {
        count(each.sequence.table(GroupId{static_cast<uint32_t>(i)}));
      }
    }
    for (uint32_t row = 0; row < index_->rows().num_places(); ++row) count(index_->blocks(row));
    return counts;
  }

  void CheckAll() {
    for (const Running& each : running_) {
      ASSERT_EQ(each.sequence.length(), each.text.size());
      ASSERT_TRUE(Holds(each.sequence, each.text, each.salt));
    }
    ASSERT_TRUE(pool_->CheckInvariants());
    ASSERT_TRUE(index_->CheckInvariants());
    const auto counts = CountReferences();
    for (const auto& [block, count] : counts) ASSERT_EQ(pool_->refs(block), count);
    const PoolStats stats = pool_->Stats();
    ASSERT_EQ(stats.num_blocks_in_use, counts.size());
    ASSERT_EQ(pool_->NumFree(SizeClass{0}) + counts.size(), GetParam().pool_blocks);
  }

  mem::MemoryBudget budget_{0};
  std::mt19937 random_;
  Geometry geometry_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<PrefixIndex> index_;
  std::vector<Running> running_;
  std::vector<TokenId> pinned_;
  uint64_t salt_of_pinned_ = 0;
  const std::string path_ = testing::TempDir() + "tael_fuzz_" + std::to_string(::getpid());
  uint64_t restored_ = 0;
};

TEST_P(PrefixFuzz, EveryReferenceIsAccountedForAndEverySequenceReadsItsOwnText) {
  for (int i = 0; i < NumOperations(); ++i) {
    Step();
    ASSERT_LE(index_->bytes(), index_->max_bytes());
    if (i % 97 == 0) CheckAll();
    if (HasFatalFailure()) FAIL() << "after operation " << i;
  }
  CheckAll();
  const PrefixStats stats = index_->Stats();
  EXPECT_GT(stats.hits, 100u);
  EXPECT_GT(stats.evicted, 100u);
  EXPECT_GT(restored_, 0u);
  std::remove(path_.c_str());
  running_.clear();
  EXPECT_EQ(pool_->Stats().block_bytes_in_use, index_->bytes());
  Clear();
  EXPECT_EQ(pool_->Stats().num_blocks_in_use, 0u);
  EXPECT_EQ(pool_->NumFree(SizeClass{0}), GetParam().pool_blocks);
}

std::string TestName(const testing::TestParamInfo<Case>& info) {
  return "Seed" + std::to_string(info.param.seed);
}

INSTANTIATE_TEST_SUITE_P(
    , PrefixFuzz,
    testing::Values(Case{1, {0, 0, 0}, 256, 128, &Hash64},        // one kind of layers
                    Case{2, {0, 40, 40}, 320, 160, &Hash64},      // as Gemma's
                    Case{3, {0, 17, 100}, 192, 192, &PoorHash},   // more in demand than there is
                    Case{4, {24, 24, 24}, 256, 100, &PoorHash}),  // windows only
    TestName);

}  // namespace
}  // namespace tael::kv
