#include "engine/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/testing.h"

namespace tael::engine {
namespace {

using testing::HasSubstr;

std::unique_ptr<Engine> MakeEngine(const std::string& name, uint32_t context = 256,
                                   exec::Compute compute = exec::Compute::kReference) {
  EngineOptions options;
  options.model_path = Tiny(name);
  options.budget_bytes = 256u << 20;
  options.num_threads = 2;
  options.context_length = context;
  options.compute = compute;
  return CreateEngine(options);
}

std::vector<TokenId> Ids(const nlohmann::json& list) {
  std::vector<TokenId> ids;
  for (int id : list) ids.push_back(TokenId{id});
  return ids;
}

struct Golden {
  std::vector<TokenId> prompt;
  std::vector<TokenId> greedy;
};

Golden LoadGolden(const std::string& name) {
  std::ifstream file(std::string(TAEL_TEST_DATA) + "/tiny/" + name + ".json");
  const auto sequence = nlohmann::json::parse(file)["sequences"][1];
  return {Ids(sequence["prompt"]), Ids(sequence["greedy"]["tokens"])};
}

GenerateOptions Greedy(uint32_t max_tokens) {
  GenerateOptions options;
  options.max_tokens = max_tokens;
  options.sampler.temperature = 0;
  options.ignore_eos = true;  // the goldens go on after one
  return options;
}

GenerateResult MustGenerate(Session& session, std::span<const TokenId> prompt,
                            const GenerateOptions& options,
                            const GenerateCallbacks& callbacks = {}) {
  auto result = Generate(session, prompt, options, callbacks);
  EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().Message());
  return result ? *std::move(result) : GenerateResult{};
}

TEST(Generate, GreedyTokensAreThoseOfTheReference) {
  for (const char* name : {"llama_gqa", "gemma3", "qwen2_tied", "mistral_swa24"}) {
    const auto engine = MakeEngine(name);
    const Golden golden = LoadGolden(name);
    Session session = engine->NewSession();
    const GenerateResult result = MustGenerate(session, golden.prompt, Greedy(16));
    EXPECT_EQ(result.tokens, golden.greedy) << name;
    EXPECT_EQ(result.finish_reason, FinishReason::kLength);
    EXPECT_EQ(result.prompt_tokens, golden.prompt.size());
    EXPECT_EQ(session.length(), golden.prompt.size() + 15);
  }
}

TEST(Generate, PiecesOfTextAreTheTextAndAreValidUtf8) {
  const auto engine = MakeEngine("qwen2_tied");
  const Golden golden = LoadGolden("qwen2_tied");
  for (uint64_t seed = 0; seed < 20; ++seed) {
    GenerateOptions options;
    options.max_tokens = 60;
    options.sampler.temperature = 1.5f;
    options.sampler.seed = seed;
    options.ignore_eos = true;
    std::string streamed;
    std::vector<TokenId> tokens;
    GenerateCallbacks callbacks;
    callbacks.on_text = [&](std::string_view piece) {
      streamed += piece;
      // dump() throws on bytes that are not UTF-8.
      EXPECT_NO_THROW((void)nlohmann::json(std::string(piece)).dump());
    };
    callbacks.on_token = [&](TokenId id) { tokens.push_back(id); };
    Session session = engine->NewSession();
    const GenerateResult result = MustGenerate(session, golden.prompt, options, callbacks);
    EXPECT_EQ(streamed, result.text);
    EXPECT_EQ(tokens, result.tokens);
  }
}

TEST(Generate, AnEndOfTextTokenEndsTheAnswerAndIsNoPartOfIt) {
  const auto engine = MakeEngine("qwen2_tied");
  const Golden golden = LoadGolden("qwen2_tied");
  GenerateOptions options = Greedy(200);
  options.sampler.temperature = 3;
  options.sampler.top_k = 0;
  options.sampler.top_p = 1;
  options.sampler.min_p = 0;
  options.ignore_eos = false;
  options.logprobs = 2;
  size_t stopped = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    options.sampler.seed = seed;
    Session session = engine->NewSession();
    const GenerateResult result = MustGenerate(session, golden.prompt, options);
    EXPECT_EQ(result.logprobs.size(), result.tokens.size());
    if (result.finish_reason != FinishReason::kStop) continue;
    ++stopped;
    EXPECT_LT(result.tokens.size(), 200u);
    for (TokenId id : result.tokens) EXPECT_FALSE(engine->tokenizer().IsEndOfGeneration(id));
  }
  EXPECT_GT(stopped, 0u);
}

