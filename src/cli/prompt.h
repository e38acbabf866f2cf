// From what a user wrote to the ids that a model is fed: chat template, control tokens, BOS.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "engine/engine.h"
#include "text/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace tael::cli {

// True when the file carries a chat template.
bool HasChatTemplate(const engine::Engine& engine);

// The file's template, or the built-in plain form where it has none.
// Fails: kMalformed, kUnsupported (a build without a template engine).
Result<std::unique_ptr<text::ChatTemplate>> LoadChatTemplate(const engine::Engine& engine);

// Puts BOS in front where the file asks for it and the ids do not begin with it already.
void AddBos(const tokenizer::Tokenizer& tokenizer, std::vector<TokenId>& ids);

// A rendered conversation as ids: control tokens only where the template put them.
std::vector<TokenId> EncodeChat(const tokenizer::Tokenizer& tokenizer,
                                const text::RenderedChat& chat);

// Fails: kInvalidArgument, naming the id and the size of the vocabulary.
Status CheckIds(const tokenizer::Tokenizer& tokenizer, std::span<const TokenId> ids);

}  // namespace tael::cli
