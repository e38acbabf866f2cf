// See vocab.h.
#include "tokenizer/vocab.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "tokenizer/hash.h"

namespace tael::tokenizer {
namespace {

using gguf::Value;
using gguf::ValueType;

constexpr size_t kMaxTokens = INT32_MAX;  // TokenId is 32 bits, signed

// The format's numbers for kinds of tokens.
std::optional<TokenKind> KindFromFile(uint32_t value) {
  switch (value) {
    case 0:  // "undefined": written by old converters for plain tokens
    case 1:
      return TokenKind::kNormal;
    case 2:
      return TokenKind::kUnknown;
    case 3:
      return TokenKind::kControl;
    case 4:
      return TokenKind::kUserDefined;
    case 5:
      return TokenKind::kUnused;
    case 6:
      return TokenKind::kByte;
    default:
      return std::nullopt;
  }
}

std::string CountMismatch(uint64_t count, size_t num_tokens) {
  return std::to_string(count) + " entries for " + std::to_string(num_tokens) + " tokens";
}

}  // namespace

Error MalformedKey(std::string_view key, std::string_view problem) {
  return {ErrorCode::kMalformed, "the vocabulary is malformed",
          std::string(key) + ": " + std::string(problem)};
}

Result<const Value*> FindArray(const gguf::File& file, std::string_view key,
                               std::initializer_list<ValueType> types) {
  const Value* value = file.Find(key);
  if (value == nullptr) return value;
  if (value->type != ValueType::kArray ||
      std::find(types.begin(), types.end(), value->element_type) == types.end()) {
    const ValueType got = value->type == ValueType::kArray ? value->element_type : value->type;
    return MalformedKey(key, "must be an array of " + std::string(ToString(*types.begin())) +
                                 ", not of " + std::string(ToString(got)));
  }
  return value;
}

Result<std::unique_ptr<Vocab>> Vocab::Load(const gguf::File& file) {
  auto vocab = std::make_unique<Vocab>();
  TAEL_RETURN_IF_ERROR(vocab->LoadTokens(file));
  TAEL_RETURN_IF_ERROR(vocab->LoadKinds(file));
  TAEL_RETURN_IF_ERROR(vocab->LoadScores(file));
  TAEL_RETURN_IF_ERROR(vocab->BuildIndex());
  return vocab;
}

Status Vocab::LoadTokens(const gguf::File& file) {
  TAEL_ASSIGN_OR_RETURN(const Value* tokens, FindArray(file, kTokensKey, {ValueType::kString}));
  if (tokens == nullptr) return MalformedKey(kTokensKey, "missing");
  if (tokens->count == 0) return MalformedKey(kTokensKey, "holds no tokens");
  if (tokens->count > kMaxTokens || tokens->data.size() > UINT32_MAX) {
    return MalformedKey(kTokensKey, "more than 2^31 tokens or 4 GiB of them");
  }
  strings_ = tokens->data;
  tokens_.reserve(tokens->count);
  const char* base = reinterpret_cast<const char*>(strings_.data());
  gguf::StringCursor cursor(strings_);
  for (uint64_t id = 0; id < tokens->count; ++id) {
    const std::string_view spelling = cursor.Next();
    if (spelling.size() > kMaxTokenBytes) {
      return MalformedKey(kTokensKey, "token " + std::to_string(id) + " has " +
                                          std::to_string(spelling.size()) +
                                          " bytes, the limit is " + std::to_string(kMaxTokenBytes));
    }
    tokens_.push_back({.offset = static_cast<uint32_t>(spelling.data() - base),
                       .length = static_cast<uint16_t>(spelling.size())});
    max_token_bytes_ = std::max(max_token_bytes_, spelling.size());
  }
  return {};
}

Status Vocab::LoadKinds(const gguf::File& file) {
  TAEL_ASSIGN_OR_RETURN(const Value* kinds,
                        FindArray(file, kTokenTypeKey, {ValueType::kInt32, ValueType::kUint32}));
  if (kinds == nullptr) return {};
  if (kinds->count != size()) {
    return MalformedKey(kTokenTypeKey, CountMismatch(kinds->count, size()));
  }
  for (size_t id = 0; id < size(); ++id) {
    uint32_t value = 0;
    std::memcpy(&value, &kinds->data[id * sizeof value], sizeof value);
    const std::optional<TokenKind> kind = KindFromFile(value);
    if (!kind) {
      return MalformedKey(kTokenTypeKey, "token " + std::to_string(id) + " is of unknown type " +
                                             std::to_string(value));
    }
    tokens_[id].kind = *kind;
  }
  return {};
}

Status Vocab::LoadScores(const gguf::File& file) {
  TAEL_ASSIGN_OR_RETURN(const Value* scores, FindArray(file, kScoresKey, {ValueType::kFloat32}));
  if (scores == nullptr) return {};
  if (scores->count != size()) {
    return MalformedKey(kScoresKey, CountMismatch(scores->count, size()));
  }
  scores_ = scores->data;
  for (uint32_t id = 0; id < size(); ++id) {
    // Merging orders by score, and NaN has no place in an order.
    if (std::isnan(Score(id))) {
      return MalformedKey(kScoresKey, "the score of token " + std::to_string(id) + " is NaN");
    }
  }
  return {};
}

Status Vocab::BuildIndex() {
  slots_.assign(TableSlots(size()), kNoToken);
  const size_t mask = slots_.size() - 1;
  uint64_t probes = ProbeBudget(size());
  for (uint32_t id = 0; id < size(); ++id) {
    const std::string_view spelling = Spelling(id);
    if (spelling.empty()) continue;  // some files pad with them
    size_t slot = HashBytes(spelling) & mask;
    for (; slots_[slot] != kNoToken; slot = (slot + 1) & mask) {
      if (Spelling(slots_[slot]) == spelling) {
        return MalformedKey(kTokensKey, "tokens " + std::to_string(slots_[slot]) + " and " +
                                            std::to_string(id) + " have the same spelling");
      }
      if (--probes == 0) return MalformedKey(kTokensKey, "spellings collide by design");
    }
    slots_[slot] = id;
  }
  return {};
}

uint32_t Vocab::Find(std::string_view spelling) const {
  if (spelling.empty() || spelling.size() > max_token_bytes_) return kNoToken;
  const size_t mask = slots_.size() - 1;
  for (size_t slot = HashBytes(spelling) & mask; slots_[slot] != kNoToken;
       slot = (slot + 1) & mask) {
    if (Spelling(slots_[slot]) == spelling) return slots_[slot];
  }
  return kNoToken;
}

uint64_t Vocab::HeapBytes() const {
  return sizeof *this + tokens_.capacity() * sizeof(Token) + slots_.capacity() * sizeof(uint32_t);
}

}  // namespace tael::tokenizer
