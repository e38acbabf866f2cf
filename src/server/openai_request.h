// What a client asks for in a call of /v1/chat/completions or /v1/completions, as plain values.
//
// A field that would change the answer in a way that is not built (tools, constrained output,
// biases, images) is refused by name, never ignored, and so is a field that is not known. A value
// that asks for nothing (null, [], "tool_choice": "none", "response_format": {"type": "text"}) is
// taken.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "engine/request.h"
#include "server/api_error.h"
#include "server/json.h"
#include "text/chat_template.h"

namespace tael::server {

enum class Api : uint8_t { kChat, kText };

struct GenerateCall {
  Api api = Api::kChat;
  std::vector<text::ChatMessage> messages;         // kChat: at least one
  std::string prompt;                              // kText
  std::optional<std::vector<TokenId>> prompt_ids;  // kText: instead of it; not checked
  // Without max_tokens and, where there is no "seed", without a seed.
  engine::GenerateOptions options;
  std::optional<uint32_t> max_tokens;  // none: what the context has left
  std::optional<uint64_t> seed;
  uint32_t num_choices = 1;
  engine::Priority priority =
      engine::Priority::kInteractive;  // "service_tier": "flex" is background
  bool stream = false;
  bool include_usage = false;  // a last chunk with it

  const char* prompt_field() const { return api == Api::kChat ? "messages" : "prompt"; }
};

// Fills `call`, or says what is wrong.
std::optional<ApiError> ParseGenerateCall(const ClientJson& body, Api api, GenerateCall& call);

// "messages", alone: for routes that only want to know what they become.
std::optional<ApiError> ParseMessages(const ClientJson& messages,
                                      std::vector<text::ChatMessage>& out);

// An array of token ids: kInvalid values are refused, the vocabulary is not looked at.
std::optional<ApiError> ParseTokens(const ClientJson& ids, const std::string& field,
                                    std::vector<TokenId>& out);

}  // namespace tael::server
