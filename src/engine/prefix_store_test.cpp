#include "engine/prefix_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "engine/scheduler_testing.h"

namespace tael::engine {
namespace {

using Clock = std::chrono::steady_clock;

struct PrefixStoreTest : testing::Test {
  const std::string folder = testing::TempDir() + "tael_store_" + std::to_string(::getpid());
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<PrefixStore> store;
  Clock::time_point time = Clock::now();

  void TearDown() override {
    Stop();
    std::filesystem::remove_all(folder);
  }
  void Stop() {
    store.reset();
    scheduler.reset();
    engine.reset();
  }
  // What a process does when it starts.
  void Start(const std::string& model = "qwen3", uint64_t bytes_per_hour = 1u << 30,
             bool prefix_cache = true) {
    Stop();
    engine = CreateEngine(SchedulerEngine(model));
    ASSERT_NE(engine, nullptr);
    scheduler = StartScheduler(*engine, {.prefix_cache = prefix_cache});
    ASSERT_NE(scheduler, nullptr);
    auto made = PrefixStore::Create(
        *engine, *scheduler,
        {.folder = folder, .bytes_per_hour = bytes_per_hour, .now = [this] { return time; }});
    ASSERT_TRUE(made.has_value()) << made.error().Message();
    store = *std::move(made);
  }
  // Answers it; returns how many of its tokens had not to be computed.
  uint32_t Cached(const std::vector<TokenId>& prompt, std::vector<Told>* told = nullptr) {
    const auto answer = MustSubmit(*scheduler, MakeRequest(prompt, 8));
    auto all = Listen(*answer);
    if (told != nullptr) *told = std::move(all);
    return answer->usage().cached_tokens;
  }
  uint64_t MustSave() {
    const auto saved = store->Save();
    EXPECT_TRUE(saved.has_value()) << (saved ? "" : saved.error().Message());
    return saved ? *saved : 0;
  }
};

std::vector<TokenId> With(std::vector<TokenId> tokens, size_t count) {
  for (const TokenId token : RandomTokens(count, 77)) tokens.push_back(token);
  return tokens;
}

// B9, in small: 200 tokens, save, start, the same and five more.
TEST_F(PrefixStoreTest, ARestartKnowsThePromptsOfTheProcessBefore) {
  const auto prompt = RandomTokens(200, 1);
  for (const char* model : {"qwen3", "gemma3", "mistral_swa24"}) {
    SCOPED_TRACE(model);
    Start(model);
    ASSERT_EQ(store->Restore()->rows, 0u);  // no file is no error
    EXPECT_EQ(Cached(prompt), 0u);
    EXPECT_GT(MustSave(), 0u);

    Start(model);
    const auto restored = store->Restore();
    ASSERT_TRUE(restored.has_value()) << restored.error().Message();
    EXPECT_GE(restored->rows, 12u);
    std::vector<Told> told;
    EXPECT_EQ(Cached(With(prompt, 5), &told), 192u);
    Stop();
    const auto alone = CreateEngine(SchedulerEngine(model));
    EXPECT_EQ(told, Expected(*alone, MakeRequest(With(prompt, 5), 8)));
  }
}

TEST_F(PrefixStoreTest, WhatDidNotChangeIsNotWrittenAgain) {
  Start();
  EXPECT_EQ(MustSave(), 0u);  // nothing to save
  EXPECT_FALSE(std::filesystem::exists(store->path()));
  Cached(RandomTokens(100, 1));
  EXPECT_GT(MustSave(), 0u);
  EXPECT_EQ(MustSave(), 0u);
  Cached(RandomTokens(100, 1));  // used, but the same rows
  EXPECT_EQ(MustSave(), 0u);
  Cached(RandomTokens(100, 2));
  EXPECT_GT(MustSave(), 0u);

  Start();
  ASSERT_TRUE(store->Restore().has_value());
  EXPECT_EQ(MustSave(), 0u);
}

TEST_F(PrefixStoreTest, NoMoreThanSoManyBytesAreWrittenInAnHour) {
  Start();
  Cached(RandomTokens(96, 1));
  const uint64_t one = MustSave();
  ASSERT_GT(one, 0u);
  Start("qwen3", 2 * one + 100);
  Cached(RandomTokens(96, 1));
  EXPECT_EQ(MustSave(), one);
  time += std::chrono::minutes(30);
  scheduler->Trim(TrimLevel::kModerate);
  Cached(RandomTokens(96, 2));
  EXPECT_EQ(MustSave(), one);
  time += std::chrono::minutes(29);
  scheduler->Trim(TrimLevel::kModerate);
  Cached(RandomTokens(96, 3));
  EXPECT_EQ(MustSave(), 0u);
  time += std::chrono::minutes(1);  // the first is an hour old
  EXPECT_EQ(MustSave(), one);
}

TEST_F(PrefixStoreTest, AFileIsNoLargerThanWhatMayBeWrittenInAnHour) {
  Start();
  Cached(RandomTokens(96, 1));
  const uint64_t one = MustSave();
  Start("qwen3", one + 100);
  for (uint32_t i = 0; i < 4; ++i) Cached(RandomTokens(96, 10 + i));
  const uint64_t saved = MustSave();
  EXPECT_GT(saved, one / 2);
  EXPECT_LE(saved, one + 100);
}

TEST_F(PrefixStoreTest, ADamagedFileIsAnErrorAndReplaced) {
  const auto prompt = RandomTokens(100, 1);
  Start();
  Cached(prompt);
  ASSERT_GT(MustSave(), 0u);
  const std::string path = store->path();
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  Start();
  const auto restored = store->Restore();
  ASSERT_FALSE(restored.has_value());
  EXPECT_EQ(restored.error().code, ErrorCode::kMalformed);
  EXPECT_EQ(Cached(prompt), 0u);
  EXPECT_GT(MustSave(), 0u);
  Start();
  ASSERT_TRUE(store->Restore().has_value());
  EXPECT_EQ(Cached(prompt), 96u);
}

TEST_F(PrefixStoreTest, ModelsKeepTheirFilesApart) {
  const auto prompt = RandomTokens(100, 1);
  Start("qwen3");
  Cached(prompt);
  ASSERT_GT(MustSave(), 0u);
  Start("llama_gqa");
  EXPECT_EQ(store->Restore()->rows, 0u);
  EXPECT_EQ(Cached(prompt), 0u);
  ASSERT_GT(MustSave(), 0u);
  Start("qwen3");
  EXPECT_EQ(store->Restore()->rows, 6u);
}

TEST_F(PrefixStoreTest, WithoutAPrefixCacheThereIsNothingToDo) {
  Start("qwen3", 1u << 30, false);
  Cached(RandomTokens(100, 1));
  EXPECT_EQ(MustSave(), 0u);
  EXPECT_EQ(store->Restore()->rows, 0u);
}

TEST_F(PrefixStoreTest, AFolderThatCannotBeMadeIsNamed) {
  Start();
  const auto none = PrefixStore::Create(*engine, *scheduler, {.folder = folder + "/a/b"});
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::kIo);
  EXPECT_THAT(none.error().Message(), testing::HasSubstr("/a/b"));
}

TEST_F(PrefixStoreTest, AnswersAreTheSameWhileTheirPrefixesAreSaved) {
  const auto prompt = RandomTokens(100, 1);
  const auto alone = CreateEngine(SchedulerEngine("gemma3"));
  const auto expected = Expected(*alone, MakeRequest(prompt, 60));
  Start("gemma3");
  const auto answer = MustSubmit(*scheduler, MakeRequest(prompt, 60));
  for (int i = 0; i < 20; ++i) MustSave();
  EXPECT_EQ(Listen(*answer), expected);
  MustSave();
  Start("gemma3");
  EXPECT_TRUE(store->Restore().has_value());
  EXPECT_EQ(Cached(prompt), 96u);
}

// B9 with a real model: 3,000 tokens, save, start, the same and five more.
TEST(PrefixStoreRealModelTest, ARestartWithALongPromptTakesATenthOfTheTimeToItsFirstToken) {
  const char* models = std::getenv("TAEL_TEST_MODELS");
  const std::string model = std::string(models != nullptr ? models : "") + "/smollm2.gguf";
  if (!std::filesystem::exists(model)) GTEST_SKIP() << "not in TAEL_TEST_MODELS: " << model;
  const std::string folder = testing::TempDir() + "tael_restart_" + std::to_string(::getpid());
  const auto prompt = RandomTokens(3000, 1, 40000);
  const auto run = [&](std::vector<TokenId> tokens, uint32_t& cached) {
    const auto engine = CreateEngine(
        {.model_path = model, .budget_bytes = 1u << 30, .num_threads = 2, .context_length = 4096});
    const auto scheduler = StartScheduler(*engine, {});
    const auto store = *PrefixStore::Create(*engine, *scheduler, {.folder = folder});
    EXPECT_TRUE(store->Restore().has_value());
    const auto answer = MustSubmit(*scheduler, MakeRequest(std::move(tokens), 4));
    Listen(*answer);
    cached = answer->usage().cached_tokens;
    EXPECT_TRUE(store->Save().has_value());
    return answer->timings().ttft_ms;
  };
  uint32_t cached = 0;
  const double cold_ms = run(prompt, cached);
  EXPECT_EQ(cached, 0u);
  const double warm_ms = run(With(prompt, 5), cached);
  EXPECT_GE(cached, 2992u);
  EXPECT_LT(warm_ms, 0.1 * cold_ms);
  RecordProperty("cold_ms", std::to_string(cold_ms));
  RecordProperty("warm_ms", std::to_string(warm_ms));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tael::engine