TEST(Generate, AStopStringEndsTheAnswerBeforeItself) {
  const auto engine = MakeEngine("qwen2_tied");
  const Golden golden = LoadGolden("qwen2_tied");
  Session first = engine->NewSession();
  const std::string whole = MustGenerate(first, golden.prompt, Greedy(16)).text;
  ASSERT_GT(whole.size(), 6u);
  for (size_t at = 1; at + 3 < whole.size(); ++at) {
    const std::string stop = whole.substr(at, 3);
    GenerateOptions options = Greedy(16);
    options.stop = {stop};
    std::string streamed;
    GenerateCallbacks callbacks;
    callbacks.on_text = [&](std::string_view piece) { streamed += piece; };
    Session session = engine->NewSession();
    const GenerateResult result = MustGenerate(session, golden.prompt, options, callbacks);
    EXPECT_EQ(result.text, whole.substr(0, whole.find(stop)));
    EXPECT_EQ(streamed, result.text);
    EXPECT_EQ(result.finish_reason, FinishReason::kStop);
  }
}

TEST(Generate, ForcedTokensAreTheAnswerWhateverTheModelPrefers) {
  const auto engine = MakeEngine("llama_gqa");
  const Golden golden = LoadGolden("llama_gqa");
  GenerateOptions options = Greedy(3);
  options.ignore_eos = false;
  options.logprobs = 5;
  options.force_tokens = golden.greedy;
  options.force_tokens[2] = engine->tokenizer().eos();
  Session session = engine->NewSession();
  const GenerateResult result = MustGenerate(session, golden.prompt, options);
  EXPECT_EQ(result.tokens, options.force_tokens);
  ASSERT_EQ(result.logprobs.size(), options.force_tokens.size());
  EXPECT_EQ(result.logprobs[0].top[0].id, golden.greedy[0]);
  EXPECT_EQ(result.logprobs[0].logprob, result.logprobs[0].top[0].logprob);
  EXPECT_LT(result.logprobs[2].logprob, result.logprobs[2].top[0].logprob);
}

TEST(Generate, ASecondTurnComputesOnlyWhatIsNew) {
  const auto engine = MakeEngine("llama_gqa");
  const Golden golden = LoadGolden("llama_gqa");
  Session session = engine->NewSession();
  std::vector<TokenId> held = golden.prompt;
  const GenerateResult first = MustGenerate(session, held, Greedy(10));
  held.insert(held.end(), first.tokens.begin(), first.tokens.end());

  std::vector<TokenId> prompt = held;
  prompt.insert(prompt.end(), {TokenId{7}, TokenId{9}});
  EXPECT_EQ(KeepCommonPrefix(session, held, prompt), held.size() - 1);  // the last was never fed
  const GenerateResult warm = MustGenerate(session, prompt, Greedy(10));
  EXPECT_EQ(warm.cached_tokens, held.size() - 1);
  Session cold_session = engine->NewSession();
  EXPECT_EQ(MustGenerate(cold_session, prompt, Greedy(10)).tokens, warm.tokens);
}

TEST(Generate, APromptThatDepartsFromWhatIsHeldKeepsTheCommonPart) {
  const auto engine = MakeEngine("llama_gqa");
  const Golden golden = LoadGolden("llama_gqa");
  Session session = engine->NewSession();
  (void)MustGenerate(session, golden.prompt, Greedy(1));
  std::vector<TokenId> prompt = golden.prompt;
  prompt[20] = TokenId{(ToInt(prompt[20]) + 1) % 300};
  EXPECT_EQ(KeepCommonPrefix(session, golden.prompt, prompt), 20u);
  const GenerateResult warm = MustGenerate(session, prompt, Greedy(8));
  Session cold = engine->NewSession();
  EXPECT_EQ(MustGenerate(cold, prompt, Greedy(8)).tokens, warm.tokens);
  // The same prompt again: its last token has to be computed for the logits.
  EXPECT_EQ(KeepCommonPrefix(session, prompt, prompt), prompt.size() - 1);
}

