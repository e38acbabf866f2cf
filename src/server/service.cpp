#include "server/service.h"

#include "text/prompt.h"

namespace tael::server {

namespace {

// Shown in the ledger while it is used. The account fits the largest body. What is larger is
// encoded without: the server's own system prompt before anybody connects, and with the largest
// bodies.
Charge ChargeFor(const Service& service, uint64_t text_bytes) {
  Charge charge = service.encoding_account->NewCharge();
  (void)charge.TryResizeTo(kBytesPerEncodedByte * text_bytes).has_value();
  return charge;
}

}  // namespace

Result<EncodedPrompt> Service::EncodeMessages(std::vector<text::ChatMessage> messages) const {
  if (chat_template == nullptr) return no_template;
  if (!system_prompt.empty() && (messages.empty() || messages.front().role != "system")) {
    messages.insert(messages.begin(), {"system", system_prompt});
  }
  uint64_t num_bytes = 0;
  for (const text::ChatMessage& message : messages) num_bytes += message.content.size();
  const std::lock_guard lock(encoding);
  const Charge charge = ChargeFor(*this, num_bytes);
  TAEL_ASSIGN_OR_RETURN(const auto chat, chat_template->Render(messages, true));
  EncodedPrompt out{.ids = text::EncodeChat(engine.tokenizer(), chat)};
  if (engine.plan().is_endless()) {
    out.system_tokens =
        text::CountSystemTokens(engine.tokenizer(), *chat_template, messages, out.ids);
  }
  return out;
}

std::vector<TokenId> Service::EncodeText(const std::string& text) const {
  std::vector<TokenId> ids = Encode(text, true);
  text::AddBos(engine.tokenizer(), ids);
  return ids;
}

std::vector<TokenId> Service::Encode(const std::string& text, bool parse_control) const {
  const std::lock_guard lock(encoding);
  const Charge charge = ChargeFor(*this, text.size());
  return engine.tokenizer().Encode(text, {.parse_control = parse_control});
}

}  // namespace tael::server
