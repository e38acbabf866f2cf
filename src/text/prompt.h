// From what a user wrote to the ids that a model is fed: chat template, control tokens, BOS.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "gguf/file.h"
#include "text/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace tael::text {

// Ends an answer where a conversation is written in the built-in plain form: the next turn.
inline constexpr const char* kPlainStop = "\nuser:";

// True when the model file carries a chat template.
bool HasChatTemplate(const gguf::File& file);

// The file's template, or the built-in plain form where it has none.
// Fails: kMalformed, kUnsupported (a build without a template engine).
Result<std::unique_ptr<ChatTemplate>> LoadChatTemplate(const gguf::File& file,
                                                       const tokenizer::Tokenizer& tokenizer);

// Puts BOS in front where the file asks for it and the ids do not begin with it already.
void AddBos(const tokenizer::Tokenizer& tokenizer, std::vector<TokenId>& ids);

// A rendered conversation as ids: control tokens only where the template put them.
std::vector<TokenId> EncodeChat(const tokenizer::Tokenizer& tokenizer, const RenderedChat& chat);

// How many of a prompt's first ids are its system message: what the template makes of that alone
// begins every prompt that has it. 0 without one, or where it cannot be rendered alone.
uint32_t CountSystemTokens(const tokenizer::Tokenizer& tokenizer, const ChatTemplate& chat_template,
                           std::span<const ChatMessage> messages, std::span<const TokenId> prompt);

}  // namespace tael::text
