#include "cli/prompt.h"

#include <utility>

namespace tael::cli {
namespace {

constexpr std::string_view kTemplateKey = "tokenizer.chat_template";

std::string SpellingOrEmpty(const tokenizer::Tokenizer& tokenizer, TokenId id) {
  return tokenizer.IsValid(id) ? std::string(tokenizer.Spelling(id)) : std::string();
}

}  // namespace

bool HasChatTemplate(const engine::Engine& engine) {
  const auto source = engine.model().file().GetString(kTemplateKey);
  return source && *source && !(*source)->empty();
}

Result<std::unique_ptr<text::ChatTemplate>> LoadChatTemplate(const engine::Engine& engine) {
  TAEL_ASSIGN_OR_RETURN(const auto source, engine.model().file().GetString(kTemplateKey));
  const tokenizer::Tokenizer& tokenizer = engine.tokenizer();
  text::ChatTemplateOptions options;
  options.source = std::string(source.value_or(""));
  options.bos_token = SpellingOrEmpty(tokenizer, tokenizer.bos());
  options.eos_token = SpellingOrEmpty(tokenizer, tokenizer.eos());
  options.control_spellings = tokenizer.control_spellings();
  return text::ChatTemplate::Create(std::move(options));
}

void AddBos(const tokenizer::Tokenizer& tokenizer, std::vector<TokenId>& ids) {
  if (!tokenizer.add_bos() || !tokenizer.IsValid(tokenizer.bos())) return;
  if (!ids.empty() && ids.front() == tokenizer.bos()) return;
  ids.insert(ids.begin(), tokenizer.bos());
}

std::vector<TokenId> EncodeChat(const tokenizer::Tokenizer& tokenizer,
                                const text::RenderedChat& chat) {
  std::vector<TokenId> ids =
      tokenizer.Encode(chat.text, {.parse_control = true, .breaks = chat.breaks});
  AddBos(tokenizer, ids);
  return ids;
}

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
