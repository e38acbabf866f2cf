// Forks and shared prefixes on real forward passes: nobody can tell from an answer that its blocks
// are shared.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/kv_types.h"
#include "engine/prefix_context.h"
#include "engine/testing.h"
#include "kv/snapshot.h"
#include "kv/testing.h"

namespace tael::engine {
namespace {

using kv::Join;
using Row = std::vector<float>;
using Rows = std::vector<Row>;

constexpr uint64_t kSalt = 5;
// A chunk is a row of blocks: whatever part of a prompt is there already, the rest is computed in
// the same chunks as without it, so that answers can be compared bit for bit.
constexpr uint32_t kChunk = 16;

std::unique_ptr<Engine> MakeEngine(const std::string& name,
                                   exec::Compute compute = exec::Compute::kFast,
                                   const kv::WindowPolicy& window = {},
                                   std::optional<kernels::KvTypes> types = {}) {
  return CreateEngine({.model_path = Tiny(name),
                       .budget_bytes = 600u << 20,
                       .num_threads = 2,
                       .context_length = 256,
                       .max_sessions = 16,
                       .chunk_tokens = kChunk,
                       .compute = compute,
                       .kv_type = types,
                       .window = window});
}

// The logits behind each of the last `num_logits` of the tokens.
Rows Feed(
    Session& session, std::span<const TokenId> tokens, uint32_t num_logits = 1,
    Session::Progress progress = [](uint32_t) {}) {
  Rows rows;
  const Status status = session.Feed(
      tokens, {.num_logits = num_logits},
      [&](size_t, std::span<float> row) { rows.emplace_back(row.begin(), row.end()); }, progress);
  EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().Message());
  return rows;
}

// One token to a pass, as an answer is made.
Rows Decode(Session& session, std::span<const TokenId> tokens) {
  Rows rows;
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (Row& row : Feed(session, tokens.subspan(i, 1))) rows.push_back(std::move(row));
  }
  return rows;
}

std::unique_ptr<kv::PrefixIndex> MakeIndex(Engine& engine, uint64_t max_bytes) {
  auto index = kv::PrefixIndex::Create(engine.budget(), engine.plan().geometry, engine.pool(),
                                       {.max_bytes = max_bytes});
  EXPECT_TRUE(index.has_value()) << (index ? "" : index.error().Message());
  return *std::move(index);
}

// Full attention; local and global layers; a window on every layer; layers without rotation.
const std::array<const char*, 6> kModels = {"llama_gqa", "qwen3",         "gemma2",
                                            "gemma3",    "mistral_swa24", "smollm3"};

const std::array<kv::WindowPolicy, 4> kPolicies = {{{},
                                                    {40, 4, kv::WindowShape::kUniform},
                                                    {64, 20, kv::WindowShape::kUniform},
                                                    {64, 4, kv::WindowShape::kLayered}}};
const std::array<kernels::KvTypes, 3> kKvTypes = {
    kernels::KvTypes{kernels::KvType::kF16}, kernels::KvTypes{kernels::KvType::kQ8},
    kernels::KvTypes{kernels::KvType::kQ8, kernels::KvType::kQ4}};

// ---- forks ----

TEST(Fork, BothSidesGoOnAsIfTheyWereAlone) {
  for (const char* name : kModels) {
    const auto engine = MakeEngine(name);
    ASSERT_NE(engine, nullptr);
    const auto prompt = RandomTokens(37, 1), left = RandomTokens(40, 2),
               right = RandomTokens(40, 3);
    Session first = engine->NewSession();
    Feed(first, prompt);
    Session second = first.Fork();
    // In turn, so that each has written before the other does.
    Rows got_left, got_right;
    for (size_t i = 0; i < left.size(); ++i) {
      got_left.push_back(Decode(first, std::span(left).subspan(i, 1)).at(0));
      got_right.push_back(Decode(second, std::span(right).subspan(i, 1)).at(0));
    }
    Session alone = engine->NewSession();
    Feed(alone, prompt);
    EXPECT_EQ(got_left, Decode(alone, left)) << name;
    alone = engine->NewSession();
    Feed(alone, prompt);
    EXPECT_EQ(got_right, Decode(alone, right)) << name;
  }
}

