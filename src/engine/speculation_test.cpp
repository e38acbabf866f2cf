#include "engine/speculation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "engine/batch.h"
#include "engine/generation.h"
#include "engine/testing.h"

namespace tael::engine {
namespace {

std::vector<std::string> TinyModels() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(TAEL_TEST_DATA) + "/tiny")) {
    if (entry.path().extension() == ".gguf") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::unique_ptr<Engine> MakeEngine(const std::string& path, uint32_t context = 256,
                                   exec::Compute compute = exec::Compute::kFast) {
  return CreateEngine({.model_path = path,
                       .budget_bytes = 600u << 20,
                       .num_threads = 2,
                       .context_length = context,
                       .draft_tokens = Speculation::kMostDraft,
                       .compute = compute});
}

// ---- what exactness rests on ----

using Rows = std::vector<std::vector<float>>;

// The logits of every token, `width` tokens to a pass.
Rows FeedBy(Session& session, std::span<const TokenId> tokens, size_t width) {
  Rows rows;
  for (size_t at = 0; at < tokens.size(); at += width) {
    const size_t count = std::min(width, tokens.size() - at);
    const Status status = session.Feed(
        tokens.subspan(at, count), {.num_logits = static_cast<uint32_t>(count)},
        [&](size_t, std::span<float> row) { rows.emplace_back(row.begin(), row.end()); });
    EXPECT_TRUE(status.has_value());
  }
  return rows;
}

// Bytes of the blocks that are full.
std::string StoredKv(const Engine& engine, const Session& session) {
  std::string bytes;
  const kv::Geometry& geometry = engine.plan().geometry;
  for (size_t i = 0; i < geometry.groups.size(); ++i) {
    const auto view = session.sequence().Blocks(kv::GroupId{static_cast<uint32_t>(i)});
    const size_t full = (session.length() - view.first_token) / kernels::kBlockTokens;
    for (const std::byte* block : view.blocks.first(full)) {
      bytes.append(reinterpret_cast<const char*>(block), geometry.groups[i].block_bytes);
    }
  }
  return bytes;
}

class Exact : public testing::TestWithParam<std::string> {};

// Past the piece of 128 keys and past every window; also where a pass begins in one block of 16 and
// ends in the next.
TEST_P(Exact, APassOfSeveralTokensGivesEachTheBitsOfAPassOfItsOwn) {
  const auto engine = MakeEngine(Tiny(GetParam()));
  ASSERT_NE(engine, nullptr);
  const auto tokens = RandomTokens(180, 1);
  Session alone = engine->NewSession();
  const Rows want = FeedBy(alone, tokens, 1);
  const std::string kv = StoredKv(*engine, alone);
  alone = engine->NewSession();
  for (size_t width = 2; width <= 1 + engine->max_draft_tokens(); ++width) {
    Session session = engine->NewSession();
    EXPECT_TRUE(FeedBy(session, tokens, width) == want) << width << " tokens in a pass";
    EXPECT_TRUE(StoredKv(*engine, session) == kv) << width << " tokens in a pass";
  }
}

std::string TestName(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(, Exact, testing::ValuesIn(TinyModels()), TestName);

// ---- answers ----

struct Answered : GenerateResult {
  uint32_t held = 0;  // tokens that the session holds afterwards
};

Answered Answer(Engine& engine, std::span<const TokenId> prompt, GenerateOptions options,
                Speculate speculate) {
  options.speculate = speculate;
  Session session = engine.NewSession();
  auto result = Generate(session, prompt, options);
  EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().Message());
  if (!result) return {};
  return {*std::move(result), session.length()};
}

void ExpectSame(const Answered& got, const Answered& want) {
  EXPECT_EQ(got.held, want.held);
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.text, want.text);
  EXPECT_EQ(got.finish_reason, want.finish_reason);
  ASSERT_EQ(got.logprobs.size(), want.logprobs.size());
  for (size_t i = 0; i < got.logprobs.size(); ++i) {
    EXPECT_EQ(got.logprobs[i].logprob, want.logprobs[i].logprob);
  }
  EXPECT_LE(got.timings.accepted_tokens, got.timings.draft_tokens);
  EXPECT_LE(got.timings.accepted_tokens, got.tokens.size());
}

