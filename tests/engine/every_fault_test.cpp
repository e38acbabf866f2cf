// "Fail the n-th reservation, mapping, read or thread", for every n until nothing fails any more:
// each time an error with a message, nothing left behind, and the next attempt works.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fault.h"
#include "engine/engine.h"
#include "engine/generation.h"

namespace tael::engine {
namespace {

EngineOptions Options(const std::string& name) {
  EngineOptions options;
  options.model_path = std::string(TAEL_TEST_DATA) + "/tiny/" + name + ".gguf";
  options.budget_bytes = 256u << 20;
  options.num_threads = 3;
  options.oversubscribe = true;
  options.context_length = 64;
  return options;
}

Result<std::vector<TokenId>> Answer(Engine& engine) {
  Session session = engine.NewSession();
  GenerateOptions options;
  options.max_tokens = 12;
  options.ignore_eos = true;
  options.sampler.seed = 7;
  const std::vector<TokenId> prompt(20, TokenId{5});
  TAEL_ASSIGN_OR_RETURN(GenerateResult result, Generate(session, prompt, options));
  return std::move(result.tokens);
}

size_t EntriesOf(const char* folder) {
  const std::filesystem::directory_iterator entries(folder);
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

// What the process holds of the system: an engine that failed must leave it as it was.
struct Held {
  size_t threads = EntriesOf("/proc/self/task");
  size_t descriptors = EntriesOf("/proc/self/fd");
  size_t model_mappings = ModelMappings();

  static size_t ModelMappings() {
    std::ifstream maps("/proc/self/maps");
    size_t count = 0;
    for (std::string line; std::getline(maps, line);) count += line.ends_with(".gguf") ? 1 : 0;
    return count;
  }
  bool operator==(const Held&) const = default;
};

void PrintTo(const Held& held, std::ostream* out) {
  *out << held.threads << " threads, " << held.descriptors << " descriptors, "
       << held.model_mappings << " mappings of a model";
}

void ExpectTyped(const Error& error) {
  EXPECT_TRUE(error.code == ErrorCode::kOutOfBudget || error.code == ErrorCode::kIo)
      << ToString(error.code);
  EXPECT_GT(error.Message().size(), 10u);
}

struct Case {
  FaultKind kind;
  uint64_t least;  // occurrences there must be, so that a lost fault point is noticed
};

class EveryFault : public testing::TestWithParam<Case> {};

TEST_P(EveryFault, AtTheStartOrInAnAnswerIsAnErrorThatLeavesNothingBehind) {
  for (const char* model : {"qwen3", "gemma3"}) {
    const EngineOptions options = Options(model);
    auto reference = Engine::Create(options);
    ASSERT_TRUE(reference.has_value()) << reference.error().Message();
    const auto expected = Answer(**reference);
    ASSERT_TRUE(expected.has_value());
    reference->reset();

    const Held before;
    uint64_t n = 1;
    for (bool fired = true; fired; ++n) {
      SCOPED_TRACE(std::string(model) + ", " + std::string(ToString(GetParam().kind)) + " " +
                   std::to_string(n));
      auto fault = std::make_unique<FaultInjection>(GetParam().kind, n);
      auto engine = Engine::Create(options);
      if (engine) {
        const mem::LedgerSnapshot ledger = (*engine)->Ledger();
        const auto answer = Answer(**engine);
        if (!answer) ExpectTyped(answer.error());
        fired = fault->fired();
        fault.reset();
        EXPECT_EQ((*engine)->Ledger().reserved_bytes, ledger.reserved_bytes);
        EXPECT_EQ((*engine)->pool().Stats().num_blocks_in_use, 0u);
        const auto again = Answer(**engine);  // the engine outlives a request that failed
        ASSERT_TRUE(again.has_value()) << again.error().Message();
        EXPECT_EQ(*again, *expected);
        engine->reset();  // checks that the ledger is back at zero
      } else {
        ExpectTyped(engine.error());
        fired = fault->fired();
        EXPECT_TRUE(fired) << engine.error().Message();
      }
      fault.reset();
      EXPECT_EQ(Held(), before);
      ASSERT_LT(n, 1000u);
    }
    EXPECT_GE(n - 2, GetParam().least);
    auto after = Engine::Create(options);
    ASSERT_TRUE(after.has_value()) << after.error().Message();
    EXPECT_EQ(*Answer(**after), *expected);
  }
}

std::string TestName(const testing::TestParamInfo<Case>& test) {
  return std::string(ToString(test.param.kind));
}

INSTANTIATE_TEST_SUITE_P(, EveryFault,
                         testing::Values(Case{FaultKind::kReserve, 6}, Case{FaultKind::kMap, 4},
                                         Case{FaultKind::kRead, 3}, Case{FaultKind::kThread, 3}),
                         TestName);

}  // namespace
}  // namespace tael::engine
