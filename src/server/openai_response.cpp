#include "server/openai_response.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"

namespace tael::server {
namespace {

// What the API says for a token that cannot be: JSON has no infinity.
constexpr float kLeastLogprob = -9999.0f;

Json LogprobOf(float value) { return std::max(value, kLeastLogprob); }

Json BytesOf(const std::string& bytes) {
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}

Json UsageOf(const engine::Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", uint64_t{usage.prompt_tokens} + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

// Appends the lists of `more` to those of the same name; the first time all of it.
void AppendLists(Json& to, const Json& more) {
  if (more.is_null()) return;
  if (to.is_null()) {
    to = more;
    return;
  }
  for (const auto& [name, list] : more.items()) {
    if (!list.is_array()) continue;
    for (const Json& element : list) to[name].push_back(element);
  }
}

}  // namespace

TokenText TextOf(const tokenizer::Tokenizer& tokenizer, TokenId id) {
  TokenText out;
  out.bytes = tokenizer.Piece(id);
  if (out.bytes.empty()) out.bytes = std::string(tokenizer.Spelling(id));
  if (ValidUtf8Prefix(out.bytes) == out.bytes.size()) {
    out.text = out.bytes;
    return out;
  }
  out.text = "bytes:";
  for (const char c : out.bytes) {
    char text[8];
    std::snprintf(text, sizeof text, "\\x%02x", static_cast<unsigned char>(c));
    out.text += text;
  }
  return out;
}

std::string SseEvent(const std::string& data) { return "data: " + data + "\n\n"; }

ResponseWriter::ResponseWriter(ResponseHead head, const tokenizer::Tokenizer& tokenizer)
    : head_(std::move(head)), tokenizer_(tokenizer), choices_(head_.num_choices) {}

Json ResponseWriter::Envelope(const char* object) const {
  const char* prefix = head_.api == Api::kChat ? "chatcmpl-" : "cmpl-";
  return {{"id", prefix + head_.id},
          {"object", object},
          {"created", head_.created},
          {"model", head_.model}};
}

Json ResponseWriter::Chunk(Json choice) const {
  Json chunk = Envelope(head_.api == Api::kChat ? "chat.completion.chunk" : "text_completion");
  chunk["choices"] = Json::array();
  if (!choice.is_null()) chunk["choices"].push_back(std::move(choice));
  if (head_.include_usage) chunk["usage"] = nullptr;
  return chunk;
}

Json ResponseWriter::ChatLogprobs(const engine::Piece& piece) const {
  const auto entry = [this](TokenId id, float logprob) {
    const TokenText token = TextOf(tokenizer_, id);
    return Json{
        {"token", token.text}, {"logprob", LogprobOf(logprob)}, {"bytes", BytesOf(token.bytes)}};
  };
  Json content = Json::array();
  for (size_t i = 0; i < piece.logprobs.size(); ++i) {
    Json token = entry(piece.tokens[i], piece.logprobs[i].logprob);
    token["top_logprobs"] = Json::array();
    for (const sample::TokenLogProb& top : piece.logprobs[i].top) {
      token["top_logprobs"].push_back(entry(top.id, top.logprob));
    }
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json ResponseWriter::TextLogprobs(const engine::Piece& piece, Choice& choice) const {
  Json out = {{"tokens", Json::array()},
              {"token_logprobs", Json::array()},
              {"top_logprobs", Json::array()},
              {"text_offset", Json::array()}};
  for (size_t i = 0; i < piece.logprobs.size(); ++i) {
    const TokenText token = TextOf(tokenizer_, piece.tokens[i]);
    Json top = Json::object();
    for (const sample::TokenLogProb& each : piece.logprobs[i].top) {
      top[TextOf(tokenizer_, each.id).text] = LogprobOf(each.logprob);
    }
    out["tokens"].push_back(token.text);
    out["token_logprobs"].push_back(LogprobOf(piece.logprobs[i].logprob));
    out["top_logprobs"].push_back(std::move(top));
    out["text_offset"].push_back(choice.logprob_offset);
    choice.logprob_offset += token.bytes.size();
  }
  return out;
}

Json ResponseWriter::LogprobsOf(const engine::Piece& piece, Choice& choice) const {
  if (!head_.logprobs || piece.logprobs.empty()) return nullptr;
  TAEL_CHECK(piece.logprobs.size() == piece.tokens.size());
  return head_.api == Api::kChat ? ChatLogprobs(piece) : TextLogprobs(piece, choice);
}

std::string ResponseWriter::Begin() {
  std::string events;
  if (head_.api == Api::kText) return events;
  for (uint32_t i = 0; i < head_.num_choices; ++i) {
    events += SseEvent(Dump(Chunk({{"index", i},
                                   {"delta", {{"role", "assistant"}, {"content", ""}}},
                                   {"logprobs", nullptr},
                                   {"finish_reason", nullptr}})));
  }
  return events;
}

std::string ResponseWriter::Events(const engine::Piece& piece) {
  TAEL_CHECK(piece.choice < choices_.size());
  Choice& choice = choices_[piece.choice];
  std::string events;
  Json logprobs = LogprobsOf(piece, choice);
  if (!piece.text.empty() || !logprobs.is_null()) {
    Json part = {{"index", piece.choice}};
    if (head_.api == Api::kChat) {
      part["delta"] = {{"content", piece.text}};
    } else {
      part["text"] = piece.text;
    }
    part["logprobs"] = std::move(logprobs);
    part["finish_reason"] = nullptr;
    events += SseEvent(Dump(Chunk(std::move(part))));
  }
  if (piece.finish) {
    Json part = {{"index", piece.choice}};
    if (head_.api == Api::kChat) {
      part["delta"] = Json::object();
    } else {
      part["text"] = "";
    }
    part["logprobs"] = nullptr;
    part["finish_reason"] = ToString(*piece.finish);
    events += SseEvent(Dump(Chunk(std::move(part))));
  }
  return events;
}

std::string ResponseWriter::End(const engine::Usage& usage) {
  std::string events;
  if (head_.include_usage) {
    Json chunk = Chunk(nullptr);
    chunk["usage"] = UsageOf(usage);
    events += SseEvent(Dump(chunk));
  }
  return events + SseEvent("[DONE]");
}

std::string ResponseWriter::Fail(const ApiError& error) { return SseEvent(Dump(ToJson(error))); }

void ResponseWriter::Keep(const engine::Piece& piece) {
  TAEL_CHECK(piece.choice < choices_.size());
  Choice& choice = choices_[piece.choice];
  choice.text += piece.text;
  AppendLists(choice.logprobs, LogprobsOf(piece, choice));
  if (piece.finish) choice.finish_reason = ToString(*piece.finish);
}

Json ResponseWriter::Whole(const engine::Usage& usage) {
  const bool is_chat = head_.api == Api::kChat;
  Json out = Envelope(is_chat ? "chat.completion" : "text_completion");
  out["choices"] = Json::array();
  for (uint32_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    Json part = {{"index", i}};
    if (is_chat) {
      part["message"] = {
          {"role", "assistant"}, {"content", std::move(choice.text)}, {"refusal", nullptr}};
    } else {
      part["text"] = std::move(choice.text);
    }
    // Asked for, but there was no token.
    if (head_.logprobs && choice.logprobs.is_null()) {
      choice.logprobs = is_chat ? ChatLogprobs({}) : TextLogprobs({}, choice);
    }
    part["logprobs"] = std::move(choice.logprobs);
    part["finish_reason"] = choice.finish_reason;
    out["choices"].push_back(std::move(part));
  }
  out["usage"] = UsageOf(usage);
  return out;
}

}  // namespace tael::server