TEST(Generate, AWindowThatHasMovedOnMakesAPromptStartOver) {
  const auto engine = MakeEngine("mistral_swa24");
  const Golden golden = LoadGolden("mistral_swa24");  // 40 tokens
  Session session = engine->NewSession();
  const GenerateResult first = MustGenerate(session, golden.prompt, Greedy(60));
  std::vector<TokenId> held = golden.prompt;
  held.insert(held.end(), first.tokens.begin(), first.tokens.end());
  const std::vector<TokenId> prompt(held.begin(), held.begin() + 50);
  EXPECT_EQ(KeepCommonPrefix(session, held, prompt), 0u);
  const GenerateResult again = MustGenerate(session, prompt, Greedy(10));
  EXPECT_TRUE(std::equal(again.tokens.begin(), again.tokens.end(), held.begin() + 50));
}

TEST(Generate, AFullContextEndsTheAnswer) {
  const auto engine = MakeEngine("llama_gqa", 50);
  const Golden golden = LoadGolden("llama_gqa");
  Session session = engine->NewSession();
  const GenerateResult result = MustGenerate(session, golden.prompt, Greedy(100));
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  EXPECT_EQ(result.tokens.size(), 50 - golden.prompt.size() + 1);  // the last is not fed
}

TEST(Generate, PromptsThatCannotBeAreRefusedAndTheSessionStaysAsItWas) {
  const auto engine = MakeEngine("llama_gqa", 50);
  Session session = engine->NewSession();
  const std::vector<TokenId> long_prompt(51, TokenId{5});
  const auto too_long = Generate(session, long_prompt, Greedy(1));
  ASSERT_FALSE(too_long.has_value());
  EXPECT_EQ(too_long.error().code, ErrorCode::kContextExceeded);
  EXPECT_THAT(too_long.error().Message(), HasSubstr("51"));
  EXPECT_THAT(too_long.error().Message(), HasSubstr("50"));
  EXPECT_EQ(Generate(session, {}, Greedy(1)).error().code, ErrorCode::kInvalidArgument);
  const std::vector<TokenId> foreign = {TokenId{5}, TokenId{100000}};
  EXPECT_EQ(Generate(session, foreign, Greedy(1)).error().code, ErrorCode::kInvalidArgument);
  GenerateOptions empty_stop = Greedy(1);
  empty_stop.stop = {""};
  EXPECT_EQ(Generate(session, {foreign.data(), 1}, empty_stop).error().code,
            ErrorCode::kInvalidArgument);
  GenerateOptions forced = Greedy(1);
  forced.force_tokens.assign(60, TokenId{5});
  EXPECT_EQ(Generate(session, {foreign.data(), 1}, forced).error().code,
            ErrorCode::kContextExceeded);
  EXPECT_EQ(session.length(), 0u);
  EXPECT_EQ(MustGenerate(session, {foreign.data(), 1}, Greedy(3)).tokens.size(), 3u);
}

