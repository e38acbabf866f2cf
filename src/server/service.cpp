#include "server/service.h"

#include <utility>

#include "text/prompt.h"

namespace tael::server {

Result<std::vector<TokenId>> Service::EncodeMessages(
    std::vector<text::ChatMessage> messages) const {
  if (chat_template == nullptr) return no_template;
  if (!system_prompt.empty() && (messages.empty() || messages.front().role != "system")) {
    messages.insert(messages.begin(), {"system", system_prompt});
  }
  TAEL_ASSIGN_OR_RETURN(const auto chat, chat_template->Render(messages, true));
  return text::EncodeChat(engine.tokenizer(), chat);
}

std::vector<TokenId> Service::EncodeText(const std::string& text) const {
  std::vector<TokenId> ids = engine.tokenizer().Encode(text, {.parse_control = true});
  text::AddBos(engine.tokenizer(), ids);
  return ids;
}

}  // namespace tael::server
