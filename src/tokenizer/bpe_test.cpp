#include "tokenizer/bpe.h"

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

// Ids are the bytes, then in the order of the calls.
Loaded LoadOrDie(const SmallVocab& vocab) {
  auto loaded = vocab.Load();
  EXPECT_TRUE(loaded) << loaded.error().Message();
  return *std::move(loaded);
}

std::vector<int> Encode(const Loaded& loaded, std::string_view text) {
  return Ints(loaded.tokenizer->Encode(text, {}));
}

TEST(Bpe, TheLowestRankJoinsFirstAndOfEqualOnesTheLeftmost) {
  SmallVocab vocab = SmallVocab::ByteLevel();
  vocab.Merge("b", "c");    // 256
  vocab.Merge("a", "b");    // 257
  vocab.Merge("a", "bc");   // 258
  vocab.Merge("x", "x");    // 259
  vocab.Merge("xx", "xx");  // 260
  const Loaded loaded = LoadOrDie(vocab);
  EXPECT_THAT(Encode(loaded, "abc"), ElementsAre(258));
  EXPECT_THAT(Encode(loaded, "abab"), ElementsAre(257, 257));
  EXPECT_THAT(Encode(loaded, "xxx"), ElementsAre(259, 'x'));
  EXPECT_THAT(Encode(loaded, "xxxxxxx"), ElementsAre(260, 259, 'x'));
  EXPECT_THAT(Encode(loaded, ""), ElementsAre());
}

TEST(Bpe, APairThatChangedWaitsForTheRankOfWhatItIsNow) {
  SmallVocab vocab = SmallVocab::ByteLevel();
  vocab.Merge("b", "c");   // 256
  vocab.Merge("a", "b");   // 257: gone from "abcd" before its turn
  vocab.Merge("bc", "d");  // 258
  vocab.Merge("a", "bc");  // 259
  EXPECT_THAT(Encode(LoadOrDie(vocab), "abcd"), ElementsAre('a', 258));
}

TEST(Bpe, MergesStayWithinWords) {
  SmallVocab vocab = SmallVocab::ByteLevel();
  vocab.Merge("a", "Ġ");  // 256: across words, never used
  vocab.Merge("Ġ", "b");  // 257
  const Loaded loaded = LoadOrDie(vocab);
  EXPECT_THAT(Encode(loaded, "a b"), ElementsAre('a', 257));
  EXPECT_EQ(loaded.tokenizer->Piece(TokenId{257}), " b");
}

TEST(Bpe, AWordThatIsATokenIsTakenWholeOnlyWhereTheFamilyIgnoresMerges) {
  SmallVocab vocab = SmallVocab::ByteLevel();
  vocab.Add("abc");                         // 256: no merges lead here
  vocab.Add("eot", testing::kFileControl);  // 257
  vocab.pre = "llama-bpe";
  EXPECT_THAT(Encode(LoadOrDie(vocab), "abc"), ElementsAre(256));
  EXPECT_THAT(Encode(LoadOrDie(vocab), "eot"), ElementsAre('e', 'o', 't'));
  vocab.pre = "gpt-2";
  EXPECT_THAT(Encode(LoadOrDie(vocab), "abc"), ElementsAre('a', 'b', 'c'));
}

TEST(Bpe, MergesThatWouldMakeAControlTokenAreNotUsed) {
  SmallVocab vocab = SmallVocab::ByteLevel();
  vocab.Merge("e", "o");                    // 256
  vocab.Add("eot", testing::kFileControl);  // 257
  vocab.merges.push_back("eo t");
  EXPECT_THAT(Encode(LoadOrDie(vocab), "eot"), ElementsAre(256, 't'));
}

TEST(Bpe, InvalidUtf8BecomesItsBytesAndTheTextAroundItIsUnharmed) {
  SmallVocab vocab = SmallVocab::ByteLevel();
  vocab.Merge("a", "b");  // 256
  const Loaded loaded = LoadOrDie(vocab);
  EXPECT_THAT(Encode(loaded,
                     "ab\xFF\xC3"
                     "ab\xE4\xB8"),
              ElementsAre(256, 0xFF, 0xC3, 256, 0xE4, 0xB8));
  EXPECT_THAT(Encode(loaded, std::string_view("\0ab", 3)), ElementsAre(0, 256));
}

TEST(Bpe, AnInvalidByteWithoutATokenBecomesTheReplacementCharacter) {
  SmallVocab vocab;
  for (uint32_t byte = 0; byte < 0xF8; ++byte) {
    std::string spelling;
    AppendUtf8(CharOfByte(static_cast<uint8_t>(byte)), spelling);
    vocab.Add(spelling);
  }
  vocab.ids["unknown_token_id"] = 'U';  // not used: it may be any token, <|endoftext|> even
  EXPECT_THAT(Encode(LoadOrDie(vocab), "a\xFF"), ElementsAre('a', 0xEF, 0xBF, 0xBD));
}

TEST(Bpe, TextIsNormalisedWhereTheFamilyDoesItAndNotInsideControlTokens) {
  SmallVocab vocab = SmallVocab::ByteLevel();
  vocab.Add("<|e\u0301|>", testing::kFileControl);  // 256
  vocab.pre = "qwen2";
  const Loaded loaded = LoadOrDie(vocab);
  EXPECT_THAT(Encode(loaded, "e\u0301"), ElementsAre(0xC3, 0xA9));
  EXPECT_THAT(Encode(loaded, "e\u0301\xFF"), ElementsAre(0xC3, 0xA9, 0xFF));
  EXPECT_THAT(Ints(loaded.tokenizer->Encode("<|e\u0301|>", {.parse_control = true})),
              ElementsAre(256));
  vocab.pre = "smollm";
  EXPECT_THAT(Encode(LoadOrDie(vocab), "e\u0301"), ElementsAre('e', 0xCC, 0x81));
}

TEST(Bpe, EveryByteSurvivesARoundTrip) {
  const Loaded loaded = LoadOrDie(SmallVocab::ByteLevel());
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
  const auto ids = loaded.tokenizer->Encode(text, {});
  EXPECT_EQ(ids.size(), 256u);
  EXPECT_EQ(loaded.tokenizer->Decode(ids), text);
}

TEST(Bpe, AHundredThousandOfOneLetterTakesLinearTime) {
  SmallVocab vocab = SmallVocab::ByteLevel();
  std::string run = "a";
  for (int i = 0; i < 6; ++i) {
    vocab.Merge(run, run);
    run += run;
  }
  const Loaded loaded = LoadOrDie(vocab);
  const std::string text(1'000'000, 'a');
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Encode(loaded, text).size(), text.size() / 64);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(Bpe, ControlTokensHaveNoTextAndUserDefinedOnesTheirSpelling) {
  SmallVocab vocab = SmallVocab::ByteLevel();
  vocab.Add("<|x|>", testing::kFileControl);          // 256
  vocab.Add("\u0120tag", testing::kFileUserDefined);  // 257: plain text, not byte-level
  vocab.Add("Ġ\u4e2d");                               // 258: a letter outside the alphabet stays
  const Loaded loaded = LoadOrDie(vocab);
  EXPECT_EQ(loaded.tokenizer->Piece(TokenId{256}), "");
  EXPECT_EQ(loaded.tokenizer->Spelling(TokenId{256}), "<|x|>");
  EXPECT_EQ(loaded.tokenizer->Piece(TokenId{257}), "\u0120tag");
  EXPECT_EQ(loaded.tokenizer->Piece(TokenId{258}), " \u4e2d");
}

}  // namespace
}  // namespace tael::tokenizer
