#include "engine/prompt_lookup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace tael::engine {
namespace {

std::vector<TokenId> Ids(std::initializer_list<int> list) {
  std::vector<TokenId> ids;
  for (int id : list) ids.push_back(TokenId{id});
  return ids;
}

// The same by looking everywhere.
PromptLookup::Match FindNaively(std::span<const TokenId> text) {
  PromptLookup::Match best;
  size_t candidates = 0;
  for (size_t next = text.size(); next-- > PromptLookup::kShortest;) {
    size_t length = 0;
    while (length < next && text[next - 1 - length] == text[text.size() - 1 - length]) ++length;
    if (length < PromptLookup::kShortest) continue;
    if (++candidates > PromptLookup::kMostCandidates) break;
    length = std::min(length, PromptLookup::kLongest);
    if (length > best.length) best = {next, length};
  }
  return best;
}

TEST(PromptLookup, FindsWhatANaiveSearchFinds) {
  std::mt19937 rng(1);
  size_t found = 0, longest = 0;
  for (int round = 0; round < 300; ++round) {
    const size_t alphabet = 1 + rng() % 12;
    const size_t length = rng() % 200;
    PromptLookup lookup(length + 1);
    std::vector<TokenId> text;
    while (text.size() < length) {
      // Copies of earlier parts among random tokens; taken in by ones and by more.
      const size_t count = std::min<size_t>(1 + rng() % 30, length - text.size());
      const size_t from = text.empty() ? 0 : rng() % text.size();
      const bool copy = !text.empty() && rng() % 2 == 0;
      for (size_t i = 0; i < count; ++i) {
        text.push_back(copy ? text[from + i] : TokenId{static_cast<int32_t>(rng() % alphabet)});
      }
      lookup.Update(text);
      const auto got = lookup.Find(text), want = FindNaively(text);
      ASSERT_EQ(got.length, want.length) << round << ", " << text.size() << " tokens";
      ASSERT_EQ(got.next, want.next) << round << ", " << text.size() << " tokens";
      found += got.length > 0;
      longest += got.length == PromptLookup::kLongest;
    }
  }
  EXPECT_GT(found, 1000u);
  EXPECT_GT(longest, 100u);
}

TEST(PromptLookup, ALongerMatchBeatsALaterOne) {
  const auto text = Ids({9, 1, 2, 3, 4, 50, 8, 2, 3, 4, 60, 1, 2, 3, 4});
  PromptLookup lookup(text.size());
  lookup.Update(text);
  const auto match = lookup.Find(text);
  EXPECT_EQ(match.length, 4u);
  EXPECT_EQ(text[match.next], TokenId{50});
}

TEST(PromptLookup, OfEquallyLongMatchesTheLatestWins) {
  const auto text = Ids({1, 2, 3, 50, 1, 2, 3, 60, 1, 2, 3});
  PromptLookup lookup(text.size());
  lookup.Update(text);
  EXPECT_EQ(text[lookup.Find(text).next], TokenId{60});
}

TEST(PromptLookup, TwoTokensAreNoMatchAndATextDoesNotMatchItsOwnEnd) {
  for (const auto& text : {Ids({}), Ids({1}), Ids({1, 2, 7, 1, 2}), Ids({1, 2, 3, 4, 5})}) {
    PromptLookup lookup(text.size());
    lookup.Update(text);
    EXPECT_EQ(lookup.Find(text).length, 0u);
  }
}

}  // namespace
}  // namespace tael::engine
