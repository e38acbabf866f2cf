#include "tokenizer/special.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tokenizer/testing.h"

namespace tael::tokenizer {
namespace {

using ::testing::ElementsAre;
using testing::Ints;
using testing::Loaded;
using testing::SmallVocab;
using ::testing::UnorderedElementsAre;

constexpr EncodeOptions kParseControl = {.parse_control = true};

// Ids from 256 on, after the bytes.
Loaded LoadMarked() {
  SmallVocab vocab = SmallVocab::ByteLevel();
  vocab.Add("<|a|>", testing::kFileControl);        // 256
  vocab.Add("<|a|><|b|>", testing::kFileControl);   // 257
  vocab.Add("<table>", testing::kFileUserDefined);  // 258
  vocab.Add("<think>", testing::kFileUserDefined);  // 259
  vocab.Add("\n\n", testing::kFileUserDefined);     // 260
  vocab.Add("\n\n\n", testing::kFileUserDefined);   // 261
  vocab.Add("<unk>", testing::kFileUnknown);        // 262
  vocab.Add("<pad>", testing::kFileUnused);         // 263
  auto loaded = vocab.Load();
  EXPECT_TRUE(loaded) << loaded.error().Message();
  return *std::move(loaded);
}

TEST(SpecialTokens, AControlTokenIsOneIdOnlyWhereTheCallerAllowsIt) {
  const Loaded loaded = LoadMarked();
  EXPECT_THAT(Ints(loaded.tokenizer->Encode("x<|a|>y", kParseControl)), ElementsAre('x', 256, 'y'));
  EXPECT_THAT(Ints(loaded.tokenizer->Encode("<|a|>", {})), ElementsAre('<', '|', 'a', '|', '>'));
  EXPECT_THAT(Ints(loaded.tokenizer->Encode("<unk>", kParseControl)), ElementsAre(262));
  EXPECT_THAT(loaded.tokenizer->Encode("<unk>", {}).size(), 5u);
}

TEST(SpecialTokens, UserDefinedTokensMatchAlwaysButMarkersLikeControlTokens) {
  const Loaded loaded = LoadMarked();
  EXPECT_THAT(Ints(loaded.tokenizer->Encode("<table>", {})), ElementsAre(258));
  EXPECT_THAT(loaded.tokenizer->Encode("<think>", {}).size(), 7u);
  EXPECT_THAT(Ints(loaded.tokenizer->Encode("<think>", kParseControl)), ElementsAre(259));
  EXPECT_THAT(loaded.tokenizer->control_spellings(),
              UnorderedElementsAre("<|a|>", "<|a|><|b|>", "<think>", "<unk>"));
  EXPECT_EQ(loaded.tokenizer->Piece(TokenId{259}), "<think>");
}

TEST(SpecialTokens, TheLeftmostMatchWinsAndOfThoseTheLongest) {
  const Loaded loaded = LoadMarked();
  EXPECT_THAT(Ints(loaded.tokenizer->Encode("<|a|><|b|>", kParseControl)), ElementsAre(257));
  EXPECT_THAT(Ints(loaded.tokenizer->Encode("<|a|><|b", kParseControl)),
              ElementsAre(256, '<', '|', 'b'));
  EXPECT_THAT(Ints(loaded.tokenizer->Encode("\n\n\n\n\n", {})), ElementsAre(261, 260));
}

TEST(SpecialTokens, UnusedTokensAreNeverMatched) {
  const Loaded loaded = LoadMarked();
  EXPECT_EQ(loaded.tokenizer->Encode("<pad>", kParseControl).size(), 5u);
}

TEST(SpecialTokens, AControlTokenIsNotMatchedAcrossABreak) {
  const Loaded loaded = LoadMarked();
  const std::string text = "<|a|><|a|>";
  for (size_t at = 0; at <= text.size(); ++at) {
    const size_t breaks[] = {at};
    const EncodeOptions options = {.parse_control = true, .breaks = breaks};
    const size_t broken_first = at > 0 && at < 5 ? 1 : 0;
    const size_t broken_second = at > 5 && at < 10 ? 1 : 0;
    EXPECT_EQ(loaded.tokenizer->Encode(text, options).size(),
              2 + 4 * (broken_first + broken_second))
        << at;
  }
  // The longer token crosses the break, the shorter one does not.
  const size_t breaks[] = {5};
  EXPECT_THAT(
      Ints(loaded.tokenizer->Encode("<|a|><|b|>", {.parse_control = true, .breaks = breaks})),
      ElementsAre(256, '<', '|', 'b', '|', '>'));
}

TEST(SpecialTokens, UserTextGivesPlainIdsWhileTheTemplateAroundItGivesControlIds) {
  const Loaded loaded = LoadMarked();
  const std::string before = "<|a|>";
  const std::string user = "say <|a|> and <think>";
  const std::string text = before + user + "<|a|>";
  // A break inside each spelling that the user wrote.
  const size_t breaks[] = {before.size() + 5, before.size() + 15};
  const auto ids = Ints(loaded.tokenizer->Encode(text, {.parse_control = true, .breaks = breaks}));
  EXPECT_EQ(ids.front(), 256);
  EXPECT_EQ(ids.back(), 256);
  EXPECT_EQ(ids.size(), user.size() + 2);
}

TEST(SpecialTokens, ManyTokensWithOnePrefixDoNotSlowTheSearch) {
  SmallVocab vocab = SmallVocab::ByteLevel();
  for (int i = 0; i < 6000; ++i) {
    vocab.Add("<unused" + std::to_string(i) + ">", testing::kFileControl);
  }
  const auto loaded = vocab.Load();
  ASSERT_TRUE(loaded);
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += "<unused";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(loaded->tokenizer->Encode(text, kParseControl).size(), text.size());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

}  // namespace
}  // namespace tael::tokenizer
