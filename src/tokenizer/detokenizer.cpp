// Incremental text from tokens: see Detokenizer in tokenizer.h.
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

namespace tael::tokenizer {

std::string Detokenizer::Push(TokenId id) {
  std::string piece = tokenizer_->Piece(id);
  if (at_start_ && !piece.empty()) {
    if (tokenizer_->adds_space_prefix() && piece.front() == ' ') piece.erase(0, 1);
    at_start_ = false;
  }
  pending_ += piece;
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const size_t valid = ValidUtf8Prefix(rest);
    out += rest.substr(0, valid);
    rest.remove_prefix(valid);
    if (rest.empty()) break;
    const Utf8Char c = DecodeUtf8(rest);
    if (c.status == Utf8Status::kIncomplete) break;
    out += kReplacementCharacter;
    rest.remove_prefix(c.length);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

std::string Detokenizer::Finish() {
  if (pending_.empty()) return {};
  pending_.clear();
  return std::string(kReplacementCharacter);
}

}  // namespace tael::tokenizer
