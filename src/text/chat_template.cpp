#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "text/break_markers.h"
#include "text/jinja_engine.h"
#include "text/spelling_set.h"
#include "text/utf8.h"

namespace tael::text {
namespace {

// What a render may do: a template of a real model needs about 100 instructions per message and a
// few passes over its bytes (64 per unit of fuel).
constexpr uint64_t kBaseFuel = 200'000;
constexpr uint64_t kFuelPerMessage = 400;
constexpr uint64_t kBytesPerFuel = 2;

// A role is set beside the template's own text ("<|" + role + "|>"), so it cannot be anything.
constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};

Status CheckRoles(const std::vector<ChatMessage>& messages) {
  for (const ChatMessage& message : messages) {
    if (std::find(kRoles.begin(), kRoles.end(), message.role) == kRoles.end()) {
      return Error{ErrorCode::kInvalidArgument, "unknown role",
                   "\"" + ReplaceInvalidUtf8(message.role.substr(0, 64)) +
                       "\"; use system, user, assistant or tool"};
    }
  }
  return {};
}

// Used when the file has no template: what base models have seen most of.
std::string RenderPlain(const std::vector<ChatMessage>& messages, bool add_generation_prompt) {
  std::string text;
  for (const ChatMessage& message : messages) {
    text += message.role + ": " + message.content + "\n";
  }
  if (add_generation_prompt) text += "assistant:";
  return text;
}

bool HaveEqualContent(const ChatMessage& a, const ChatMessage& b) { return a.content == b.content; }

uint64_t FuelFor(const std::vector<ChatMessage>& messages) {
  uint64_t bytes = 0;
  for (const ChatMessage& message : messages) bytes += message.content.size();
  return kBaseFuel + kFuelPerMessage * messages.size() + bytes / kBytesPerFuel;
}

// The reasoning marks that the template itself looks for in earlier answers. They are the model's
// own words there, and a template that cannot see them would keep all reasoning for ever.
std::vector<std::string> ReasoningMarks(const ChatTemplateOptions& options) {
  std::vector<std::string> marks;
  for (const std::string& spelling : options.control_spellings) {
    const bool is_reasoning = spelling == "<think>" || spelling == "</think>";
    if (is_reasoning && options.source.find(spelling) != std::string::npos) {
      marks.push_back(spelling);
    }
  }
  return marks;
}

}  // namespace

struct ChatTemplate::Impl {
  ChatTemplateOptions options;
  SpellingSet spellings;
  std::vector<std::string> reasoning_marks;
  std::optional<JinjaEngine> engine;  // absent: the plain form

  std::vector<ChatMessage> Marked(const std::vector<ChatMessage>& messages, Marking marking,
                                  std::string_view marker) const;
  Result<std::string> RenderText(const std::vector<ChatMessage>& messages,
                                 bool add_generation_prompt) const;
};

std::vector<ChatMessage> ChatTemplate::Impl::Marked(const std::vector<ChatMessage>& messages,
                                                    Marking marking,
                                                    std::string_view marker) const {
  std::vector<ChatMessage> marked;
  marked.reserve(messages.size());
  for (const ChatMessage& message : messages) {
    std::span<const std::string> exempt;
    if (message.role == "assistant") exempt = reasoning_marks;
    marked.push_back(
        {message.role, MarkContent(message.content, spellings, exempt, marking, marker)});
  }
  return marked;
}

Result<std::string> ChatTemplate::Impl::RenderText(const std::vector<ChatMessage>& messages,
                                                   bool add_generation_prompt) const {
  if (!engine) return RenderPlain(messages, add_generation_prompt);
  // `tools` and `documents` are none, not undefined: templates ask both ways.
  nlohmann::ordered_json context = {{"messages", nlohmann::ordered_json::array()},
                                    {"tools", nullptr},
                                    {"documents", nullptr},
                                    {"add_generation_prompt", add_generation_prompt},
                                    {"bos_token", options.bos_token},
                                    {"eos_token", options.eos_token}};
  for (const ChatMessage& message : messages) {
    context["messages"].push_back({{"role", message.role}, {"content", message.content}});
  }
  const std::string json =
      context.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return engine->Render(json, FuelFor(messages));
}

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(ChatTemplateOptions options) {
  auto impl = std::make_unique<Impl>();
  if (!options.source.empty()) {
    TAEL_ASSIGN_OR_RETURN(impl->engine, JinjaEngine::Create(options.source));
  }
  impl->reasoning_marks = ReasoningMarks(options);
  impl->spellings = SpellingSet(options.control_spellings);
  impl->options = std::move(options);
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(impl)));
}

Result<RenderedChat> ChatTemplate::Render(const std::vector<ChatMessage>& messages,
                                          bool add_generation_prompt) const {
  TAEL_RETURN_IF_ERROR(CheckRoles(messages));
  std::vector<ChatMessage> valid = messages;
  std::vector<std::string_view> texts = {impl_->options.source, impl_->options.bos_token,
                                         impl_->options.eos_token};
  for (ChatMessage& message : valid) {
    message.content = ReplaceInvalidUtf8(message.content);
    texts.push_back(message.content);
  }
  const std::optional<std::string> marker = ChooseMarker(texts);
  if (!marker) {
    return Error{ErrorCode::kInvalidArgument, "the messages use every noncharacter",
                 "U+FDD0 to U+FDEF; take one out"};
  }

  const std::vector<ChatMessage> marked = impl_->Marked(valid, Marking::kSpellings, *marker);
  TAEL_ASSIGN_OR_RETURN(const std::string text, impl_->RenderText(marked, add_generation_prompt));
  RenderedChat chat = TakeMarkers(text, *marker);

  // A template may delete or join parts of a message ("replace", "trim") and so make a spelling
  // that was none before. Breaks at every edge hold against that; when they stop no more control
  // tokens than the few do, the few were enough.
  const std::vector<ChatMessage> strict = impl_->Marked(valid, Marking::kEveryEdge, *marker);
  if (std::equal(strict.begin(), strict.end(), marked.begin(), HaveEqualContent)) return chat;
  TAEL_ASSIGN_OR_RETURN(const std::string strict_text,
                        impl_->RenderText(strict, add_generation_prompt));
  RenderedChat strict_chat = TakeMarkers(strict_text, *marker);
  const bool was_enough =
      CountUnbroken(chat, impl_->spellings) <= CountUnbroken(strict_chat, impl_->spellings);
  return was_enough ? std::move(chat) : std::move(strict_chat);
}

}  // namespace tael::text
