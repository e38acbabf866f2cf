#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/testing.h"

namespace tael::engine {
namespace {

using testing::HasSubstr;

EngineOptions Options(const std::string& name) {
  EngineOptions options;
  options.model_path = Tiny(name);
  options.budget_bytes = 256u << 20;
  options.num_threads = 2;
  options.context_length = 256;
  return options;
}

std::unique_ptr<Engine> MakeEngine(const EngineOptions& options) { return CreateEngine(options); }

// Logits after the last of `tokens`.
std::vector<float> Feed(Session& session, std::span<const TokenId> tokens) {
  std::vector<float> last;
  const Status status = session.Feed(tokens, {}, [&](size_t, std::span<float> logits) {
    last.assign(logits.begin(), logits.end());
  });
  EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().Message());
  return last;
}

TEST(Engine, ResultsDoNotDependOnTheNumberOfThreads) {
  for (const char* name : {"gemma3", "qwen2_q256.Q4_K_M-mixed", "olmo2"}) {
    const auto tokens = RandomTokens(150, 1);
    std::vector<float> prefill, decode;
    for (size_t threads : {1u, 2u, 3u, 5u}) {
      EngineOptions options = Options(name);
      options.num_threads = threads;
      options.oversubscribe = true;
      const auto engine = MakeEngine(options);
      Session session = engine->NewSession();
      const auto after_prompt = Feed(session, tokens);
      const auto after_one = Feed(session, {tokens.data(), 1});
      if (threads == 1) {
        prefill = after_prompt;
        decode = after_one;
      }
      EXPECT_EQ(after_prompt, prefill) << name << ", " << threads << " threads";
      EXPECT_EQ(after_one, decode) << name << ", " << threads << " threads";
    }
  }
}

TEST(Engine, SessionsDoNotDisturbEachOther) {
  EngineOptions options = Options("gemma3");
  options.max_sessions = 2;
  const auto engine = MakeEngine(options);
  const auto a = RandomTokens(90, 1), b = RandomTokens(70, 2);
  Session alone_a = engine->NewSession();
  std::vector<std::vector<float>> want_a;
  for (const TokenId& token : a) want_a.push_back(Feed(alone_a, {&token, 1}));
  alone_a = engine->NewSession();  // gives its blocks back

  Session first = engine->NewSession(), second = engine->NewSession();
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(Feed(first, {&a[i], 1}), want_a[i]) << i;
    if (i < b.size()) Feed(second, {&b[i], 1});
  }
}

TEST(Engine, ATruncatedSessionGoesOnAsIfTheRestHadNeverBeen) {
  const auto engine = MakeEngine(Options("llama_gqa"));
  const auto tokens = RandomTokens(60, 3), other = RandomTokens(20, 4);
  Session session = engine->NewSession();
  Feed(session, tokens);
  Feed(session, other);
  session.Truncate(60);
  const auto again = Feed(session, {other.data(), 1});
  Session fresh = engine->NewSession();
  Feed(fresh, tokens);
  EXPECT_EQ(again, Feed(fresh, {other.data(), 1}));
}

TEST(Engine, MemoryOfClosedSessionsComesBack) {
  const auto engine = MakeEngine(Options("qwen3"));
  for (int i = 0; i < 50; ++i) {
    Session session = engine->NewSession();
    Feed(session, RandomTokens(100, 5));
    EXPECT_GT(engine->pool().Stats().num_blocks_in_use, 0u);
  }
  EXPECT_EQ(engine->pool().Stats().num_blocks_in_use, 0u);
}

TEST(Engine, WindowedLayersHoldOnlyTheirWindow) {
  // mistral_swa24: every layer sees 24 tokens, so at most 3 blocks of 16 stay per group.
  const auto engine = MakeEngine(Options("mistral_swa24"));
  Session session = engine->NewSession();
  Feed(session, RandomTokens(250, 6));
  const uint64_t row = engine->plan().geometry.RowBytes();
  EXPECT_LE(session.sequence().bytes_in_use(), 3 * row);
}

TEST(Engine, BadInputIsRefusedAndTheSessionLives) {
  const auto engine = MakeEngine(Options("qwen3"));
  Session session = engine->NewSession();
  const auto sink = [](size_t, std::span<float>) {};
  EXPECT_EQ(session.Feed({}, {}, sink).error().code, ErrorCode::kInvalidArgument);
  for (int32_t id : {-1, 384, 1 << 30}) {
    const TokenId token{id};
    const Status status = session.Feed({&token, 1}, {}, sink);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().Message(), HasSubstr(std::to_string(id)));
  }
  const Status too_long = session.Feed(RandomTokens(257, 7), {}, sink);
  EXPECT_EQ(too_long.error().code, ErrorCode::kContextExceeded);
  EXPECT_THAT(too_long.error().Message(), HasSubstr("257"));
  EXPECT_THAT(too_long.error().Message(), HasSubstr("256"));
  EXPECT_EQ(session.length(), 0u);
  EXPECT_EQ(Feed(session, RandomTokens(256, 7)).size(), 384u);  // exactly full is fine
}

TEST(Engine, AModelFileCutShortFailsTheRequestAndNotTheProcess) {
  const std::string path = testing::TempDir() + "cut-short.gguf";
  std::filesystem::copy_file(Tiny("qwen2_tied"), path,
                             std::filesystem::copy_options::overwrite_existing);
  EngineOptions options = Options("qwen2_tied");
  options.model_path = path;
  const auto engine = MakeEngine(options);
  Session session = engine->NewSession();
  Feed(session, RandomTokens(20, 9));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Status status = session.Feed(RandomTokens(20, 9), {}, [](size_t, std::span<float>) {});
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_THAT(status.error().Message(), HasSubstr(path));
  }
  std::filesystem::remove(path);
}

