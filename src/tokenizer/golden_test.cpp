// Real vocabularies against reference ids (tests/data/tok) and against the vocabulary tests of
// llama.cpp (each a file of texts and a file of ids). Skipped where the vocabularies are not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tokenizer/nfc.h"
#include "tokenizer/testing.h"

namespace tael::tokenizer {
namespace {

using testing::Ints;
using testing::Loaded;

constexpr EncodeOptions kParseControl = {.parse_control = true};

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Golden {
  const char* vocabulary;  // below the folder of models
  const char* texts;       // below tests/data/tok
  uint64_t max_heap_bytes;
  int max_load_ms;  // about ten times what a slow laptop needs, for sanitizers and busy machines
};

class GoldenTokens : public ::testing::TestWithParam<Golden> {
 protected:
  void SetUp() override {
    TAEL_SKIP_WITHOUT_MODELS();
    auto loaded = testing::LoadFile(testing::ModelFolder() + "/" + GetParam().vocabulary);
    ASSERT_TRUE(loaded) << loaded.error().Message();
    loaded_ = *std::move(loaded);
  }
  nlohmann::json Texts() const {
    return nlohmann::json::parse(ReadFile(std::string(TAEL_TEST_DATA "/tok/") + GetParam().texts));
  }
  const Tokenizer& tokenizer() const { return *loaded_.tokenizer; }

  Loaded loaded_;
};

TEST_P(GoldenTokens, EveryTextGivesTheReferenceIds) {
  const nlohmann::json texts = Texts();
  ASSERT_EQ(texts.size(), 340u);
  for (const auto& pair : texts) {
    const auto text = pair[0].get<std::string>();
    EXPECT_EQ(Ints(tokenizer().Encode(text, kParseControl)), pair[1].get<std::vector<int>>())
        << text;
  }
}

TEST_P(GoldenTokens, DetokenizingPieceByPieceEqualsDecodingAtOnce) {
  for (const auto& pair : Texts()) {
    const std::vector<TokenId> ids =
        tokenizer().Encode(pair[0].get<std::string>(), {.parse_control = false});
    Detokenizer detokenizer(tokenizer(), TextStart::kBegins);
    std::string text;
    for (const TokenId id : ids) {
      const std::string part = detokenizer.Push(id);
      EXPECT_EQ(ValidUtf8Prefix(part), part.size());
      text += part;
    }
    text += detokenizer.Finish();
    EXPECT_EQ(text, tokenizer().Decode(ids));
  }
}

TEST_P(GoldenTokens, TheHeapHoldsLittleMoreThanTheTables) {
  EXPECT_LE(tokenizer().HeapBytes(), GetParam().max_heap_bytes);
}

TEST_P(GoldenTokens, LoadingIsQuick) {
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(Tokenizer::Create(loaded_.file));
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took, std::chrono::milliseconds(GetParam().max_load_ms));
}

TEST_P(GoldenTokens, ALongRunOfOneLetterTakesLinearTime) {
  for (const char* unit : {"a", " ", "\n", "0", "!", "<", "\xCC\x81", "\xE4\xB8\xAD", "\xFF"}) {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += unit;
    text += "x";
    const auto start = std::chrono::steady_clock::now();
    const std::vector<TokenId> ids = tokenizer().Encode(text, kParseControl);
    const auto took = std::chrono::steady_clock::now() - start;
    EXPECT_LT(took, std::chrono::seconds(3)) << unit;
    const bool has_byte = *unit != '\xFF' || ToInt(tokenizer().Find("ÿ")) >= 0;
    EXPECT_EQ(tokenizer().Decode(ids) == text, has_byte) << unit;
  }
}

INSTANTIATE_TEST_SUITE_P(
    RealVocabularies, GoldenTokens,
    ::testing::Values(Golden{"smollm2.gguf", "tok-smollm2.json", 3 << 20, 500},
                      Golden{"gemma3.gguf", "tok-gemma3.json", 8 << 20, 1500},
                      // llama.cpp lacks NFC here; these ids are of the family's own tokenizer.
                      Golden{"vocab/ggml-vocab-qwen2.gguf", "tok-qwen2.json", 8 << 20, 1500}),
    [](const auto& test) {
      const std::string name = test.param.texts;
      return name.substr(4, name.find('.') - 4);
    });

// The texts and ids of llama.cpp's own tests; ids are those of each family's own tokenizer.
class VocabularyTests : public ::testing::TestWithParam<const char*> {};

std::vector<std::string> SplitTexts(const std::string& all) {
  constexpr std::string_view kSeparator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> out;
  size_t begin = 0;
  for (size_t end = all.find(kSeparator); end != std::string::npos;
       end = all.find(kSeparator, begin)) {
    out.push_back(all.substr(begin, end - begin));
    begin = end + kSeparator.size();
  }
  return out;
}

TEST_P(VocabularyTests, EveryTextGivesTheFamilysIds) {
  TAEL_SKIP_WITHOUT_MODELS();
  const std::string path =
      testing::ModelFolder() + "/vocab/ggml-vocab-" + std::string(GetParam()) + ".gguf";
  const auto loaded = testing::LoadFile(path);
  ASSERT_TRUE(loaded) << loaded.error().Message();
  const std::vector<std::string> texts = SplitTexts(ReadFile(path + ".inp"));
  std::istringstream lines(ReadFile(path + ".out"));
  ASSERT_GT(texts.size(), 40u);
  for (const std::string& text : texts) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    std::istringstream numbers(line);
    const std::vector<int> expected{std::istream_iterator<int>(numbers), {}};
    // The ids for qwen35 come from llama.cpp, which has no NFC step; the family's tokenizer has
    // one. No other file holds a text that NFC changes.
    if (GetParam() == std::string_view("qwen35") && ToNfc(text) != text) continue;
    EXPECT_EQ(Ints(loaded->tokenizer->Encode(text, {})), expected) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(LlamaCpp, VocabularyTests,
                         ::testing::Values("command-r", "deepseek-coder", "deepseek-llm", "falcon",
                                           "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3",
                                           "qwen2", "qwen35", "refact", "starcoder"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tael::tokenizer
