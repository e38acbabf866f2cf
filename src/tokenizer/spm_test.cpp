#include "tokenizer/spm.h"

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

constexpr int kByte = 3;  // id of <0x00>
constexpr int kFirst = 259;

Loaded LoadOrDie(const SmallVocab& vocab) {
  auto loaded = vocab.Load();
  EXPECT_TRUE(loaded) << loaded.error().Message();
  return *std::move(loaded);
}

std::vector<int> Encode(const Loaded& loaded, std::string_view text, EncodeOptions options = {}) {
  return Ints(loaded.tokenizer->Encode(text, options));
}

SmallVocab Letters() {
  SmallVocab vocab = SmallVocab::SentencePiece();
  vocab.Add("\u2581", testing::kFileNormal, -100);  // 259
  vocab.Add("a", testing::kFileNormal, -100);       // 260
  vocab.Add("b", testing::kFileNormal, -100);       // 261
  vocab.Add("ab", testing::kFileNormal, -2);        // 262
  vocab.Add("ba", testing::kFileNormal, -1);        // 263
  vocab.Add("\u2581a", testing::kFileNormal, -3);   // 264
  return vocab;
}

TEST(Spm, TheHighestScoreJoinsFirstAndOfEqualOnesTheLeftmost) {
  SmallVocab vocab = Letters();
  vocab.flags["add_space_prefix"] = false;
  vocab.Add("aa", testing::kFileNormal, -9);  // 265
  const Loaded loaded = LoadOrDie(vocab);
  EXPECT_THAT(Encode(loaded, "aba"), ElementsAre(260, 263));
  EXPECT_THAT(Encode(loaded, "aaa"), ElementsAre(265, 260));
  EXPECT_THAT(Encode(loaded, ""), ElementsAre());
}

TEST(Spm, TheSpaceInFrontComesAndGoesWithTheFlag) {
  SmallVocab vocab = Letters();
  const Loaded with = LoadOrDie(vocab);
  EXPECT_THAT(Encode(with, "a"), ElementsAre(264));
  EXPECT_EQ(with.tokenizer->Decode(std::vector{TokenId{264}, TokenId{264}}), "a a");
  EXPECT_EQ(with.tokenizer->Piece(TokenId{264}), " a");
  vocab.flags["add_space_prefix"] = false;
  const Loaded without = LoadOrDie(vocab);
  EXPECT_THAT(Encode(without, "a"), ElementsAre(260));
  EXPECT_EQ(without.tokenizer->Decode(std::vector{TokenId{264}}), " a");
}

TEST(Spm, TextAfterAControlTokenGetsTheSpaceAgain) {
  const Loaded loaded = LoadOrDie(Letters());
  EXPECT_THAT(Encode(loaded, "a</s>a", {.parse_control = true}), ElementsAre(264, 2, 264));
}

TEST(Spm, CharactersWithoutATokenBecomeTheirBytes) {
  SmallVocab vocab = Letters();
  vocab.flags["add_space_prefix"] = false;
  const Loaded loaded = LoadOrDie(vocab);
  EXPECT_THAT(Encode(loaded, "a\u00e9"), ElementsAre(260, kByte + 0xC3, kByte + 0xA9));
  EXPECT_THAT(Encode(loaded,
                     "\xFF"
                     "a"),
              ElementsAre(kByte + 0xFF, 260));
  EXPECT_THAT(Encode(loaded, "a\n"), ElementsAre(260, kByte + '\n'));
  EXPECT_EQ(loaded.tokenizer->Decode(std::vector{TokenId{kByte + 0xC3}, TokenId{kByte + 0xA9}}),
            "\u00e9");
}

TEST(Spm, SpellingsOfControlAndByteTokensInTextStayText) {
  SmallVocab vocab = Letters();
  vocab.flags["add_space_prefix"] = false;
  // Pieces that would let text grow into "</s>" if control tokens took part in merging.
  for (const char* piece : {"<", "/", "s", ">", "</", "s>", "0", "x"}) vocab.Add(piece);
  const Loaded loaded = LoadOrDie(vocab);
  EXPECT_THAT(Encode(loaded, "</s>"), ElementsAre(kFirst + 10, kFirst + 11));
  EXPECT_EQ(Encode(loaded, "<0x0A>").front(), kFirst + 6);
}

TEST(Spm, WithoutByteTokensTheUnknownTokenStandsIn) {
  SmallVocab vocab;
  vocab.model = "llama";
  vocab.pre = std::nullopt;
  vocab.Add("<unk>", testing::kFileUnknown);
  vocab.Add("a");
  vocab.flags["add_space_prefix"] = false;
  EXPECT_THAT(Encode(LoadOrDie(vocab), "ab"), ElementsAre(1));
  vocab.ids["unknown_token_id"] = 0;
  EXPECT_THAT(Encode(LoadOrDie(vocab), "ab"), ElementsAre(1, 0));
  vocab.ids["eos_token_id"] = 0;  // text must not end the turn
  EXPECT_THAT(Encode(LoadOrDie(vocab), "ab"), ElementsAre(1));
}

TEST(Spm, UserDefinedTokensMatchBeforeAnythingElse) {
  SmallVocab vocab = Letters();
  vocab.flags["add_space_prefix"] = false;
  vocab.Add("  ", testing::kFileUserDefined);  // 265: as Gemma's converter writes runs of spaces
  const Loaded loaded = LoadOrDie(vocab);
  EXPECT_THAT(Encode(loaded, "a   b"), ElementsAre(260, 265, 259, 261));
  EXPECT_EQ(loaded.tokenizer->Piece(TokenId{265}), "  ");
}

TEST(Spm, Phi3DropsTheWhiteSpaceAfterAMarker) {
  SmallVocab vocab = Letters();
  vocab.Add("<|user|>", testing::kFileControl);  // 265
  EXPECT_EQ(Encode(LoadOrDie(vocab), "<|user|>\n a", {.parse_control = true}).size(), 4u);
  vocab.architecture = "phi3";
  const Loaded loaded = LoadOrDie(vocab);
  EXPECT_THAT(Encode(loaded, "<|user|>\n a", {.parse_control = true}), ElementsAre(265, 264));
  EXPECT_THAT(Encode(loaded, "<|user|>\n", {.parse_control = true}), ElementsAre(265));
}

TEST(Spm, AHundredThousandOfOneLetterTakesLinearTime) {
  SmallVocab vocab = Letters();
  std::string run = "a";
  for (int i = 0; i < 6; ++i) {
    run += run;
    vocab.Add(run, testing::kFileNormal, static_cast<float>(-i));
  }
  vocab.flags["add_space_prefix"] = false;
  const Loaded loaded = LoadOrDie(vocab);
  const std::string text(1'000'000, 'a');
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Encode(loaded, text).size(), text.size() / 64);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

}  // namespace
}  // namespace tael::tokenizer