TEST(Speculation, AnswersAreTheSameTokenByTokenAtEveryTemperature) {
  uint32_t drafted = 0, accepted = 0;
  for (const char* name : {"llama_gqa", "gemma3", "mistral_swa24", "phi3", "qwen2_q256.Q4_K_M"}) {
    for (const auto compute : {exec::Compute::kFast, exec::Compute::kReference}) {
      const auto engine = MakeEngine(Tiny(name), 190, compute);
      for (uint32_t seed = 0; seed < 6; ++seed) {
        // Few different tokens: matches that are right, and many that are not.
        const auto prompt = RandomTokens(60, seed, 3 + seed);
        GenerateOptions options;
        options.max_tokens = 90 + seed * 12;  // the last ones end with the context
        options.sampler.temperature = seed % 2 == 0 ? 0 : 0.3f * static_cast<float>(seed);
        options.sampler.top_k = seed % 3 == 0 ? 0 : 40;
        options.sampler.repeat_penalty = seed % 4 == 3 ? 1.2f : 1.0f;
        options.sampler.seed = seed;
        options.ignore_eos = seed % 2 == 0;
        options.logprobs = 1;
        const auto want = Answer(*engine, prompt, options, Speculate::kOff);
        EXPECT_EQ(want.timings.draft_tokens, 0u);
        const auto always = Answer(*engine, prompt, options, Speculate::kAlways);
        ExpectSame(always, want);
        ExpectSame(Answer(*engine, prompt, options, Speculate::kWhereItPays), want);
        drafted += always.timings.draft_tokens;
        accepted += always.timings.accepted_tokens;
      }
    }
  }
  EXPECT_GT(accepted, 500u);            // drafts that are right
  EXPECT_GT(drafted - accepted, 500u);  // and drafts that are not
}

TEST(Speculation, AnAnswerEndsInTheMiddleOfADraftAsWithout) {
  const auto engine = MakeEngine(Tiny("qwen2_tied"));
  const auto prompt = RandomTokens(40, 3, 4);
  GenerateOptions options;
  options.sampler.temperature = 0;
  options.ignore_eos = true;
  for (options.max_tokens = 1; options.max_tokens < 60; ++options.max_tokens) {
    ExpectSame(Answer(*engine, prompt, options, Speculate::kAlways),
               Answer(*engine, prompt, options, Speculate::kOff));
  }
  const std::string whole = Answer(*engine, prompt, options, Speculate::kOff).text;
  for (size_t at = 0; at + 2 < whole.size(); ++at) {
    options.stop = {whole.substr(at, 2)};
    ExpectSame(Answer(*engine, prompt, options, Speculate::kAlways),
               Answer(*engine, prompt, options, Speculate::kOff));
  }
}

TEST(Speculation, ADraftIsGivenUpWhenItsBlocksAreNotThere) {
  const auto engine = MakeEngine(Tiny("llama_gqa"));
  GenerateOptions options;
  options.sampler.temperature = 0;
  options.ignore_eos = true;
  options.max_tokens = 1000;
  const auto answer = [&](Speculate speculate) {
    options.speculate = speculate;
    Session session = engine->NewSession();
    std::vector<Session> others;
    while (engine->pool().NumFree(kv::SizeClass{0}) > 6) {
      others.push_back(engine->NewSession());
      FeedBy(others.back(), RandomTokens(1, 3), 1);
    }
    auto result = Generate(session, std::vector<TokenId>(40, TokenId{7}), options);
    return Answered{*std::move(result), session.length()};
  };
  const auto want = answer(Speculate::kOff);
  EXPECT_EQ(want.finish_reason, FinishReason::kMemory);
  const auto got = answer(Speculate::kAlways);
  ExpectSame(got, want);
  EXPECT_GT(got.timings.draft_tokens, 0u);
}

