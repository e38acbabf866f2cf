#include "engine/stop_filter.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace tael::engine {
namespace {

std::string Filter(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopFilter filter(stops);
  std::string out;
  for (const std::string& piece : pieces) out += filter.Push(piece);
  out += filter.Finish();
  return out;
}

TEST(StopFilter, TextWithoutAStopStringComesOutWhole) {
  EXPECT_EQ(Filter({"END"}, {"the ", "EN", "D"}), "the ");
  EXPECT_EQ(Filter({"END"}, {"the ", "EN", "d"}), "the ENd");
  EXPECT_EQ(Filter({}, {"a", "b"}), "ab");
}

TEST(StopFilter, WhatMayBecomeAStopStringIsHeldBackAndNothingElse) {
  StopFilter filter({"\nuser:"});
  EXPECT_EQ(filter.Push("hello\n"), "hello");
  EXPECT_EQ(filter.Push("us"), "");
  EXPECT_EQ(filter.Push("ual\n"), "\nusual");
  EXPECT_EQ(filter.Finish(), "\n");
}

TEST(StopFilter, AStopStringThatOverlapsItselfIsFound) {
  EXPECT_EQ(Filter({"aab"}, {"a", "a", "a", "b", "c"}), "a");
  EXPECT_EQ(Filter({"abab!"}, {"ab", "ab", "ab", "!"}), "ab");
}

TEST(StopFilter, TheFirstStopStringToBeCompleteWins) {
  EXPECT_EQ(Filter({"ab", "abc"}, {"xabc"}), "x");
  EXPECT_EQ(Filter({"bcd", "abcdx"}, {"abcdx"}), "a");
  EXPECT_EQ(Filter({"bc", "abc"}, {"xabc"}), "x");  // both end at c: the longer begins earlier
}

TEST(StopFilter, NothingComesOutAfterAStopString) {
  StopFilter filter({"."});
  EXPECT_EQ(filter.Push("one. two"), "one");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.Push(" three"), "");
  EXPECT_EQ(filter.Finish(), "");
}

// What comes out must not depend on how the text was cut. The oracle looks at every prefix of the
// whole text in turn.
std::string Expected(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t cut = std::string::npos;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) cut = std::min(cut, end - stop.size());
    }
    if (cut != std::string::npos) return text.substr(0, cut);
  }
  return text;
}

TEST(StopFilter, HowTextIsCutIntoPiecesChangesNothing) {
  std::mt19937 rng(7);
  const auto random_text = [&rng](size_t least, size_t most) {
    std::string text(least + rng() % (most - least + 1), 'a');
    for (char& c : text) c = static_cast<char>('a' + rng() % 2);
    return text;
  };
  size_t stopped = 0;
  for (size_t round = 0; round < 3000; ++round) {
    const std::string text = random_text(0, 24);
    std::vector<std::string> stops;
    for (size_t i = 0; i < 1 + round % 3; ++i) stops.push_back(random_text(2, 7));
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size(); at += pieces.back().size()) {
      pieces.push_back(text.substr(at, 1 + rng() % 4));
    }
    const std::string expected = Expected(stops, text);
    stopped += expected != text;
    ASSERT_EQ(Filter(stops, pieces), expected) << text << " until " << stops[0];
  }
  EXPECT_GT(stopped, 500u);
}

}  // namespace
}  // namespace tael::engine
