#include "engine/kv_account.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "engine/testing.h"

namespace tael::engine {
namespace {

std::unique_ptr<Engine> MakeEngine(const char* name) {
  return CreateEngine({.model_path = Tiny(name),
                       .budget_bytes = 256u << 20,
                       .num_threads = 1,
                       .context_length = 256,
                       .max_sessions = 2,
                       .chunk_tokens = 32});
}

uint64_t Sum(const KvAccount::Blocks& blocks) {
  return std::accumulate(blocks.begin(), blocks.end(), uint64_t{0});
}

void Feed(Session& session, size_t count) {
  const auto tokens = RandomTokens(count, 1);
  ASSERT_TRUE(session.Feed(tokens, {}, [](size_t, std::span<float>) {}).has_value());
}

TEST(KvAccount, ForeseesWhatASequenceWillHold) {
  for (const char* name : {"llama_gqa", "gemma3", "mistral_swa24"}) {
    const auto engine = MakeEngine(name);
    const KvAccount account(*engine);
    for (const size_t length : {1, 16, 17, 100, 256}) {
      uint64_t most = 0;
      {
        Session session = engine->NewSession();
        for (size_t i = 0; i < length; ++i) {
          Feed(session, 1);
          most = std::max(most, engine->pool().Stats().num_blocks_in_use);
        }
      }
      const uint64_t foreseen = Sum(account.For(static_cast<uint32_t>(length), 0));
      EXPECT_GE(foreseen, most) << name << ", " << length;
      // A window's estimate has room for a pass of the greatest size.
      if (std::string(name) == "llama_gqa") {
        EXPECT_EQ(foreseen, most) << length;
      }
    }
  }
}

TEST(KvAccount, WhatIsSharedOrHeldIsNotWantedAgain) {
  const auto engine = MakeEngine("llama_gqa");
  const KvAccount account(*engine);
  const uint64_t row = Sum(account.For(16, 0));
  EXPECT_EQ(Sum(account.For(100, 0)), 7 * row);
  EXPECT_EQ(Sum(account.For(100, 50)), 4 * row);  // three whole rows of the 50
  Session session = engine->NewSession();
  EXPECT_EQ(Sum(account.Growth(session.sequence(), 100, 0)), 7 * row);
  EXPECT_EQ(Sum(account.Growth(session.sequence(), 100, 32)), 5 * row);
  Feed(session, 33);
  EXPECT_EQ(Sum(account.Growth(session.sequence(), 100, 0)), 4 * row);
  EXPECT_EQ(Sum(account.Growth(session.sequence(), 100, 96)), row);
  EXPECT_EQ(Sum(account.Growth(session.sequence(), 20, 0)), 0u);
  EXPECT_EQ(Sum(account.InUse(0)), 3 * row);
  EXPECT_EQ(Sum(account.InUse(account.row_bytes())), 2 * row);
}

TEST(KvAccount, WhatFitsCanBeAllocated) {
  for (const char* name : {"llama_gqa", "gemma3"}) {
    const auto engine = MakeEngine(name);
    const KvAccount account(*engine);
    // As the plan promised: two sessions of a whole context.
    KvAccount::Blocks both = account.For(256, 0);
    Add(both, account.For(256, 0));
    EXPECT_TRUE(account.Fit(both)) << name;
    std::vector<Session> sessions;
    KvAccount::Blocks all = account.None();
    while (true) {
      Add(all, account.For(256, 0));
      if (!account.Fit(all)) break;
      sessions.push_back(engine->NewSession());
      Feed(sessions.back(), 256);
    }
    EXPECT_GE(sessions.size(), 2u);
  }
}

}  // namespace
}  // namespace tael::engine