TEST(Generate, CancellingKeepsWhatWasSaid) {
  const auto engine = MakeEngine("llama_gqa");
  const Golden golden = LoadGolden("llama_gqa");
  std::atomic<bool> cancel{false};
  GenerateOptions options = Greedy(16);
  options.cancel = &cancel;
  size_t count = 0;
  GenerateCallbacks callbacks;
  callbacks.on_token = [&](TokenId) { cancel = ++count == 5; };
  Session session = engine->NewSession();
  const GenerateResult result = MustGenerate(session, golden.prompt, options, callbacks);
  EXPECT_EQ(result.finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(result.tokens, std::vector<TokenId>(golden.greedy.begin(), golden.greedy.begin() + 5));
  EXPECT_FALSE(result.text.empty());
}

TEST(Generate, TheRepeatPenaltyKnowsPromptAndAnswer) {
  const auto engine = MakeEngine("llama_gqa");
  const Golden golden = LoadGolden("llama_gqa");
  GenerateOptions options = Greedy(40);
  options.sampler.repeat_penalty = 100;
  options.sampler.repeat_last_n = 100;
  Session session = engine->NewSession();
  const GenerateResult result = MustGenerate(session, golden.prompt, options);
  std::vector<TokenId> all = golden.prompt;
  for (TokenId id : result.tokens) {
    EXPECT_EQ(std::count(all.begin(), all.end(), id), 0) << ToInt(id);
    all.push_back(id);
  }
}

TEST(Generate, AnUnfinishedCharacterAtTheEndBecomesOneReplacement) {
  const auto engine = MakeEngine("llama_gqa");
  const TokenId first_byte = engine->tokenizer().Find("<0xE4>");
  const TokenId second_byte = engine->tokenizer().Find("<0xB8>");
  ASSERT_GE(ToInt(first_byte), 0);
  GenerateOptions options = Greedy(2);
  options.force_tokens = {first_byte, second_byte};
  std::string streamed;
  GenerateCallbacks callbacks;
  callbacks.on_text = [&](std::string_view piece) { streamed += piece; };
  Session session = engine->NewSession();
  const std::vector<TokenId> prompt = {TokenId{300}};
  EXPECT_EQ(MustGenerate(session, prompt, options, callbacks).text, "\uFFFD");
  EXPECT_EQ(streamed, "\uFFFD");
}

// ---- windows ----

std::unique_ptr<Engine> WindowedEngine(const std::string& name, uint32_t window,
                                       uint32_t context = 64) {
  EngineOptions options;
  options.model_path = Tiny(name);
  options.budget_bytes = 256u << 20;
  options.num_threads = 2;
  options.context_length = context;
  options.draft_tokens = 3;
  options.window = {.tokens = window, .sinks = 4, .shape = kv::WindowShape::kUniform};
  return CreateEngine(options);
}

TEST(Generate, APromptBeyondTheContextIsRefusedUnlessAWindowWasChosen) {
  const auto prompt = RandomTokens(300, 1);
  const auto strict = MakeEngine("llama_gqa", 128);
  Session session = strict->NewSession();
  const auto refused = Generate(session, prompt, Greedy(4));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kContextExceeded);
  for (const char* part : {"300", "128", "--ctx", "--window"}) {
    EXPECT_THAT(refused.error().Message(), HasSubstr(part));
  }
  const auto engine = WindowedEngine("llama_gqa", 100, 128);
  Session windowed = engine->NewSession();
  const GenerateResult result = MustGenerate(windowed, prompt, Greedy(4));
  EXPECT_EQ(result.prompt_tokens, 300u);
  EXPECT_EQ(result.truncated_tokens, 200u);  // the last prompt token saw 4 sinks and 96 others
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  Session other = engine->NewSession();
  EXPECT_EQ(MustGenerate(other, std::span(prompt).first(100), Greedy(4)).truncated_tokens, 0u);
}

TEST(Generate, ALayeredWindowTruncatesWhatItsWidestLayerDoesNotSee) {
  EngineOptions options;
  options.model_path = Tiny("gemma3");
  options.budget_bytes = 256u << 20;
  options.window = {.tokens = 100, .sinks = 4};
  const auto engine = CreateEngine(options);
  Session session = engine->NewSession();
  const uint32_t widest = kv::WidestWindow(engine->plan().geometry);
  EXPECT_EQ(MustGenerate(session, RandomTokens(300, 1), Greedy(2)).truncated_tokens, 300 - widest);
}

TEST(Generate, AnAnswerGoesOnFarBehindTheContextInTheMemoryOfItsWindow) {
  // Trained for 512 tokens; 4 KV heads' worth of blocks for 48 tokens and what is being computed.
  const auto engine = WindowedEngine("llama_gqa", 48);
  Session session = engine->NewSession();
  GenerateOptions options = Greedy(2000);
  options.sampler.temperature = 0.8f;
  options.sampler.seed = 3;
  uint64_t peak = 0, early_peak = 0;
  uint32_t count = 0;
  GenerateCallbacks callbacks;
  callbacks.on_token = [&](TokenId) {
    peak = std::max(peak, engine->pool().Stats().block_bytes_in_use);
    if (++count == 200) early_peak = peak;
  };
  const GenerateResult result = MustGenerate(session, RandomTokens(10, 2), options, callbacks);
  EXPECT_EQ(result.tokens.size(), 2000u);
  EXPECT_EQ(result.truncated_tokens, 0u);
  EXPECT_EQ(session.length(), 2009u);
  EXPECT_EQ(peak, early_peak);
  EXPECT_LE(peak, engine->plan().geometry.RowBytes() * 6);  // 48 tokens, 1 behind, 1 in front
}

TEST(Generate, SpeculationChangesNothingOfAWindowedAnswer) {
  const auto engine = WindowedEngine("qwen2_tied", 40);
  if (engine->max_draft_tokens() == 0) GTEST_SKIP() << "no drafts with these kernels";
  const auto said = RandomTokens(30, 4);
  std::vector<TokenId> prompt = said;
  prompt.insert(prompt.end(), said.begin(), said.end());  // something to look up
  GenerateOptions options = Greedy(300);
  options.speculate = Speculate::kOff;
  Session plain = engine->NewSession();
  const GenerateResult want = MustGenerate(plain, prompt, options);
  options.speculate = Speculate::kAlways;
  Session guessing = engine->NewSession();
  const GenerateResult got = MustGenerate(guessing, prompt, options);
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_GT(got.timings.draft_tokens, 0u);
}