TEST(Engine, CancelStopsBetweenChunks) {
  EngineOptions options = Options("qwen3");
  options.chunk_tokens = 16;
  const auto engine = MakeEngine(options);
  Session session = engine->NewSession();
  std::atomic<bool> cancel{false};
  const Status status = session.Feed(
      RandomTokens(100, 8), {.num_logits = 1, .cancel = &cancel}, [](size_t, std::span<float>) {},
      [&](uint32_t done) { cancel = done >= 32; });
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(session.length(), 32u);
}

TEST(Engine, StreamedWeightsGiveTheSameLogits) {
  EngineOptions options = Options("gemma3");
  options.budget_bytes = uint64_t{1} << 30;
  options.runtime_bytes = 8 << 20;
  const auto whole = MakeEngine(options);
  ASSERT_FALSE(whole->plan().streams());
  options.budget_bytes = whole->plan().min_streamed_bytes;
  const auto streamed = MakeEngine(options);
  ASSERT_TRUE(streamed->plan().streams());
  const std::vector<TokenId> tokens = RandomTokens(40, 11);
  std::vector<std::vector<float>> logits[2];
  for (Engine* engine : {whole.get(), streamed.get()}) {
    Session session = engine->NewSession();
    for (const TokenId token : tokens) {
      ASSERT_TRUE(session
                      .Feed({&token, 1}, {},
                            [&](size_t, std::span<float> row) {
                              logits[engine == streamed.get()].emplace_back(row.begin(), row.end());
                            })
                      .has_value());
    }
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST(Engine, ReleasedWeightsComeBackWithTheNextToken) {
  const auto engine = MakeEngine(Options("qwen3"));
  Session session = engine->NewSession();
  const std::vector<TokenId> tokens = RandomTokens(8, 12);
  std::vector<float> before, after;
  ASSERT_TRUE(
      session
          .Feed(tokens, {},
                [&](size_t, std::span<float> row) { before.assign(row.begin(), row.end()); })
          .has_value());
  engine->ReleaseWeights();
  session.Truncate(0);
  ASSERT_TRUE(session
                  .Feed(tokens, {},
                        [&](size_t, std::span<float> row) { after.assign(row.begin(), row.end()); })
                  .has_value());
  EXPECT_EQ(before, after);
}

TEST(Plan, ABudgetTooSmallNamesEveryPartAndTheWayOut) {
  EngineOptions options = Options("qwen2_q256.Q4_0");
  options.budget_bytes = 1 << 20;
  const auto engine = Engine::Create(options);
  ASSERT_FALSE(engine.has_value());
  EXPECT_EQ(engine.error().code, ErrorCode::kOutOfBudget);
  for (const char* part : {"weights", "kv", "activations", "runtime", "--budget"}) {
    EXPECT_THAT(engine.error().Message(), HasSubstr(part));
  }
}

TEST(Plan, TheSmallestBudgetItNamesWorks) {
  EngineOptions options = Options("qwen2_q256.Q4_0");
  options.context_length = 0;
  options.runtime_bytes = 8 << 20;
  options.budget_bytes = 1;
  const Error error = Engine::Create(options).error();
  const std::string message = error.Message();
  const size_t at = message.rfind("--budget ");
  ASSERT_NE(at, std::string::npos);
  options.budget_bytes = std::stoull(message.substr(at + 9));
  const auto engine = Engine::Create(options);
  ASSERT_TRUE(engine.has_value()) << engine.error().Message();
  EXPECT_GE((*engine)->context_length(), 256u);
  const mem::LedgerSnapshot ledger = (*engine)->Ledger();
  EXPECT_LE(ledger.reserved_bytes, options.budget_bytes);
}

TEST(Plan, ChunksAreLongWhereTheBudgetIsLargeAndShortWhereItIsTight) {
  EngineOptions options = Options("qwen2_q256.Q4_0");
  options.budget_bytes = uint64_t{1} << 30;
  EXPECT_EQ(MakeEngine(options)->plan().workspace.max_tokens, 256u);
  options.budget_bytes = MakeEngine(options)->plan().min_budget_bytes + (1 << 20);
  const MemoryPlan tight = MakeEngine(options)->plan();
  EXPECT_LT(tight.workspace.max_tokens, 256u);
  EXPECT_TRUE(tight.fits());
}

TEST(Plan, DraftsAreTakenWhereThereIsRoomAndAreNoReasonToRefuse) {
  const auto model = model::Model::Open(Tiny("qwen3"));
  ASSERT_TRUE(model.has_value());
  const auto plan = [&](uint64_t budget, uint32_t draft_tokens) {
    return *MakePlan(**model, {.budget_bytes = budget, .draft_tokens = draft_tokens});
  };
  if (plan(uint64_t{1} << 30, 4).draft_tokens == 0) GTEST_SKIP() << "no drafts with these kernels";
  EXPECT_EQ(plan(1, 4).draft_tokens, 0u);
  EXPECT_EQ(plan(1, 4).workspace.logit_rows, plan(1, 0).workspace.logit_rows);
}

TEST(Plan, WithoutAContextTheTrainedOneIsTakenWhereItFits) {
  EngineOptions options = Options("qwen3");
  options.context_length = 0;
  EXPECT_EQ(MakeEngine(options)->context_length(), 512u);
}

}  // namespace
}  // namespace tael::engine
