// The tokens of a GGUF file: spellings, kinds, scores, and look-up by spelling.
//
// Spellings and scores stay in the file's bytes, which must outlive the vocabulary; the heap holds
// 8 bytes per token and a hash table of ids (4 bytes a slot, at most two thirds full). Refused,
// naming the key: arrays of a wrong type or count, unknown kinds, spellings that come twice or are
// longer than kMaxTokenBytes, and spellings chosen to collide in the hash table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/file.h"
#include "tokenizer/tokenizer.h"

namespace tael::tokenizer {

inline constexpr const char* kTokensKey = "tokenizer.ggml.tokens";
inline constexpr const char* kTokenTypeKey = "tokenizer.ggml.token_type";
inline constexpr const char* kScoresKey = "tokenizer.ggml.scores";
inline constexpr const char* kMergesKey = "tokenizer.ggml.merges";

inline constexpr uint32_t kNoToken = UINT32_MAX;
// Real vocabularies stay below 1 KiB; the limit keeps lengths in 16 bits.
inline constexpr size_t kMaxTokenBytes = UINT16_MAX;

// kMalformed, naming the key.
Error MalformedKey(std::string_view key, std::string_view problem);

// The array of a key, checked to hold elements of one of the types; null if the key is absent.
// Fails: kMalformed, naming the key.
Result<const gguf::Value*> FindArray(const gguf::File& file, std::string_view key,
                                     std::initializer_list<gguf::ValueType> types);

class Vocab {
 public:
  // Fails: kMalformed, naming the key.
  static Result<std::unique_ptr<Vocab>> Load(const gguf::File& file);

  size_t size() const { return tokens_.size(); }
  size_t max_token_bytes() const { return max_token_bytes_; }
  bool has_scores() const { return !scores_.empty(); }

  // Requires for all three: id < size().
  std::string_view Spelling(uint32_t id) const {
    return {reinterpret_cast<const char*>(strings_.data()) + tokens_[id].offset,
            tokens_[id].length};
  }
  TokenKind Kind(uint32_t id) const { return tokens_[id].kind; }
  float Score(uint32_t id) const {  // 0 without scores
    float score = 0;
    if (has_scores()) std::memcpy(&score, &scores_[id * sizeof score], sizeof score);
    return score;
  }

  // Corrects what a file says about a token. Requires: id < size().
  void SetKind(uint32_t id, TokenKind kind) { tokens_[id].kind = kind; }

  // Id of the token with this spelling, kNoToken if there is none. Empty spellings are not found.
  uint32_t Find(std::string_view spelling) const;

  uint64_t HeapBytes() const;

 private:
  struct Token {          // together, because look-ups touch all of it: one cache miss
    uint32_t offset = 0;  // of the spelling in strings_
    uint16_t length = 0;
    TokenKind kind = TokenKind::kNormal;
  };

  Status LoadTokens(const gguf::File& file);
  Status LoadKinds(const gguf::File& file);
  Status LoadScores(const gguf::File& file);
  Status BuildIndex();

  std::span<const std::byte> strings_;  // the file's array of strings
  std::span<const std::byte> scores_;   // float32 each, unaligned
  std::vector<Token> tokens_;
  std::vector<uint32_t> slots_;  // open addressing: ids, kNoToken where empty; a power of two
  size_t max_token_bytes_ = 0;
};

}  // namespace tael::tokenizer
