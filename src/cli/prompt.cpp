#include "cli/prompt.h"

#include <string>

namespace tael::cli {

Status CheckIds(const tokenizer::Tokenizer& tokenizer, std::span<const TokenId> ids) {
  for (TokenId id : ids) {
    if (tokenizer.IsValid(id)) continue;
    return Error{ErrorCode::kInvalidArgument, "token id outside the vocabulary",
                 std::to_string(ToInt(id)) + ", the model has " + std::to_string(tokenizer.size()) +
                     " tokens"};
  }
  return {};
}

}  // namespace tael::cli
