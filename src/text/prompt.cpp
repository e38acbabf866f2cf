#include "text/prompt.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace tael::text {
namespace {

constexpr std::string_view kTemplateKey = "tokenizer.chat_template";

std::string SpellingOrEmpty(const tokenizer::Tokenizer& tokenizer, TokenId id) {
  return tokenizer.IsValid(id) ? std::string(tokenizer.Spelling(id)) : std::string();
}

}  // namespace

bool HasChatTemplate(const gguf::File& file) {
  const auto source = file.GetString(kTemplateKey);
  return source && *source && !(*source)->empty();
}

Result<std::unique_ptr<ChatTemplate>> LoadChatTemplate(const gguf::File& file,
                                                       const tokenizer::Tokenizer& tokenizer) {
  TAEL_ASSIGN_OR_RETURN(const auto source, file.GetString(kTemplateKey));
  ChatTemplateOptions options;
  options.source = std::string(source.value_or(""));
  options.bos_token = SpellingOrEmpty(tokenizer, tokenizer.bos());
  options.eos_token = SpellingOrEmpty(tokenizer, tokenizer.eos());
  options.control_spellings = tokenizer.control_spellings();
  return ChatTemplate::Create(std::move(options));
}

void AddBos(const tokenizer::Tokenizer& tokenizer, std::vector<TokenId>& ids) {
  if (!tokenizer.add_bos() || !tokenizer.IsValid(tokenizer.bos())) return;
  if (!ids.empty() && ids.front() == tokenizer.bos()) return;
  ids.insert(ids.begin(), tokenizer.bos());
}

std::vector<TokenId> EncodeChat(const tokenizer::Tokenizer& tokenizer, const RenderedChat& chat) {
  std::vector<TokenId> ids =
      tokenizer.Encode(chat.text, {.parse_control = true, .breaks = chat.breaks});
  AddBos(tokenizer, ids);
  return ids;
}

uint32_t CountSystemTokens(const tokenizer::Tokenizer& tokenizer, const ChatTemplate& chat_template,
                           std::span<const ChatMessage> messages, std::span<const TokenId> prompt) {
  if (messages.empty() || messages.front().role != "system") return 0;
  const auto chat = chat_template.Render({messages.front()}, false);
  if (!chat) return 0;  // some templates want a user
  const std::vector<TokenId> system = EncodeChat(tokenizer, *chat);
  return static_cast<uint32_t>(std::ranges::mismatch(system, prompt).in1 - system.begin());
}

}  // namespace tael::text