TEST(Speculation, WithoutRoomForDraftsThereAreNone) {
  auto engine = Engine::Create({.model_path = Tiny("llama_gqa"),
                                .budget_bytes = 256u << 20,
                                .num_threads = 1,
                                .context_length = 128});
  ASSERT_TRUE(engine.has_value());
  EXPECT_EQ((*engine)->max_draft_tokens(), 0u);
  const auto result =
      Answer(**engine, std::vector<TokenId>(40, TokenId{7}), GenerateOptions(), Speculate::kAlways);
  EXPECT_EQ(result.timings.draft_tokens, 0u);
}

// ---- when to draft ----

// What a text gets: tokens drafted when each pass of n tokens takes cost(n) milliseconds.
struct Simulation {
  size_t drafted = 0, accepted = 0;
  double milliseconds = 0;
};

template <class Cost>
Simulation Simulate(const std::vector<TokenId>& text, size_t prompt, Cost cost) {
  Speculation speculation(Speculate::kWhereItPays, text.size(), 3);
  Simulation out;
  for (size_t at = prompt; at < text.size();) {
    const std::span<const TokenId> so_far = std::span(text).first(at);
    speculation.Update(so_far);
    const auto draft = speculation.Draft(so_far, text.size() - at - 1);
    size_t right = 0;
    while (right < draft.size() && draft[right] == text[at + right]) ++right;
    speculation.Measured(1 + draft.size(), cost(1 + draft.size()));
    out.drafted += draft.size();
    out.accepted += right;
    out.milliseconds += cost(1 + draft.size());
    at += right + 1;
  }
  return out;
}

double Cheap(size_t tokens) { return 10 + 2 * static_cast<double>(tokens - 1); }

TEST(Speculation, ACopyIsDraftedNearlyWhole) {
  auto text = RandomTokens(200, 1);
  text.insert(text.end(), text.begin() + 20, text.begin() + 180);
  const Simulation copy = Simulate(text, 200, Cheap);
  EXPECT_GT(copy.accepted, 100u);
  EXPECT_LT(copy.milliseconds, 160 * Cheap(1) / 2);
}

TEST(Speculation, MatchesThatMisleadAreSoonIgnored) {
  // "a b c" comes again and again, and always goes on in another way.
  std::vector<TokenId> text;
  for (int32_t i = 0; i < 150; ++i) {
    for (int32_t id : {1, 2, 3, 1000 + i}) text.push_back(TokenId{id});
  }
  const Simulation chance = Simulate(text, 40, Cheap);
  EXPECT_LT(chance.milliseconds, 1.02 * Cheap(1) * static_cast<double>(text.size() - 40));
}

TEST(Speculation, WidePassesThatCostAsMuchAsTheyGiveAreNotMade) {
  auto text = RandomTokens(300, 1);
  text.insert(text.end(), text.begin(), text.begin() + 300);
  const Simulation dear =
      Simulate(text, 300, [](size_t tokens) { return 10.0 * static_cast<double>(tokens); });
  EXPECT_LT(dear.milliseconds, 1.05 * 300 * 10);
}

TEST(Speculation, ATextThatRepeatsItselfIsGuessedBeyondItsEnd) {
  Speculation speculation(Speculate::kAlways, 100, 7);
  const std::vector<TokenId> text(10, TokenId{4});
  speculation.Update(text);
  const auto draft = speculation.Draft(text, 7);
  EXPECT_EQ(std::vector<TokenId>(draft.begin(), draft.end()), std::vector<TokenId>(7, TokenId{4}));
}

}  // namespace
}  // namespace tael::engine