TEST(Plan, AWindowsMemoryIsThatOfItsTokensWhateverTheContext) {
  const auto model = model::Model::Open(Tiny("llama_gqa"));
  ASSERT_TRUE(model.has_value());
  const auto plan = [&](uint32_t context, kv::WindowPolicy window) {
    return MakePlan(**model, {.budget_bytes = uint64_t{1} << 30,
                              .context_length = context,
                              .max_sessions = 16,  // more than what a slab rounds off
                              .chunk_tokens = 32,
                              .window = window});
  };
  const kv::WindowPolicy uniform{64, 4, kv::WindowShape::kUniform}, layered{64, 4};
  EXPECT_EQ(plan(128, uniform)->kv_capacity_bytes, plan(512, uniform)->kv_capacity_bytes);
  EXPECT_LT(plan(512, uniform)->kv_capacity_bytes, plan(512, {})->kv_capacity_bytes);
  EXPECT_LE(plan(512, layered)->kv_capacity_bytes, plan(512, uniform)->kv_capacity_bytes);
  EXPECT_TRUE(plan(512, uniform)->is_endless());
  EXPECT_FALSE(plan(512, {})->is_endless());
  EXPECT_THAT(plan(512, uniform)->Breakdown(), HasSubstr("a window of 64 tokens"));
  const auto longer = plan(512, {513, 4});
  ASSERT_FALSE(longer.has_value());
  EXPECT_THAT(longer.error().Message(), HasSubstr("513"));
  EXPECT_THAT(longer.error().Message(), HasSubstr("512"));
  EXPECT_EQ(plan(512, {4, 4}).error().code, ErrorCode::kInvalidArgument);
}

TEST(Plan, AnAutomaticWindowIsWhatTheBudgetHolds) {
  const auto model = model::Model::Open(Tiny("phi3_longrope"));  // trained for 1,024
  ASSERT_TRUE(model.has_value());
  PlanRequest request{.budget_bytes = uint64_t{1} << 30, .runtime_bytes = 8 << 20};
  request.window.tokens = kv::WindowPolicy::kAuto;
  const auto large = MakePlan(**model, request);
  EXPECT_EQ(large->window.tokens, 1024u);
  EXPECT_EQ(large->window.shape, kv::WindowShape::kUniform);  // nothing is dropped before that
  request.budget_bytes = large->min_budget_bytes + (1 << 20);
  const auto tight = MakePlan(**model, request);
  EXPECT_TRUE(tight->fits());
  EXPECT_LT(tight->window.tokens, 1024u);
  EXPECT_GE(tight->window.tokens, 256u);
  EXPECT_EQ(tight->window.shape, kv::WindowShape::kLayered);
  EXPECT_EQ(tight->window.evict, kv::Evict::kDrop);
  // Asked for the best, it keeps old tokens by attention where it has to be short, within the same
  // budget.
  request.window.best = true;
  const auto best = MakePlan(**model, request);
  EXPECT_TRUE(best->fits());
  EXPECT_EQ(best->window.evict, kv::Evict::kHeavy);
  EXPECT_EQ(best->window.shape, kv::WindowShape::kLayered);
  EXPECT_GT(best->score_bytes, 0u);
  EXPECT_EQ(best->min_budget_bytes, tight->min_budget_bytes);
  EXPECT_EQ(CapacityOf(**model, request, *best).max_sessions, 1u);
  PlanRequest server = request;
  server.server_bytes = 1;  // its sessions share prefixes
  EXPECT_EQ(MakePlan(**model, server)->window.evict, kv::Evict::kDrop);
  request.budget_bytes = uint64_t{1} << 30;
  EXPECT_EQ(MakePlan(**model, request)->window.evict, kv::Evict::kDrop);
  request.budget_bytes = large->min_budget_bytes;  // no room for a tail
  EXPECT_TRUE(MakePlan(**model, request)->fits());
  request.window.best = false;
  // It is at most what the model was trained for, and has to hold its sinks.
  request.window.sinks = 1023;
  EXPECT_TRUE(MakePlan(**model, request).has_value());
  request.window.sinks = 1024;
  const auto none = MakePlan(**model, request);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(none.error().Message(), HasSubstr("1025"));
}

}  // namespace
}  // namespace tael::engine
