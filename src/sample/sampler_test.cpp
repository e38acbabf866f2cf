#include "sample/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <new>
#include <set>
#include <string>

namespace {
size_t num_allocations = 0;
}  // namespace

// Not inlined: the compiler would see free() meet operator new.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++num_allocations;
  void* const out = std::malloc(bytes);
  if (out == nullptr) throw std::bad_alloc();
  return out;
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace tael::sample {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Everything off but the draw itself.
SamplerOptions Plain() { return {1.0f, 0, 1.0f, 0.0f, 1.0f, 64, 1}; }

Sampler Make(const SamplerOptions& options, size_t vocab_size = 1000) {
  return *Sampler::Create(options, vocab_size);
}

std::vector<float> LogOf(std::vector<float> probabilities) {
  for (float& p : probabilities) p = std::log(p);
  return probabilities;
}

std::map<int32_t, int> Count(Sampler sampler, std::span<const float> logits, int num_draws,
                             std::span<const TokenId> history = {}) {
  std::map<int32_t, int> counts;
  for (int i = 0; i < num_draws; ++i) ++counts[ToInt(sampler.Sample(logits, history))];
  return counts;
}

std::vector<int32_t> Drawn(const SamplerOptions& options, std::span<const float> logits,
                           std::span<const TokenId> history = {}) {
  std::vector<int32_t> ids;
  for (const auto& [id, count] : Count(Make(options, logits.size()), logits, 4000, history)) {
    ids.push_back(id);
  }
  return ids;
}

std::vector<float> Noise(size_t size, uint64_t seed, double width) {
  Random random(seed);
  std::vector<float> out(size);
  for (float& x : out) x = static_cast<float>((random.NextUnit() - 0.5) * width);
  return out;
}

TEST(Random, TheSameSeedGivesTheSameNumbersOnEveryPlatform) {
  Random random(42);
  const uint64_t first = random.Next();
  random.Next();
  EXPECT_EQ(random.counter(), 2u);
  random.set_counter(0);
  EXPECT_EQ(random.Next(), first);
  EXPECT_NE(Random(43).Next(), first);
  EXPECT_EQ(first, 0x57e1faba65107204u);
}

TEST(Random, UnitsAreUniform) {
  Random random(7);
  std::vector<int> bins(16);
  for (int i = 0; i < 160000; ++i) ++bins[static_cast<size_t>(random.NextUnit() * 16)];
  double chi_square = 0;
  for (int n : bins) chi_square += (n - 10000.0) * (n - 10000.0) / 10000.0;
  EXPECT_LT(chi_square, 37.7);  // 15 degrees of freedom, p = 0.001
}

TEST(Sampler, GreedyTakesTheLargestLogitAndTheLowestIdAmongEquals) {
  SamplerOptions options;
  options.temperature = 0;
  EXPECT_EQ(Make(options).Sample(std::vector<float>{1, 3, 2, 3, 3}, {}), TokenId{1});
  EXPECT_EQ(Make(options).Sample(std::vector<float>{-5, -3, -3}, {}), TokenId{1});
}

TEST(Sampler, ASeedIsAText) {
  SamplerOptions options = Plain();
  const std::vector<float> logits = Noise(1000, 3, 8);
  const auto text = [&](uint64_t seed) {
    options.seed = seed;
    Sampler sampler = Make(options);
    std::vector<int32_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(ToInt(sampler.Sample(logits, {})));
    return ids;
  };
  EXPECT_EQ(text(1), text(1));
  EXPECT_NE(text(1), text(2));
}

TEST(Sampler, ASamplerGoesOnFromItsCounter) {
  const std::vector<float> logits = Noise(100, 3, 4);
  Sampler first = Make(Plain());
  for (int i = 0; i < 10; ++i) first.Sample(logits, {});
  Sampler second = Make(Plain());
  second.set_counter(first.counter());
  for (int i = 0; i < 10; ++i) EXPECT_EQ(second.Sample(logits, {}), first.Sample(logits, {}));
}

// Pearson's test of what is drawn against what should be, at p = 0.001.
void ExpectDistribution(const SamplerOptions& options, std::span<const float> logits,
                        const std::vector<double>& expected, double critical) {
  constexpr int kDraws = 100000;
  const auto counts = Count(Make(options, logits.size()), logits, kDraws);
  double chi_square = 0;
  int total = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto at = counts.find(static_cast<int32_t>(i));
    const int count = at == counts.end() ? 0 : at->second;
    total += count;
    if (expected[i] == 0) {
      EXPECT_EQ(count, 0) << i;
      continue;
    }
    const double mean = expected[i] * kDraws;
    chi_square += (count - mean) * (count - mean) / mean;
  }
  EXPECT_EQ(total, kDraws);
  EXPECT_LT(chi_square, critical);
}

