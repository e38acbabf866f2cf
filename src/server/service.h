// What the routes work with: one loaded model, its scheduler, and what the server counts.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/scheduler.h"
#include "server/memory_account.h"
#include "server/metrics.h"
#include "server/openai_request.h"
#include "text/chat_template.h"

namespace tael::server {

// Measured with the worst texts: digits in a SentencePiece vocabulary take 58 bytes each.
inline constexpr uint64_t kBytesPerEncodedByte = 64;

// A prompt as the model reads it.
struct EncodedPrompt {
  std::vector<TokenId> ids;
  // Of the ids, first: the system prompt, where there is a window that could drop it.
  uint32_t system_tokens = 0;
};

struct Service {
  Service(engine::Engine& e, engine::Scheduler& s) : engine(e), scheduler(s) {}

  // The ids of a conversation, with the server's own system prompt in front of one that has none,
  // ready for the assistant's next words. Fails: as ChatTemplate::Render(); kUnsupported in a build
  // that renders no templates.
  Result<EncodedPrompt> EncodeMessages(std::vector<text::ChatMessage> messages) const;
  // The ids of a raw prompt: control tokens parsed, BOS where the file says so.
  std::vector<TokenId> EncodeText(const std::string& text) const;
  // Without BOS.
  std::vector<TokenId> Encode(const std::string& text, bool parse_control) const;

  engine::Engine& engine;
  engine::Scheduler& scheduler;
  std::string model_name;
  std::unique_ptr<text::ChatTemplate> chat_template;  // null: see no_template
  Error no_template;
  bool has_own_template = false;  // false: the built-in plain form
  std::string system_prompt;      // "": none
  // Empty, or why the model is slower than it could be (memory pressure).
  std::function<std::string()> why_degraded;
  // What rendering and tokenising take, kBytesPerEncodedByte for each byte of text: planned for one
  // text of the largest size, so that one text is encoded at a time.
  std::unique_ptr<MemoryAccount> encoding_account;
  mutable std::mutex encoding;
  const int64_t started = std::chrono::duration_cast<std::chrono::seconds>(
                              std::chrono::system_clock::now().time_since_epoch())
                              .count();
  Metrics metrics;
};

}  // namespace tael::server
