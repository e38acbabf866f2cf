// Byte-level BPE ("gpt2"): text is cut into words, each byte of a word is a token, and pairs of
// tokens join in the order of the merge rules.
//
// Invalid UTF-8 is kept: its bytes become their own tokens, unmerged; one that the vocabulary has
// no token for becomes U+FFFD.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/merges.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocab.h"

namespace tael::tokenizer {

class BpeTokenizer final : public Tokenizer {
 public:
  // Fails: kUnsupported naming the pre-tokeniser; kMalformed naming the key.
  static Result<std::unique_ptr<Tokenizer>> Create(const gguf::File& file,
                                                   std::unique_ptr<Vocab> vocab);

  std::vector<TokenId> Encode(std::string_view text, EncodeOptions options) const override;
  std::string Piece(TokenId id) const override;
  uint64_t HeapBytes() const override;

 private:
  struct Session;  // scratch memory of one Encode()

  explicit BpeTokenizer(PreTokenizer pre) : pre_(std::move(pre)) {}
  void FindByteTokens();

  void EncodeText(std::string_view text, Session& session) const;
  void EncodeValid(std::string_view text, Session& session) const;
  void EncodeWord(std::string_view word, Session& session) const;
  void EncodeInvalidByte(uint8_t byte, Session& session) const;
  uint32_t FindWord(std::string_view word, Session& session) const;
  void Join(Session& session) const;
  void PushPair(uint32_t left, Session& session) const;

  PreTokenizer pre_;
  MergeTable merges_;
  std::array<uint32_t, 256> byte_tokens_{};  // kNoToken where the vocabulary has none
  std::vector<TokenId> replacement_;         // U+FFFD, which stands for such a byte
};

}  // namespace tael::tokenizer