TEST(Fork, ThreeAnswersHoldThePromptOnceAndThreeTails) {
  const auto engine = MakeEngine("qwen3");
  ASSERT_NE(engine, nullptr);
  const uint64_t row_bytes = engine->plan().geometry.RowBytes();
  Session first = engine->NewSession();
  Feed(first, RandomTokens(100, 1));  // 6 rows and 4 tokens
  std::vector<Session> answers;
  answers.push_back(std::move(first));
  for (int i = 0; i < 2; ++i) answers.push_back(answers[0].Fork());
  EXPECT_EQ(engine->pool().Stats().block_bytes_in_use, 7 * row_bytes);
  for (uint32_t i = 0; i < 3; ++i) Decode(answers[i], RandomTokens(20, 10 + i));
  // 120 tokens are 8 rows, of which the last two are each one's own.
  EXPECT_EQ(engine->pool().Stats().block_bytes_in_use, (6 + 3 * 2) * row_bytes);
  const std::array<const kv::Sequence*, 3> all = {&answers[0].sequence(), &answers[1].sequence(),
                                                  &answers[2].sequence()};
  EXPECT_EQ(kv::UniqueBytes(all), (6 + 3 * 2) * row_bytes);
}

TEST(Fork, AForkThatTakesTokensBackLeavesThemToTheOther) {
  const auto engine = MakeEngine("llama_gqa");
  ASSERT_NE(engine, nullptr);
  const auto prompt = RandomTokens(48, 1), more = RandomTokens(20, 2);
  Session first = engine->NewSession();
  Feed(first, prompt);
  Session second = first.Fork();
  second.Truncate(41);
  Decode(second, more);
  const Rows got = Decode(first, more);
  Session alone = engine->NewSession();
  Feed(alone, prompt);
  EXPECT_EQ(got, Decode(alone, more));
}

// ---- prefixes ----

struct Prefixes : testing::Test {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<kv::PrefixIndex> index;

  void Make(const char* name, exec::Compute compute, const kv::WindowPolicy& window = {},
            std::optional<kernels::KvTypes> types = {}) {
    index.reset();
    engine = MakeEngine(name, compute, window, types);
    ASSERT_NE(engine, nullptr);
    index = MakeIndex(*engine, engine->pool().Stats().capacity_bytes * 3 / 4);
  }
  // The prompt's last logits, and those of an answer of eight tokens, without any sharing.
  Rows Cold(std::span<const TokenId> prompt) {
    Session session = engine->NewSession();
    return Answer(session, Feed(session, prompt));
  }
  // The same, sharing what can be shared, and publishing while the prompt is computed.
  Rows Warm(std::span<const TokenId> prompt, uint32_t expected_held) {
    Session session = engine->NewSession();
    const uint32_t held =
        session.Adopt(*index, prompt, kSalt, static_cast<uint32_t>(prompt.size() - 1));
    EXPECT_EQ(held, expected_held);
    EXPECT_EQ(session.length(), held);
    const auto publish = [&](uint32_t) { index->Publish(prompt, kSalt, session.sequence()); };
    Rows rows = Feed(session, prompt.subspan(held), 1, publish);
    EXPECT_TRUE(index->CheckInvariants());
    return Answer(session, std::move(rows));
  }
  static Rows Answer(Session& session, Rows rows) {
    for (Row& row : Decode(session, RandomTokens(8, 99))) rows.push_back(std::move(row));
    return rows;
  }
  // One prompt five times, a part of it, more than it, and others that begin like it.
  void ExpectColdAnswers() {
    const auto prompt = RandomTokens(150, 1);
    const auto text = std::span(prompt);
    const Rows cold = Cold(prompt);
    EXPECT_EQ(Warm(prompt, 0), cold);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(Warm(prompt, 144), cold) << i;
    EXPECT_EQ(Warm(text.first(70), 69), Cold(text.first(70)));
    const auto longer = Join(prompt, RandomTokens(40, 2));
    EXPECT_EQ(Warm(longer, 144), Cold(longer));
    const auto branch = Join(text.first(53), RandomTokens(60, 3));
    EXPECT_EQ(Warm(branch, 53), Cold(branch));
    // All of it is there, but for the logits behind its last token.
    EXPECT_EQ(Warm(text.first(96), 95), Cold(text.first(96)));
    EXPECT_EQ(engine->pool().Stats().block_bytes_in_use, index->bytes());
    index->Clear();
    EXPECT_EQ(engine->pool().Stats().num_blocks_in_use, 0u);
  }
};

TEST_F(Prefixes, EveryAnswerIsThatOfAColdRunInF32) {
  for (const char* name : kModels) {
    SCOPED_TRACE(name);
    Make(name, exec::Compute::kReference);
    ExpectColdAnswers();
  }
}

TEST_F(Prefixes, EveryAnswerIsThatOfAColdRunInEveryWindowAndKvType) {
  for (const char* name : kModels) {
    for (const kv::WindowPolicy& window : kPolicies) {
      for (const kernels::KvTypes types : kKvTypes) {
        SCOPED_TRACE(std::string(name) + ", " + NameOf(types) + ", a window of " +
                     std::to_string(window.tokens));
        Make(name, exec::Compute::kFast, window, types);
        ExpectColdAnswers();
      }
    }
  }
}

