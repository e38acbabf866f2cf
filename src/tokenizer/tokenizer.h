// Text to token ids and back, from the vocabulary in a GGUF file.
//
// Two families: byte-level BPE (`tokenizer.ggml.model` = "gpt2"; the pre-tokeniser is named by
// `tokenizer.ggml.pre`) and SentencePiece BPE ("llama"). Anything else is refused by name.
//
// Control tokens ("<|im_end|>") are matched in text only where the caller asks for it: text of a
// user is text (ACCEPTANCE G3). Encode is linear in the length of the text, apart from a log
// factor. All const methods may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "gguf/file.h"

namespace tael::tokenizer {

class SpecialMatcher;
class Vocab;

enum class TokenKind : uint8_t { kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct EncodeOptions {
  bool parse_control = false;  // match control tokens in the text
  // With parse_control: sorted byte offsets into the text; a control token is not matched where one
  // of them lies strictly inside it. The chat layer marks text that came from users this way.
  std::span<const size_t> breaks = {};
};

class Tokenizer {
 public:
  // Fails: kUnsupported naming the model or pre-tokeniser; kMalformed naming the key.
  static Result<std::unique_ptr<Tokenizer>> Create(const gguf::File& file);
  virtual ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Any bytes are accepted; invalid UTF-8 becomes byte tokens. Adds no BOS.
  virtual std::vector<TokenId> Encode(std::string_view text, EncodeOptions options) const = 0;

  // The bytes that a token stands for in text. Control tokens give "" (their spelling is
  // Spelling()). Requires: IsValid(id). SentencePiece: leading space included ("_the" is " the").
  virtual std::string Piece(TokenId id) const = 0;

  // The whole text of some ids, as `tokenize --decode` prints it. A SentencePiece vocabulary that
  // adds a space prefix loses it again at the start. Invalid UTF-8 is kept as it is.
  // Requires: all ids valid.
  virtual std::string Decode(std::span<const TokenId> ids) const;

  // True where Encode() puts a space in front of the text (SentencePiece with a space prefix).
  virtual bool adds_space_prefix() const { return false; }

  size_t size() const { return num_tokens_; }
  bool IsValid(TokenId id) const { return ToInt(id) >= 0 && static_cast<size_t>(id) < num_tokens_; }
  TokenKind Kind(TokenId id) const;
  std::string_view Spelling(TokenId id) const;  // as in the vocabulary

  TokenId bos() const { return bos_; }       // -1 if none
  TokenId eos() const { return eos_; }       // -1 if none
  bool add_bos() const { return add_bos_; }  // what the file asks for; without the key: false
  // End of turn or text: generation stops here (eos, eot, and the well-known spellings).
  bool IsEndOfGeneration(TokenId id) const;
  // Id of a token by its exact spelling, -1 if absent.
  TokenId Find(std::string_view spelling) const;

  // The spelling of every token that parse_control lets match: control tokens, and user-defined
  // ones that mark structure ("<think>", "<tool_call>"). The chat layer looks for them in users'
  // text.
  const std::vector<std::string>& control_spellings() const { return control_spellings_; }

  // Heap bytes held, for the ledger.
  virtual uint64_t HeapBytes() const = 0;

 protected:
  Tokenizer();
  // Takes the vocabulary and reads the ids and flags that both families share.
  // Fails: kMalformed, naming the key.
  Status Init(const gguf::File& file, std::unique_ptr<Vocab> vocab);
  const Vocab& vocab() const { return *vocab_; }
  const SpecialMatcher& specials() const { return *specials_; }
  uint64_t BaseHeapBytes() const;

  size_t num_tokens_ = 0;
  TokenId bos_{-1};
  TokenId eos_{-1};
  bool add_bos_ = false;
  std::vector<std::string> control_spellings_;

 private:
  std::unique_ptr<Vocab> vocab_;
  std::unique_ptr<SpecialMatcher> specials_;
  std::vector<TokenId> end_of_generation_;  // sorted
};

// Where the ids of a Detokenizer stand: after other text (an answer after its prompt), or at the
// start of one, where a SentencePiece vocabulary's added space goes away again as in Decode().
enum class TextStart : uint8_t { kContinues, kBegins };

// Turns tokens into text that is valid UTF-8 at every step: bytes of an unfinished character wait
// for the next token. One thread at a time; the tokenizer must outlive it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, TextStart start = TextStart::kContinues)
      : tokenizer_(&tokenizer), at_start_(start == TextStart::kBegins) {}

  // The text that became complete with this token. Invalid sequences become U+FFFD.
  std::string Push(TokenId id);
  // What is left: an unfinished tail becomes one U+FFFD.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
  bool at_start_;
};

}  // namespace tael::tokenizer
