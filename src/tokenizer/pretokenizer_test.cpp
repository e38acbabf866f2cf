#include "tokenizer/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace tael::tokenizer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Words(std::string_view family, std::string_view text) {
  const auto pre = PreTokenizer::Create(family);
  EXPECT_TRUE(pre) << family;
  auto scratch = pre->MakeScratch();
  std::vector<std::string> words;
  pre->Split(text, scratch, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

constexpr const char* kKnown[] = {
    "default",   "gpt-2",        "phi-2",          "mpt",         "olmo",   "smollm",
    "starcoder", "refact",       "command-r",      "llama-bpe",   "glm4",   "smaug-bpe",
    "qwen2",     "qwen35",       "stablelm2",      "tekken",      "gpt-4o", "falcon",
    "bloom",     "deepseek-llm", "deepseek-coder", "deepseek-v3", "viking", "deepseek-r1-qwen"};

TEST(PreTokenizer, AnUnknownFamilyIsRefusedByName) {
  const auto pre = PreTokenizer::Create("llama-9");
  ASSERT_FALSE(pre);
  EXPECT_EQ(pre.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(pre.error().Message(), HasSubstr("tokenizer.ggml.pre is \"llama-9\""));
}

TEST(PreTokenizer, TheWordsOfEveryFamilyAreTheWholeText) {
  const std::string text =
      "  It's 12345 caf\u00e9s,\r\n\n\tSEE'S \u4f60\u597d x=(1)\u00a0\u2028 \u0e44\u0e17 ";
  for (const char* family : kKnown) {
    std::string joined;
    for (const std::string& word : Words(family, text)) {
      EXPECT_FALSE(word.empty()) << family;
      joined += word;
    }
    EXPECT_EQ(joined, text) << family;
  }
}

TEST(PreTokenizer, DigitsAreGroupedAsTheFamilyDoes) {
  EXPECT_THAT(Words("gpt-2", "a12345"), ElementsAre("a", "12345"));
  EXPECT_THAT(Words("smollm", "a123"), ElementsAre("a", "1", "2", "3"));
  EXPECT_THAT(Words("llama-bpe", "a12345"), ElementsAre("a", "123", "45"));
  EXPECT_THAT(Words("qwen2", "a 12"), ElementsAre("a", " ", "1", "2"));
  EXPECT_THAT(Words("falcon", "12345"), ElementsAre("123", "45"));
}

TEST(PreTokenizer, ContractionsIgnoreCaseWhereTheFamilyDoes) {
  EXPECT_THAT(Words("gpt-2", "WE'LL we'll"), ElementsAre("WE", "'", "LL", " we", "'ll"));
  EXPECT_THAT(Words("llama-bpe", "WE'LL we'll"), ElementsAre("WE", "'LL", " we", "'ll"));
  // Unicode folds the long s to s.
  EXPECT_THAT(Words("qwen2", "it'\u017f"), ElementsAre("it", "'\u017f"));
}

TEST(PreTokenizer, TheLastSpaceGoesWithTheWordThatFollows) {
  EXPECT_THAT(Words("gpt-2", "a   b \n"), ElementsAre("a", "  ", " b", " \n"));
  EXPECT_THAT(Words("llama-bpe", "a \r\n\r\nb"), ElementsAre("a", " \r\n\r\n", "b"));
  EXPECT_THAT(Words("deepseek-coder", "a\r\nb"), ElementsAre("a", "\r", "\n", "b"));
}

TEST(PreTokenizer, WhiteSpaceIsUnicodesAndNotTheMongolianVowelSeparator) {
  EXPECT_THAT(Words("gpt-2", "a\u0085\u3000b"), ElementsAre("a", "\u0085", "\u3000", "b"));
  EXPECT_THAT(Words("gpt-2", "a\u180e!"), ElementsAre("a", "\u180e!"));
}

TEST(PreTokenizer, CaseRisesCutWordsInTekken) {
  EXPECT_THAT(Words("tekken", "camelCase HTTPServer"), ElementsAre("camel", "Case", " HTTPServer"));
}

TEST(PreTokenizer, NormalisationAndWholeWordsBelongToTheirFamilies) {
  EXPECT_TRUE(PreTokenizer::Create("qwen2")->normalizes());
  EXPECT_FALSE(PreTokenizer::Create("smollm")->normalizes());
  EXPECT_TRUE(PreTokenizer::Create("llama-bpe")->ignores_merges());
  EXPECT_FALSE(PreTokenizer::Create("qwen2")->ignores_merges());
}

TEST(PreTokenizer, NoFamilyTakesMoreThanLinearTimeOnLongRuns) {
  for (const char* family : kKnown) {
    for (const char* unit :
         {"a", "A", "1", " ", "\n", " \n", "!", "'", "\u4e2d", "\u0301", "\U0001f600"}) {
      std::string run;
      for (int i = 0; i < 100'000; ++i) run += unit;
      for (const char* tail : {"x", "1", "!"}) {
        const std::string text = run + tail;
        const auto start = std::chrono::steady_clock::now();
        size_t bytes = 0;
        for (const std::string& word : Words(family, text)) bytes += word.size();
        EXPECT_EQ(bytes, text.size());
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3))
            << family << " " << unit << tail;
      }
    }
  }
}

}  // namespace
}  // namespace tael::tokenizer
