// Chat templates: the Jinja text that a GGUF file carries, rendered by minijinja.
//
// What a user wrote stays text: where the content of a message spells a control token, or could
// complete one with its neighbours, Render() returns break positions, and the tokenizer matches no
// control token across them (ACCEPTANCE G3). One exception: "<think>" and "</think>" in an
// assistant's message are the model's own marks, and stay whole where the template looks for them.
//
// It runs no template without a bound: work, memory and recursion are limited, other files are out
// of reach.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tael::text {

struct ChatMessage {
  std::string role;     // "system", "user", "assistant", "tool", "developer" or "function"
  std::string content;  // any bytes; those that are not UTF-8 become U+FFFD
};

struct RenderedChat {
  std::string text;
  std::vector<size_t> breaks;  // sorted byte offsets into `text`: EncodeOptions::breaks
};

struct ChatTemplateOptions {
  std::string source;     // the template; empty: a built-in plain form is used
  std::string bos_token;  // spellings, "" if there is none
  std::string eos_token;
  std::vector<std::string> control_spellings;
};

class ChatTemplate {
 public:
  // Fails: kMalformed with the template's line; kUnsupported when this build has no template
  // engine.
  static Result<std::unique_ptr<ChatTemplate>> Create(ChatTemplateOptions options);
  ~ChatTemplate();

  // Fails: kInvalidArgument for an unknown role, and with the template's own words when it raises
  // (an order of roles that the model was not trained on, say); kMalformed when the template cannot
  // be rendered. May be called from any thread.
  Result<RenderedChat> Render(const std::vector<ChatMessage>& messages,
                              bool add_generation_prompt) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tael::text
