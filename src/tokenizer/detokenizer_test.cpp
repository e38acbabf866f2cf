#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tokenizer/testing.h"

namespace tael::tokenizer {
namespace {

using ::testing::ElementsAre;
using testing::Loaded;
using testing::SmallVocab;

constexpr int32_t kByte = 3;  // id of <0x00> in SmallVocab::SentencePiece()

Loaded LoadBytes() {
  SmallVocab vocab = SmallVocab::SentencePiece();
  vocab.Add("\u2581the");  // 259
  auto loaded = vocab.Load();
  EXPECT_TRUE(loaded);
  return *std::move(loaded);
}

// What Push() gives for each byte, and at last what Finish() gives.
std::vector<std::string> Feed(const Loaded& loaded, std::string_view bytes) {
  Detokenizer detokenizer(*loaded.tokenizer);
  std::vector<std::string> out;
  for (const char byte : bytes) {
    out.push_back(detokenizer.Push(TokenId{kByte + static_cast<uint8_t>(byte)}));
  }
  out.push_back(detokenizer.Finish());
  return out;
}

TEST(Detokenizer, ACharacterComesOutWithItsLastByte) {
  EXPECT_THAT(Feed(LoadBytes(), "a\u00e9\u4e2d"),
              ElementsAre("a", "", "\u00e9", "", "", "\u4e2d", ""));
}

TEST(Detokenizer, AnUnfinishedTailBecomesOneReplacementCharacter) {
  EXPECT_THAT(Feed(LoadBytes(), "\xF0\x9F\x98"), ElementsAre("", "", "", "\uFFFD"));
}

TEST(Detokenizer, InvalidSequencesBecomeReplacementCharactersAtOnce) {
  EXPECT_THAT(Feed(LoadBytes(),
                   "\xFF"
                   "a"),
              ElementsAre("\uFFFD", "a", ""));
  EXPECT_THAT(Feed(LoadBytes(), "\xE4\xB8x"), ElementsAre("", "", "\uFFFDx", ""));
  EXPECT_THAT(Feed(LoadBytes(), "\xE4\xE4"), ElementsAre("", "\uFFFD", "\uFFFD"));
}

TEST(Detokenizer, ControlTokensGiveNothingAndDoNotDisturbACharacter) {
  const Loaded loaded = LoadBytes();
  Detokenizer detokenizer(*loaded.tokenizer);
  EXPECT_EQ(detokenizer.Push(TokenId{kByte + 0xC3}), "");
  EXPECT_EQ(detokenizer.Push(TokenId{2}), "");
  EXPECT_EQ(detokenizer.Push(TokenId{kByte + 0xA9}), "\u00e9");
  EXPECT_EQ(detokenizer.Finish(), "");
}

TEST(Detokenizer, TheFirstSpaceGoesOnlyWhereATextBegins) {
  const Loaded loaded = LoadBytes();
  Detokenizer answer(*loaded.tokenizer);
  EXPECT_EQ(answer.Push(TokenId{259}), " the");
  Detokenizer text(*loaded.tokenizer, TextStart::kBegins);
  EXPECT_EQ(text.Push(TokenId{1}), "");
  EXPECT_EQ(text.Push(TokenId{259}), "the");
  EXPECT_EQ(text.Push(TokenId{259}), " the");
}

TEST(Detokenizer, FinishStartsAnew) {
  const Loaded loaded = LoadBytes();
  Detokenizer detokenizer(*loaded.tokenizer);
  EXPECT_EQ(detokenizer.Push(TokenId{kByte + 0xE4}), "");
  EXPECT_EQ(detokenizer.Finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.Push(TokenId{kByte + 'a'}), "a");
  EXPECT_EQ(detokenizer.Finish(), "");
}

// The whole text with errors replaced, cut by the rules of utf8.h.
std::string Repair(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const Utf8Char c = DecodeUtf8(bytes);
    out += c.status == Utf8Status::kValid ? bytes.substr(0, c.length) : kReplacementCharacter;
    bytes.remove_prefix(c.length);
  }
  return out;
}

TEST(Detokenizer, AnyBytesGiveValidTextAtEveryStepAndTheRepairedWholeInTheEnd) {
  const Loaded loaded = LoadBytes();
  std::mt19937 random(3);
  const std::string alphabet = "a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80\xFF\x80\xED\xA0";
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (auto n = random() % 16; n > 0; --n) bytes += alphabet[random() % alphabet.size()];
    std::string text;
    for (const std::string& part : Feed(loaded, bytes)) {
      ASSERT_EQ(ValidUtf8Prefix(part), part.size());
      text += part;
    }
    EXPECT_EQ(text, Repair(bytes));
  }
}

}  // namespace
}  // namespace tael::tokenizer
