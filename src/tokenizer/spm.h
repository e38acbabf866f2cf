// SentencePiece BPE ("llama"): spaces are written as U+2581, characters join by the score of what
// they make, and characters that the vocabulary lacks become their bytes.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "tokenizer/vocab.h"

namespace tael::tokenizer {

class SpmTokenizer final : public Tokenizer {
 public:
  // Fails: kMalformed, naming the key.
  static Result<std::unique_ptr<Tokenizer>> Create(const gguf::File& file,
                                                   std::unique_ptr<Vocab> vocab);

  std::vector<TokenId> Encode(std::string_view text, EncodeOptions options) const override;
  std::string Piece(TokenId id) const override;
  bool adds_space_prefix() const override { return adds_space_prefix_; }
  uint64_t HeapBytes() const override;

 private:
  struct Session;  // scratch memory of one Encode()

  SpmTokenizer() = default;
  Status ReadOptions(const gguf::File& file);
  Status FindByteTokens();

  void EncodeText(std::string_view text, bool after_special, Session& session) const;
  void MakeSymbols(Session& session) const;
  void Join(Session& session) const;
  void PushPair(uint32_t left, Session& session) const;
  void Emit(std::string_view piece, Session& session) const;
  uint32_t FindPiece(std::string_view piece) const;
  bool StripsAfter(uint32_t id) const;

  std::array<uint32_t, 256> byte_tokens_{};  // kNoToken where the vocabulary has none
  uint32_t unknown_ = kNoToken;
  bool adds_space_prefix_ = true;
  bool strips_after_markers_ = false;  // Phi-3: white space after "<|user|>" is not text
};

}  // namespace tael::tokenizer