// The bytes of every block that a session holds.
std::vector<std::vector<std::byte>> BytesOf(const Engine& engine, const Session& session) {
  std::vector<std::vector<std::byte>> out;
  const auto& groups = engine.plan().geometry.groups;
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const kv::BlockId block :
         session.sequence().table(kv::GroupId{static_cast<uint32_t>(i)})) {
      if (block == kv::kNullBlock) continue;
      const std::byte* data = engine.pool().data(block);
      out.emplace_back(data, data + groups[i].block_bytes);
    }
  }
  return out;
}

TEST_F(Prefixes, BlocksOfOthersKeepEveryByteWhileASequenceEvictsAndShrinks) {
  for (const kv::WindowPolicy& window : kPolicies) {
    for (const kernels::KvTypes types : kKvTypes) {
      SCOPED_TRACE(NameOf(types) + ", a window of " + std::to_string(window.tokens));
      Make("llama_gqa", exec::Compute::kFast, window, types);
      const auto prompt = RandomTokens(38, 1);
      Session donor = engine->NewSession();
      Feed(donor, prompt);
      index->Publish(prompt, kSalt, donor.sequence());
      const auto before = BytesOf(*engine, donor);
      Session adopted = engine->NewSession();
      ASSERT_EQ(adopted.Adopt(*index, prompt, kSalt, 37), 32u);
      Feed(adopted, std::span(prompt).subspan(32));
      Session fork = donor.Fork();
      for (Session* session : {&adopted, &fork}) {
        Feed(*session, RandomTokens(70, 2));
        session->LimitWindow(24);
        Decode(*session, RandomTokens(40, 3));
        session->LimitWindow(0);
        Decode(*session, RandomTokens(20, 4));
      }
      EXPECT_EQ(BytesOf(*engine, donor), before);
      Session cold = engine->NewSession();
      Feed(cold, prompt);
      EXPECT_EQ(Answer(donor, {}), Answer(cold, {}));
    }
  }
}

// What a sequence computed while it saw less than its window is no prefix of anybody's.
TEST_F(Prefixes, WhatWasComputedUnderPressureIsNotOffered) {
  Make("llama_gqa", exec::Compute::kFast, {100, 4, kv::WindowShape::kUniform});
  const auto prompt = RandomTokens(200, 1);
  Session session = engine->NewSession();
  const auto publish = [&](uint32_t) { index->Publish(prompt, kSalt, session.sequence()); };
  Feed(session, std::span(prompt).first(64), 1, publish);
  session.LimitWindow(32);
  Feed(session, std::span(prompt).subspan(64), 1, publish);
  EXPECT_EQ(Warm(prompt, 64), Cold(prompt));
}

TEST_F(Prefixes, APromptThatIsAllThereComputesItsLastTokenOnACopy) {
  for (const char* name : kModels) {
    SCOPED_TRACE(name);
    Make(name, exec::Compute::kFast);
    const auto prompt = RandomTokens(96, 1);
    Warm(prompt, 0);
    Session cold = engine->NewSession();
    Feed(cold, prompt);
    cold.Truncate(95);
    const Rows want = Answer(cold, Feed(cold, std::span(prompt).last(1)));
    Session session = engine->NewSession();
    ASSERT_EQ(session.Adopt(*index, prompt, kSalt, 96), 96u);
    ASSERT_TRUE(session.CanTruncate(95));
    session.Truncate(95);
    EXPECT_EQ(Answer(session, Feed(session, std::span(prompt).last(1))), want);
    EXPECT_EQ(Warm(prompt, 95), Cold(prompt));  // the index's own is as it was
  }
}

TEST_F(Prefixes, ASecondPromptUsesAFirstThatStillRuns) {
  for (const char* name : {"qwen3", "gemma3"}) {
    SCOPED_TRACE(name);
    Make(name, exec::Compute::kFast);
    const auto prompt = RandomTokens(128, 1);
    const auto other = Join(prompt, RandomTokens(30, 2));
    const Rows cold = Cold(prompt), cold_other = Cold(other);
    Session running = engine->NewSession();
    const auto publish = [&](uint32_t) { index->Publish(prompt, kSalt, running.sequence()); };
    Rows rows = Feed(running, prompt, 1, publish);
    const uint64_t before = engine->pool().Stats().block_bytes_in_use;
    Session second = engine->NewSession();
    EXPECT_EQ(second.Adopt(*index, other, kSalt, 157), 128u);
    EXPECT_EQ(engine->pool().Stats().block_bytes_in_use, before);  // nothing was copied
    // Both go on in turn.
    Rows rows_other = Feed(second, std::span(other).subspan(128));
    const auto answer = RandomTokens(8, 99);
    for (size_t i = 0; i < answer.size(); ++i) {
      rows.push_back(Decode(running, std::span(answer).subspan(i, 1)).at(0));
      rows_other.push_back(Decode(second, std::span(answer).subspan(i, 1)).at(0));
    }
    EXPECT_EQ(rows, cold);
    EXPECT_EQ(rows_other, cold_other);
  }
}

