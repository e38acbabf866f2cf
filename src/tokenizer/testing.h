// For tests only: tokenizers from vocabulary files, real ones (where the environment names a folder
// of them) and small ones that a test makes up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "gguf/file.h"
#include "gguf/writer.h"
#include "mem/mapping.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/tokenizer.h"

namespace tael::tokenizer::testing {

// A vocabulary file and what was read from it. The tokenizer looks into the mapped bytes.
struct Loaded {
  mem::FileMapping mapping;
  std::vector<std::byte> bytes;  // instead of a mapping
  gguf::File file;
  std::unique_ptr<Tokenizer> tokenizer;
};

inline Result<Loaded> LoadFile(const std::string& path) {
  Loaded out;
  TAEL_ASSIGN_OR_RETURN(out.mapping, mem::FileMapping::Open(path));
  TAEL_ASSIGN_OR_RETURN(out.file, gguf::File::Parse(out.mapping.bytes()));
  TAEL_ASSIGN_OR_RETURN(out.tokenizer, Tokenizer::Create(out.file));
  return out;
}

// "" where the variable is not set: tests of real vocabularies skip then.
inline std::string ModelFolder() {
  const char* folder = std::getenv("TAEL_TEST_MODELS");
  return folder == nullptr ? "" : folder;
}

#define TAEL_SKIP_WITHOUT_MODELS()                       \
  if (::tael::tokenizer::testing::ModelFolder().empty()) \
  GTEST_SKIP() << "TAEL_TEST_MODELS names no folder with smollm2.gguf, gemma3.gguf and vocab/"

enum FileKind : int32_t {  // the numbers of the format
  kFileNormal = 1,
  kFileUnknown = 2,
  kFileControl = 3,
  kFileUserDefined = 4,
  kFileUnused = 5,
  kFileByte = 6,
};

// A vocabulary that a test writes down. Fields are what goes into the file.
struct SmallVocab {
  std::string model = "gpt2";
  std::optional<std::string> pre = "gpt-2";
  std::vector<std::string> tokens;
  std::vector<int32_t> kinds;
  std::vector<float> scores;
  std::vector<std::string> merges;
  std::map<std::string, uint32_t> ids;  // "bos_token_id" -> 1
  std::map<std::string, bool> flags;    // "add_bos_token" -> true
  std::string architecture = "llama";

  uint32_t Add(std::string token, int32_t kind = kFileNormal, float score = 0) {
    tokens.push_back(std::move(token));
    kinds.push_back(kind);
    scores.push_back(score);
    return static_cast<uint32_t>(tokens.size() - 1);
  }

  // Adds the token that the rule makes, too. Parts are in the vocabulary's own alphabet.
  uint32_t Merge(const std::string& left, const std::string& right) {
    merges.push_back(left + " " + right);
    return Add(left + right);
  }

  // Tokens 0..255 are the bytes.
  static SmallVocab ByteLevel() {
    SmallVocab vocab;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      std::string spelling;
      AppendUtf8(CharOfByte(static_cast<uint8_t>(byte)), spelling);
      vocab.Add(spelling);
    }
    return vocab;
  }

  // Tokens 0..2 are <unk>, <s> and </s>, 3..258 the bytes.
  static SmallVocab SentencePiece() {
    SmallVocab vocab;
    vocab.model = "llama";
    vocab.pre = std::nullopt;
    vocab.Add("<unk>", kFileUnknown);
    vocab.Add("<s>", kFileControl);
    vocab.Add("</s>", kFileControl);
    constexpr std::string_view kHex = "0123456789ABCDEF";
    for (size_t byte = 0; byte < 256; ++byte) {
      vocab.Add({'<', '0', 'x', kHex[byte / 16], kHex[byte % 16], '>'}, kFileByte);
    }
    vocab.ids = {{"unknown_token_id", 0}, {"bos_token_id", 1}, {"eos_token_id", 2}};
    return vocab;
  }

  gguf::Writer ToWriter() const {
    const std::string prefix = "tokenizer.ggml.";
    gguf::Writer writer;
    writer.AddString("general.architecture", architecture);
    writer.AddString(prefix + "model", model);
    if (pre) writer.AddString(prefix + "pre", *pre);
    writer.AddStringArray(prefix + "tokens", tokens);
    if (!kinds.empty()) writer.AddIntArray(prefix + "token_type", kinds);
    if (model == "llama" && !scores.empty()) writer.AddFloatArray(prefix + "scores", scores);
    if (model == "gpt2") writer.AddStringArray(prefix + "merges", merges);
    for (const auto& [key, id] : ids) writer.AddUint32(prefix + key, id);
    for (const auto& [key, flag] : flags) writer.AddBool(prefix + key, flag);
    return writer;
  }

  Result<Loaded> Load() const { return LoadWriter(ToWriter()); }

  static Result<Loaded> LoadWriter(const gguf::Writer& writer) {
    Loaded out;
    TAEL_ASSIGN_OR_RETURN(out.bytes, writer.Serialize());
    TAEL_ASSIGN_OR_RETURN(out.file, gguf::File::Parse(out.bytes));
    TAEL_ASSIGN_OR_RETURN(out.tokenizer, Tokenizer::Create(out.file));
    return out;
  }
};

inline std::vector<int> Ints(const std::vector<TokenId>& ids) {
  std::vector<int> out;
  for (const TokenId id : ids) out.push_back(ToInt(id));
  return out;
}

}  // namespace tael::tokenizer::testing
