// What both families share: BOS, ends, look-up; and files that are wrong or hostile.
#include "tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "tokenizer/hash.h"
#include "tokenizer/testing.h"

namespace tael::tokenizer {
namespace {

using ::testing::HasSubstr;
using testing::Loaded;
using testing::SmallVocab;

Loaded LoadOrDie(const SmallVocab& vocab) {
  auto loaded = vocab.Load();
  EXPECT_TRUE(loaded) << loaded.error().Message();
  return *std::move(loaded);
}

void ExpectRefused(const Result<Loaded>& loaded, ErrorCode code, const std::string& says) {
  ASSERT_FALSE(loaded) << says;
  EXPECT_EQ(loaded.error().code, code) << loaded.error().Message();
  EXPECT_THAT(loaded.error().Message(), HasSubstr(says));
}

void ExpectMalformed(const SmallVocab& vocab, const std::string& key) {
  ExpectRefused(vocab.Load(), ErrorCode::kMalformed, "tokenizer.ggml." + key);
}

TEST(Tokenizer, BosIsAddedOnlyWhereTheFileAsksForIt) {
  for (SmallVocab vocab : {SmallVocab::ByteLevel(), SmallVocab::SentencePiece()}) {
    vocab.ids["bos_token_id"] = 1;
    EXPECT_FALSE(LoadOrDie(vocab).tokenizer->add_bos());  // a file without the key: none
    vocab.flags["add_bos_token"] = false;
    EXPECT_FALSE(LoadOrDie(vocab).tokenizer->add_bos());
    vocab.flags["add_bos_token"] = true;
    EXPECT_TRUE(LoadOrDie(vocab).tokenizer->add_bos());
    EXPECT_EQ(LoadOrDie(vocab).tokenizer->bos(), TokenId{1});
    vocab.ids.erase("bos_token_id");
    ExpectMalformed(vocab, "bos_token_id");
  }
}

TEST(Tokenizer, EncodeNeverAddsBosByItself) {
  SmallVocab vocab = SmallVocab::ByteLevel();
  vocab.ids["bos_token_id"] = vocab.Add("<s>", testing::kFileControl);
  vocab.flags["add_bos_token"] = true;
  const Loaded loaded = LoadOrDie(vocab);
  EXPECT_EQ(loaded.tokenizer->Encode("a", {.parse_control = true}).size(), 1u);
  EXPECT_EQ(loaded.tokenizer->Encode("<s>a", {.parse_control = true}).size(), 2u);  // one, not two
}

TEST(Tokenizer, RealFilesAskForBosAsTheirFamiliesDo) {
  TAEL_SKIP_WITHOUT_MODELS();
  const std::pair<const char*, bool> kFiles[] = {{"smollm2.gguf", false},
                                                 {"gemma3.gguf", true},
                                                 {"vocab/ggml-vocab-qwen2.gguf", false},
                                                 {"vocab/ggml-vocab-llama-spm.gguf", true},
                                                 // The key is missing in this one.
                                                 {"vocab/ggml-vocab-llama-bpe.gguf", false}};
  for (const auto& [name, add_bos] : kFiles) {
    const auto loaded = testing::LoadFile(testing::ModelFolder() + "/" + name);
    ASSERT_TRUE(loaded) << name;
    EXPECT_EQ(loaded->tokenizer->add_bos(), add_bos) << name;
  }
}

TEST(Tokenizer, GenerationEndsAtEosEotAndTheSpellingsThatSayIt) {
  SmallVocab vocab = SmallVocab::ByteLevel();
  const uint32_t end = vocab.Add("<|im_end|>", testing::kFileControl);
  const uint32_t start = vocab.Add("<|im_start|>", testing::kFileControl);
  vocab.ids["eos_token_id"] = 7;
  vocab.ids["eot_token_id"] = 8;
  vocab.ids["eom_token_id"] = 9;
  const Loaded loaded = LoadOrDie(vocab);
  std::set<uint32_t> ends;
  for (uint32_t id = 0; id < loaded.tokenizer->size(); ++id) {
    if (loaded.tokenizer->IsEndOfGeneration(TokenId{static_cast<int32_t>(id)})) ends.insert(id);
  }
  EXPECT_EQ(ends, (std::set<uint32_t>{7, 8, 9, end}));
  EXPECT_FALSE(loaded.tokenizer->IsEndOfGeneration(TokenId{static_cast<int32_t>(start)}));
  EXPECT_FALSE(loaded.tokenizer->IsEndOfGeneration(TokenId{-1}));
}

TEST(Tokenizer, AnEndOfTurnThatTheFileCallsAPlainTokenIsAControlToken) {
  for (const int32_t kind : {testing::kFileNormal, testing::kFileUserDefined}) {
    SmallVocab vocab = SmallVocab::ByteLevel();
    const TokenId end{static_cast<int32_t>(vocab.Add("<|im_end|>", kind))};
    const Loaded loaded = LoadOrDie(vocab);
    EXPECT_EQ(loaded.tokenizer->Kind(end), TokenKind::kControl);
    EXPECT_EQ(loaded.tokenizer->Encode("<|im_end|>", {}).size(), 10u);
    EXPECT_EQ(loaded.tokenizer->Encode("<|im_end|>", {.parse_control = true}).size(), 1u);
  }
}

TEST(Tokenizer, ATokenIsFoundByItsExactSpelling) {
  SmallVocab vocab = SmallVocab::ByteLevel();
  const uint32_t id = vocab.Add("<|x|>", testing::kFileControl);
  const Loaded loaded = LoadOrDie(vocab);
  EXPECT_EQ(loaded.tokenizer->Find("<|x|>"), TokenId{static_cast<int32_t>(id)});
  EXPECT_EQ(loaded.tokenizer->Find("<|x"), TokenId{-1});
  EXPECT_EQ(loaded.tokenizer->Find(""), TokenId{-1});
  EXPECT_TRUE(loaded.tokenizer->IsValid(TokenId{static_cast<int32_t>(id)}));
  EXPECT_FALSE(loaded.tokenizer->IsValid(TokenId{static_cast<int32_t>(id) + 1}));
  EXPECT_FALSE(loaded.tokenizer->IsValid(TokenId{-1}));
}

TEST(Tokenizer, UnknownModelsAndPreTokenisersAreRefusedByName) {
  SmallVocab vocab = SmallVocab::ByteLevel();
  vocab.pre = "kimi-k2";
  ExpectRefused(vocab.Load(), ErrorCode::kUnsupported, "kimi-k2");
  vocab.model = "t5";
  ExpectRefused(vocab.Load(), ErrorCode::kUnsupported, "t5");
}

TEST(Tokenizer, AFileWithoutAPreTokeniserGetsTheDefault) {
  SmallVocab vocab = SmallVocab::ByteLevel();
  vocab.pre = std::nullopt;
  EXPECT_TRUE(vocab.Load());
}

TEST(HostileVocabulary, MissingOrMistypedArraysAreRefusedByKey) {
  const SmallVocab good = SmallVocab::ByteLevel();
  gguf::Writer none;
  none.AddString("tokenizer.ggml.model", "gpt2");
  ExpectRefused(SmallVocab::LoadWriter(none), ErrorCode::kMalformed, "tokenizer.ggml.tokens");
  none.AddIntArray("tokenizer.ggml.tokens", std::vector<int32_t>{1, 2});
  ExpectRefused(SmallVocab::LoadWriter(none), ErrorCode::kMalformed, "tokenizer.ggml.tokens");
  ExpectRefused(SmallVocab::LoadWriter(gguf::Writer()), ErrorCode::kMalformed,
                "tokenizer.ggml.model");
  gguf::Writer no_merges;
  no_merges.AddString("tokenizer.ggml.model", "gpt2");
  no_merges.AddStringArray("tokenizer.ggml.tokens", good.tokens);
  ExpectRefused(SmallVocab::LoadWriter(no_merges), ErrorCode::kMalformed, "tokenizer.ggml.merges");
}

TEST(HostileVocabulary, CountsThatDoNotFitAreRefused) {
  SmallVocab vocab = SmallVocab::SentencePiece();
  vocab.kinds.pop_back();
  ExpectMalformed(vocab, "token_type");
  vocab = SmallVocab::SentencePiece();
  vocab.scores.push_back(0);
  ExpectMalformed(vocab, "scores");
  vocab.scores.clear();
  ExpectMalformed(vocab, "scores");
}

TEST(HostileVocabulary, KindsAndScoresThatMeanNothingAreRefused) {
  SmallVocab vocab = SmallVocab::SentencePiece();
  vocab.kinds[5] = 7;
  ExpectMalformed(vocab, "token_type");
  vocab.kinds[5] = -1;
  ExpectMalformed(vocab, "token_type");
  vocab = SmallVocab::SentencePiece();
  vocab.scores[3] = std::nanf("");
  ExpectMalformed(vocab, "scores");
}

TEST(HostileVocabulary, SpellingsThatComeTwiceOrAreTooLongAreRefused) {
  SmallVocab vocab = SmallVocab::ByteLevel();
  vocab.Add("a");
  ExpectMalformed(vocab, "tokens");
  vocab = SmallVocab::ByteLevel();
  vocab.Add(std::string(65535, 'x'));
  EXPECT_TRUE(vocab.Load());
  vocab.Add(std::string(65536, 'y'));
  ExpectMalformed(vocab, "tokens");
  vocab = SmallVocab::SentencePiece();
  vocab.Add("<0xG0>", testing::kFileByte);
  ExpectMalformed(vocab, "tokens");
}

TEST(HostileVocabulary, EmptySpellingsArePaddingAndMayRepeat) {
  SmallVocab vocab = SmallVocab::ByteLevel();
  vocab.Add("");
  vocab.Add("", testing::kFileControl);
  const Loaded loaded = LoadOrDie(vocab);
  EXPECT_EQ(loaded.tokenizer->Encode("ab", {.parse_control = true}).size(), 2u);
}

TEST(HostileVocabulary, RulesThatAreNotTwoTokensThatMakeOneAreRefused) {
  for (const char* rule : {"", " ", "a", "a ", " a", "a b c", "a  b", "a zz", "zz a", "a b"}) {
    SmallVocab vocab = SmallVocab::ByteLevel();
    vocab.merges.push_back(rule);
    ExpectMalformed(vocab, "merges");
  }
}

TEST(HostileVocabulary, IdsOutsideTheVocabularyAreRefused) {
  for (SmallVocab good : {SmallVocab::ByteLevel(), SmallVocab::SentencePiece()}) {
    for (const char* key : {"bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id"}) {
      SmallVocab vocab = good;
      vocab.ids[key] = static_cast<uint32_t>(vocab.tokens.size());
      ExpectMalformed(vocab, key);
      vocab.ids[key] = UINT32_MAX;
      ExpectMalformed(vocab, key);
    }
  }
  SmallVocab vocab = SmallVocab::SentencePiece();
  vocab.ids["unknown_token_id"] = 1000;
  ExpectMalformed(vocab, "unknown_token_id");
}

TEST(HostileVocabulary, SpellingsMadeToCollideAreRefused) {
  constexpr size_t kCount = 200;
  const size_t mask = TableSlots(kCount) - 1;
  SmallVocab vocab;
  for (uint64_t i = 0; vocab.tokens.size() < kCount; ++i) {
    const std::string spelling = "t" + std::to_string(i);
    if ((HashBytes(spelling) & mask) == 0) vocab.Add(spelling);
  }
  ExpectMalformed(vocab, "tokens");
}

// Any byte of a file may be wrong; whatever loads must also work.
TEST(HostileVocabulary, FlippedBytesGiveATypedErrorOrATokenizerThatWorks) {
  std::mt19937 random(7);
  for (SmallVocab vocab : {SmallVocab::ByteLevel(), SmallVocab::SentencePiece()}) {
    vocab.Add("ab");
    if (vocab.model == "gpt2") vocab.merges.push_back("a b");
    vocab.Add("<|im_end|>", testing::kFileControl);
    const auto bytes = vocab.ToWriter().Serialize();
    ASSERT_TRUE(bytes);
    int loaded = 0;
    for (int round = 0; round < 2000; ++round) {
      std::vector<std::byte> damaged = *bytes;
      damaged[random() % damaged.size()] = static_cast<std::byte>(random() & 0xFF);
      const auto file = gguf::File::Parse(damaged);
      if (!file) continue;
      const auto tokenizer = Tokenizer::Create(*file);
      if (!tokenizer) continue;
      ++loaded;
      const auto ids = (*tokenizer)->Encode("ab\xFF <|im_end|> \u4e2d", {.parse_control = true});
      for (const TokenId id : ids) ASSERT_TRUE((*tokenizer)->IsValid(id));
      (void)(*tokenizer)->Decode(ids);
    }
    EXPECT_GT(loaded, 100);
  }
}

}  // namespace
}  // namespace tael::tokenizer
