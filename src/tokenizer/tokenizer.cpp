// What both families share: see tokenizer.h.
#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "tokenizer/bpe.h"
#include "tokenizer/special.h"
#include "tokenizer/spm.h"
#include "tokenizer/vocab.h"

namespace tael::tokenizer {
namespace {

constexpr const char* kModelKey = "tokenizer.ggml.model";
constexpr const char* kBosKey = "tokenizer.ggml.bos_token_id";
constexpr const char* kEosKey = "tokenizer.ggml.eos_token_id";
constexpr const char* kEotKey = "tokenizer.ggml.eot_token_id";
constexpr const char* kEomKey = "tokenizer.ggml.eom_token_id";
constexpr const char* kAddBosKey = "tokenizer.ggml.add_bos_token";

// Ends of a turn or of text, by the spelling that only they have: many files name one of several.
// "</s>" is not here: it is a tag of HTML in Gemma's vocabulary, and where it ends text the file
// says so.
constexpr std::string_view kEndSpellings[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<|EOT|>",
    "<end_of_utterance>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
};

// The id under a key, -1 without the key.
Result<TokenId> ReadTokenId(const gguf::File& file, const char* key, size_t num_tokens) {
  TAEL_ASSIGN_OR_RETURN(const std::optional<uint64_t> id, file.GetUint(key));
  if (!id) return TokenId{-1};
  if (*id >= num_tokens) {
    return MalformedKey(key, std::to_string(*id) + " is no token; the vocabulary has " +
                                 std::to_string(num_tokens));
  }
  return TokenId{static_cast<int32_t>(*id)};
}

uint64_t StringBytes(const std::vector<std::string>& strings) {
  uint64_t bytes = strings.capacity() * sizeof(std::string);
  const size_t inline_capacity = std::string().capacity();
  for (const std::string& s : strings) {
    if (s.capacity() > inline_capacity) bytes += s.capacity() + 1;
  }
  return bytes;
}

}  // namespace

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::Create(const gguf::File& file) {
  TAEL_ASSIGN_OR_RETURN(const auto model, file.GetString(kModelKey));
  if (!model) return MalformedKey(kModelKey, "missing");
  if (*model != "gpt2" && *model != "llama") {
    return Error{ErrorCode::kUnsupported, "unknown tokenizer model",
                 std::string(kModelKey) + " is \"" + std::string(*model) +
                     "\"; this build knows \"gpt2\" and \"llama\""};
  }
  TAEL_ASSIGN_OR_RETURN(std::unique_ptr<Vocab> vocab, Vocab::Load(file));
  if (*model == "gpt2") return BpeTokenizer::Create(file, std::move(vocab));
  return SpmTokenizer::Create(file, std::move(vocab));
}

Status Tokenizer::Init(const gguf::File& file, std::unique_ptr<Vocab> vocab) {
  vocab_ = std::move(vocab);
  num_tokens_ = vocab_->size();
  TAEL_ASSIGN_OR_RETURN(bos_, ReadTokenId(file, kBosKey, num_tokens_));
  TAEL_ASSIGN_OR_RETURN(eos_, ReadTokenId(file, kEosKey, num_tokens_));
  TAEL_ASSIGN_OR_RETURN(const TokenId eot, ReadTokenId(file, kEotKey, num_tokens_));
  TAEL_ASSIGN_OR_RETURN(const TokenId eom, ReadTokenId(file, kEomKey, num_tokens_));
  TAEL_ASSIGN_OR_RETURN(const auto add_bos, file.GetBool(kAddBosKey));
  add_bos_ = add_bos.value_or(false);
  if (add_bos_ && ToInt(bos_) < 0)
    return MalformedKey(kBosKey, "missing, but the file asks for it");

  for (const TokenId id : {eos_, eot, eom}) {
    if (ToInt(id) >= 0) end_of_generation_.push_back(id);
  }
  for (const std::string_view spelling : kEndSpellings) {
    const TokenId id = Find(spelling);
    if (ToInt(id) < 0) continue;
    end_of_generation_.push_back(id);
    // Some converters write it as a plain token. Then text could make it, and templates could not.
    vocab_->SetKind(static_cast<uint32_t>(ToInt(id)), TokenKind::kControl);
  }
  std::sort(end_of_generation_.begin(), end_of_generation_.end());
  end_of_generation_.erase(std::unique(end_of_generation_.begin(), end_of_generation_.end()),
                           end_of_generation_.end());

  specials_ = std::make_unique<SpecialMatcher>(*vocab_);
  for (uint32_t id = 0; id < num_tokens_; ++id) {
    const std::string_view spelling = vocab_->Spelling(id);
    if (NeedsPermission(*vocab_, id) && !spelling.empty())
      control_spellings_.emplace_back(spelling);
  }
  control_spellings_.shrink_to_fit();
  return {};
}

TokenKind Tokenizer::Kind(TokenId id) const {
  return vocab_->Kind(static_cast<uint32_t>(ToInt(id)));
}

std::string_view Tokenizer::Spelling(TokenId id) const {
  return vocab_->Spelling(static_cast<uint32_t>(ToInt(id)));
}

bool Tokenizer::IsEndOfGeneration(TokenId id) const {
  return std::binary_search(end_of_generation_.begin(), end_of_generation_.end(), id);
}

TokenId Tokenizer::Find(std::string_view spelling) const {
  const uint32_t id = vocab_->Find(spelling);
  return id == kNoToken ? TokenId{-1} : TokenId{static_cast<int32_t>(id)};
}

std::string Tokenizer::Decode(std::span<const TokenId> ids) const {
  std::string out;
  bool at_start = adds_space_prefix();
  for (const TokenId id : ids) {
    const std::string piece = Piece(id);
    if (piece.empty()) continue;
    const bool strip = at_start && piece.front() == ' ';
    out.append(piece, strip ? 1 : 0);
    at_start = false;
  }
  return out;
}

uint64_t Tokenizer::BaseHeapBytes() const {
  return vocab_->HeapBytes() + specials_->HeapBytes() + StringBytes(control_spellings_) +
         end_of_generation_.capacity() * sizeof(TokenId);
}

}  // namespace tael::tokenizer