TEST(Sampler, TokensAreDrawnAsOftenAsTheyAreLikely) {
  const auto logits = LogOf({0.1f, 0.4f, 0.2f, 0.05f, 0.25f});
  ExpectDistribution(Plain(), logits, {0.1, 0.4, 0.2, 0.05, 0.25}, 18.5);
  SamplerOptions options = Plain();
  options.top_k = 5;
  ExpectDistribution(options, logits, {0.1, 0.4, 0.2, 0.05, 0.25}, 18.5);
}

TEST(Sampler, TemperatureSharpensWhatTheCutsLeft) {
  const auto logits = LogOf({0.1f, 0.4f, 0.2f, 0.05f, 0.25f});
  SamplerOptions options = Plain();
  options.temperature = 0.5f;  // squares
  options.top_k = 3;           // 0.4, 0.25, 0.2: 0.16, 0.0625, 0.04 of 0.2625
  ExpectDistribution(options, logits, {0, 0.6095238, 0.1523810, 0, 0.2380952}, 13.8);
}

TEST(Sampler, TopKKeepsTheKLargestAndTheLowestIdsAmongEquals) {
  SamplerOptions options = Plain();
  options.top_k = 3;
  EXPECT_THAT(Drawn(options, std::vector<float>{1, 2, 1, 1.5f, 1, 0}), ElementsAre(0, 1, 3));
  options.top_k = 100;
  EXPECT_EQ(Drawn(options, std::vector<float>{1, 2, 1, 1.5f, 1, 0}).size(), 6u);
}

TEST(Sampler, TopPKeepsTheFewestThatReachIt) {
  const auto logits = LogOf({0.1f, 0.4f, 0.2f, 0.05f, 0.25f});
  for (int32_t top_k : {0, 5}) {
    SamplerOptions options = Plain();
    options.top_k = top_k;
    options.top_p = 0.64f;
    EXPECT_THAT(Drawn(options, logits), ElementsAre(1, 4));
    options.top_p = 0.66f;
    EXPECT_THAT(Drawn(options, logits), ElementsAre(1, 2, 4));
    options.top_p = 0.01f;
    EXPECT_THAT(Drawn(options, logits), ElementsAre(1));
  }
  SamplerOptions options = Plain();
  options.top_k = 2;  // 0.4 and 0.25 are all there is: 0.615 and 0.385
  options.top_p = 0.61f;
  EXPECT_THAT(Drawn(options, logits), ElementsAre(1));
  options.top_p = 0.62f;
  EXPECT_THAT(Drawn(options, logits), ElementsAre(1, 4));
}

TEST(Sampler, MinPIsMeasuredAgainstTheLikeliest) {
  const auto logits = LogOf({0.1f, 0.4f, 0.2f, 0.05f, 0.25f});
  for (int32_t top_k : {0, 5}) {
    SamplerOptions options = Plain();
    options.top_k = top_k;
    options.min_p = 0.24f;  // 0.096
    EXPECT_THAT(Drawn(options, logits), ElementsAre(0, 1, 2, 4));
    options.min_p = 0.26f;
    EXPECT_THAT(Drawn(options, logits), ElementsAre(1, 2, 4));
    options.min_p = 1;
    EXPECT_THAT(Drawn(options, logits), ElementsAre(1));
    options.min_p = 0.26f;  // top-p is a share of everything, not of what min-p left
    options.top_p = 0.66f;
    EXPECT_THAT(Drawn(options, logits), ElementsAre(1, 2, 4));
  }
}

TEST(Sampler, AWholeVocabularyIsCutLikeItsTopK) {
  const std::vector<float> logits = Noise(2000, 9, 2);
  SamplerOptions all = Plain();
  all.top_p = 0.5f;
  all.top_k = 0;
  SamplerOptions most = all;
  most.top_k = 2000;
  Sampler a = Make(all, 2000), b = Make(most, 2000);
  std::set<int32_t> drawn;
  for (int i = 0; i < 600; ++i) {
    const TokenId id = a.Sample(logits, {});
    ASSERT_EQ(id, b.Sample(logits, {}));
    drawn.insert(ToInt(id));
  }
  EXPECT_GT(drawn.size(), 256u);  // it had to sort on, more than once
}

TEST(Sampler, ThePenaltyMakesPositiveAndNegativeLogitsLessLikely) {
  SamplerOptions options;
  options.temperature = 0;
  options.repeat_penalty = 2;
  const std::vector<float> positive = {3, 2, 1};
  EXPECT_EQ(Make(options).Sample(positive, {}), TokenId{0});
  EXPECT_EQ(Make(options).Sample(positive, std::vector<TokenId>{TokenId{0}}), TokenId{1});
  const std::vector<float> negative = {-2, -3, -5};
  EXPECT_EQ(Make(options).Sample(negative, std::vector<TokenId>{TokenId{0}}), TokenId{1});
  // Once, however often it was said.
  const std::vector<float> close = {3, 1.4f};
  const std::vector<TokenId> stutter(5, TokenId{0});
  EXPECT_EQ(Make(options).Sample(close, stutter), TokenId{0});
  options.temperature = 1;
  options.top_k = 2;
  EXPECT_THAT(Drawn(options, close, stutter), ElementsAre(0, 1));
}

