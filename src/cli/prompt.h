// What text/prompt.h does, for the model that is loaded; and ids that users give.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "engine/engine.h"
#include "text/prompt.h"
#include "tokenizer/tokenizer.h"

namespace tael::cli {

using text::AddBos;
using text::EncodeChat;

inline bool HasChatTemplate(const engine::Engine& engine) {
  return text::HasChatTemplate(engine.model().file());
}

inline Result<std::unique_ptr<text::ChatTemplate>> LoadChatTemplate(const engine::Engine& engine) {
  return text::LoadChatTemplate(engine.model().file(), engine.tokenizer());
}

// Fails: kInvalidArgument, naming the id and the size of the vocabulary.
Status CheckIds(const tokenizer::Tokenizer& tokenizer, std::span<const TokenId> ids);

}  // namespace tael::cli