// Issue: KV bytes for N sessions = prefix + N x own.
TEST_F(Prefixes, SessionsOfOneSystemPromptHoldItOnce) {
  Make("qwen3", exec::Compute::kFast);
  const uint64_t row_bytes = engine->plan().geometry.RowBytes();
  const auto system = RandomTokens(128, 1);
  std::vector<Session> sessions;
  for (uint32_t i = 0; i < 6; ++i) {
    const auto prompt = Join(system, RandomTokens(40, 10 + i));
    sessions.push_back(engine->NewSession());
    const uint32_t held = sessions.back().Adopt(*index, prompt, kSalt, 167);
    EXPECT_EQ(held, i == 0 ? 0u : 128u);
    Feed(sessions.back(), std::span(prompt).subspan(held));
    index->Publish(prompt, kSalt, sessions.back().sequence());
  }
  EXPECT_EQ(engine->pool().Stats().block_bytes_in_use, (8 + 6 * 3) * row_bytes);
  sessions.clear();
}

// ---- snapshots ----

TEST_F(Prefixes, AfterARestartAPromptIsNotComputedAgain) {
  const std::string path = testing::TempDir() + "tael_prefixes_" + std::to_string(::getpid());
  const auto prompt = RandomTokens(200, 1);
  const auto longer = Join(prompt, RandomTokens(5, 2));
  for (const char* name : kModels) {
    SCOPED_TRACE(name);
    Make(name, exec::Compute::kFast);
    Warm(prompt, 0);
    const Rows cold = Cold(longer);
    {
      const auto context = MakePrefixContext(*engine);
      ASSERT_TRUE(context.has_value());
      const auto snapshot = kv::Snapshot::Collect(*index, *context, engine->budget());
      ASSERT_TRUE(snapshot.has_value());
      ASSERT_TRUE(snapshot->Write(path).has_value());
    }
    Make(name, exec::Compute::kFast);
    const auto context = MakePrefixContext(*engine);
    ASSERT_TRUE(context.has_value());
    const auto restored = kv::RestoreSnapshot(path, *context, engine->budget(), *index);
    ASSERT_TRUE(restored.has_value()) << restored.error().Message();
    EXPECT_EQ(restored->rows, 12u);
    EXPECT_EQ(Warm(longer, 192), cold);
    kv::PrefixContext other = *context;
    other.model += " ";
    EXPECT_FALSE(kv::RestoreSnapshot(path, other, engine->budget(), *index).has_value());
  }
  std::remove(path.c_str());
}

// ---- what decides KV ----

TEST(PrefixContextOfAnEngine, NamesEverythingThatChangesKv) {
  const auto context_of = [](EngineOptions options) {
    options.budget_bytes = 600u << 20;
    options.num_threads = 1;
    const auto engine = CreateEngine(options);
    EXPECT_NE(engine, nullptr);
    return *MakePrefixContext(*engine);
  };
  const auto base = context_of({.model_path = Tiny("phi3_longrope"), .context_length = 256});
  const auto again =
      context_of({.model_path = Tiny("phi3_longrope"), .context_length = 200, .max_sessions = 3});
  EXPECT_EQ(again, base);
  EXPECT_EQ(again.Salt(), base.Salt());
  EXPECT_EQ(base.tenant, "");

  const auto other = context_of({.model_path = Tiny("phi3"), .context_length = 256});
  EXPECT_NE(other.model, base.model);
  const auto far = context_of({.model_path = Tiny("phi3_longrope"), .context_length = 400});
  EXPECT_NE(far.rope, base.rope);
  EXPECT_EQ(far.model, base.model);
  const auto f32 = context_of({.model_path = Tiny("phi3_longrope"),
                               .context_length = 256,
                               .compute = exec::Compute::kReference});
  EXPECT_NE(f32.kv_type, base.kv_type);
  const auto gemma = context_of({.model_path = Tiny("gemma3"), .context_length = 256});
  EXPECT_NE(gemma.window, base.window);
  const auto windowed = [&](kv::WindowPolicy window) {
    return context_of(
        {.model_path = Tiny("phi3_longrope"), .context_length = 256, .window = window});
  };
  const auto narrow = windowed({64, 4, kv::WindowShape::kUniform});
  EXPECT_NE(narrow.window, base.window);
  EXPECT_NE(narrow.window, windowed({64, 5, kv::WindowShape::kUniform}).window);
  EXPECT_NE(narrow.window, windowed({80, 4, kv::WindowShape::kUniform}).window);
  EXPECT_EQ(narrow, windowed({64, 4, kv::WindowShape::kUniform}));
}

}  // namespace
}  // namespace tael::engine