TEST(Sampler, ThePenaltyLooksBackSoFarAndNoFurther) {
  SamplerOptions options;
  options.temperature = 0;
  options.repeat_penalty = 2;
  options.repeat_last_n = 2;
  const std::vector<float> logits = {3, 2, 1};
  const std::vector<TokenId> old = {TokenId{0}, TokenId{2}, TokenId{2}};
  EXPECT_EQ(Make(options).Sample(logits, old), TokenId{0});
  const std::vector<TokenId> recent = {TokenId{2}, TokenId{0}, TokenId{2}};
  EXPECT_EQ(Make(options).Sample(logits, recent), TokenId{1});
  const std::vector<TokenId> strange = {TokenId{-1}, TokenId{99}};
  EXPECT_EQ(Make(options).Sample(logits, strange), TokenId{0});
}

TEST(Sampler, ThePenaltyReachesEveryWayOfChoosing) {
  const auto logits = LogOf({0.5f, 0.3f, 0.2f});
  const std::vector<TokenId> history = {TokenId{0}, TokenId{2}};
  for (int32_t top_k : {0, 1}) {
    SamplerOptions options = Plain();
    options.repeat_penalty = 100;
    options.top_k = top_k;
    EXPECT_THAT(Drawn(options, logits, history), ElementsAre(1));
  }
}

TEST(Sampler, LogitsThatAreNoNumbersAreNeverDrawn) {
  const std::vector<float> some = {kNan, 1, -kInf, kNan, 2, kNan};
  const std::vector<float> none = {kNan, kNan, -kInf};
  const std::vector<float> infinite = {1, kInf, 2, kInf};
  for (float temperature : {0.0f, 1.0f}) {
    for (int32_t top_k : {0, 1, 2, 40}) {
      SamplerOptions options = Plain();
      options.temperature = temperature;
      options.top_k = top_k;
      for (int32_t id : Drawn(options, some)) EXPECT_TRUE(id == 1 || id == 4) << id;
      EXPECT_THAT(Drawn(options, none), ElementsAre(0));
      const bool one = temperature == 0 || top_k == 1;
      const std::vector<int32_t> ids = one ? std::vector{1} : std::vector{1, 3};
      EXPECT_EQ(Drawn(options, infinite), ids);
    }
  }
}

TEST(Sampler, SamplingAllocatesNothing) {
  const std::vector<float> logits = Noise(5000, 5, 8);
  const std::vector<TokenId> history(100, TokenId{7});
  for (int32_t top_k : {0, 40}) {
    SamplerOptions options;
    options.top_k = top_k;
    options.repeat_penalty = 1.1f;
    Sampler sampler = Make(options, logits.size());
    const size_t before = num_allocations;
    for (int i = 0; i < 10; ++i) sampler.Sample(logits, history);
    EXPECT_EQ(num_allocations, before);
  }
}

TEST(Sampler, ScratchIsSmallUnlessTheWholeVocabularyTakesPart) {
  SamplerOptions options;
  EXPECT_LT(Sampler::ScratchBytes(options, 262144), 1024u);
  options.top_k = 0;
  EXPECT_GE(Sampler::ScratchBytes(options, 262144), 262144 * sizeof(Candidate));
}

TEST(Sampler, OptionsOutOfRangeAreNamed) {
  const auto message = [](auto change) {
    SamplerOptions options;
    change(options);
    const auto made = Sampler::Create(options, 10);
    EXPECT_FALSE(made.has_value());
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
    return made.error().Message();
  };
  EXPECT_THAT(message([](auto& o) { o.temperature = -1; }), HasSubstr("temperature -1"));
  EXPECT_THAT(message([](auto& o) { o.temperature = kNan; }), HasSubstr("temperature nan"));
  EXPECT_THAT(message([](auto& o) { o.top_k = -3; }), HasSubstr("top-k -3"));
  EXPECT_THAT(message([](auto& o) { o.top_p = 0; }), HasSubstr("top-p 0: above 0, to 1 (off)"));
  EXPECT_THAT(message([](auto& o) { o.top_p = 1.5f; }), HasSubstr("top-p 1.5"));
  EXPECT_THAT(message([](auto& o) { o.min_p = kNan; }), HasSubstr("min-p nan"));
  EXPECT_THAT(message([](auto& o) { o.repeat_penalty = 0; }), HasSubstr("repeat-penalty 0"));
  EXPECT_THAT(message([](auto& o) { o.repeat_last_n = -1; }), HasSubstr("repeat-last-n -1"));
}

}  // namespace
}  // namespace tael::sample
