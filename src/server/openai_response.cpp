#include "server/openai_response.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
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
          {"prompt_tokens_details",
           {{"cached_tokens", usage.cached_tokens},
            {"truncated_tokens", usage.truncated_tokens},
            {"compressed_tokens", usage.compressed_tokens}}}};
}

Json TruncationOf(uint32_t dropped_tokens) {
  return {{"truncated", dropped_tokens > 0}, {"dropped_tokens", dropped_tokens}};
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

Json ResponseWriter::ChatEntry(const engine::Piece& piece, size_t token) const {
  const auto entry = [this](TokenId id, float logprob) {
    const TokenText text = TextOf(tokenizer_, id);
    return Json{
        {"token", text.text}, {"logprob", LogprobOf(logprob)}, {"bytes", BytesOf(text.bytes)}};
  };
  const sample::LogProbs& logprobs = piece.logprobs[token];
  Json out = entry(piece.tokens[token], logprobs.logprob);
  out["top_logprobs"] = Json::array();
  for (const sample::TokenLogProb& top : logprobs.top) {
    out["top_logprobs"].push_back(entry(top.id, top.logprob));
  }
  return out;
}

Json ResponseWriter::TopOf(const sample::LogProbs& logprobs) const {
  Json top = Json::object();
  for (const sample::TokenLogProb& each : logprobs.top) {
    top[TextOf(tokenizer_, each.id).text] = LogprobOf(each.logprob);
  }
  return top;
}

Json ResponseWriter::LogprobsOf(const engine::Piece& piece, Choice& choice) const {
  if (!head_.logprobs || piece.logprobs.empty()) return nullptr;
  TAEL_CHECK(piece.logprobs.size() == piece.tokens.size());
  const std::span<const char* const> names = ListNames();
  Json out = Json::object();
  for (size_t list = 0; list < names.size(); ++list) {
    Json elements = Json::array();
    for (size_t i = 0; i < piece.logprobs.size(); ++i) {
      elements.push_back(ListElement(list, piece, i, choice.logprob_offset));
    }
    out[names[list]] = std::move(elements);
  }
  if (head_.api == Api::kChat) out["refusal"] = nullptr;
  return out;
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
    Json chunk = Chunk(std::move(part));
    chunk.update(TruncationOf(piece.dropped_tokens));
    events += SseEvent(Dump(chunk));
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

uint64_t ResponseWriter::KeptBytesPerToken(std::optional<uint32_t> top) {
  constexpr uint64_t kTextBytes = 8;  // 4 are usual; a buffer that grows has room for as much again
  if (!top) return kTextBytes;
  constexpr uint64_t kGrowth = 2;
  return kTextBytes + kGrowth * (sizeof(TokenId) + sizeof(sample::LogProbs)) +
         *top * sizeof(sample::TokenLogProb);
}

void ResponseWriter::Keep(engine::Piece piece) {
  TAEL_CHECK(piece.choice < choices_.size());
  engine::Piece& kept = choices_[piece.choice].kept;
  kept.text += piece.text;
  if (piece.finish) {
    kept.finish = piece.finish;
    kept.dropped_tokens = piece.dropped_tokens;
  }
  if (!head_.logprobs) return;
  TAEL_CHECK(piece.logprobs.size() == piece.tokens.size());
  kept.tokens.insert(kept.tokens.end(), piece.tokens.begin(), piece.tokens.end());
  std::ranges::move(piece.logprobs, std::back_inserter(kept.logprobs));
}

std::span<const char* const> ResponseWriter::ListNames() const {
  static constexpr const char* kChat[] = {"content"};
  static constexpr const char* kText[] = {"tokens", "token_logprobs", "top_logprobs",
                                          "text_offset"};
  if (!head_.logprobs) return {};
  if (head_.api == Api::kChat) return kChat;
  return kText;
}

// `offset`: of the token in the choice's text; moves on where it is told.
Json ResponseWriter::ListElement(size_t list, const engine::Piece& piece, size_t token,
                                 size_t& offset) const {
  if (head_.api == Api::kChat) return ChatEntry(piece, token);
  if (list == 1) return LogprobOf(piece.logprobs[token].logprob);
  if (list == 2) return TopOf(piece.logprobs[token]);
  const TokenText text = TextOf(tokenizer_, piece.tokens[token]);
  if (list == 0) return text.text;
  return std::exchange(offset, offset + text.bytes.size());
}

uint32_t ResponseWriter::MostDropped() const {
  uint32_t most = 0;
  for (const Choice& choice : choices_) most = std::max(most, choice.kept.dropped_tokens);
  return most;
}

std::string ResponseWriter::BeginChoice(uint32_t index) const {
  const engine::Piece& kept = choices_[index].kept;
  Json part = {{"index", index}};
  if (head_.api == Api::kChat) {
    part["message"] = {{"role", "assistant"}, {"content", kept.text}, {"refusal", nullptr}};
  } else {
    part["text"] = kept.text;
  }
  std::string out = Dump(part);
  out.back() = ',';  // it goes on
  return (index == 0 ? "" : ",") + out + "\"logprobs\":" + (head_.logprobs ? "{" : "null");
}

std::string ResponseWriter::EndChoice(uint32_t index) const {
  const auto finish = choices_[index].kept.finish;
  const bool is_chat = head_.api == Api::kChat;
  std::string out = head_.logprobs ? (is_chat ? ",\"refusal\":null}" : "}") : "";
  return out +
         ",\"finish_reason\":" + (finish ? "\"" + std::string(ToString(*finish)) + "\"" : "null") +
         "}";
}

bool ResponseWriter::NextPart(std::string& out) {
  const bool is_chat = head_.api == Api::kChat;
  switch (part_) {
    case Part::kBegin: {
      std::string envelope = Dump(Envelope(is_chat ? "chat.completion" : "text_completion"));
      envelope.back() = ',';
      out += envelope + "\"choices\":[";
      part_ = Part::kChoice;
      return true;
    }
    case Part::kChoice:
      out += BeginChoice(choice_);
      list_ = token_ = 0;
      part_ = Part::kLists;
      return true;
    case Part::kLists:
      NextOfLists(out);
      return true;
    case Part::kEnd:
      out += "],\"usage\":" + Dump(UsageOf(usage_)) + ",";
      out += Dump(TruncationOf(MostDropped())).substr(1);  // the members, and the envelope's end
      part_ = Part::kDone;
      return true;
    case Part::kDone:
      break;
  }
  return false;
}

// Some elements of the list that it is at, or what comes behind the lists.
void ResponseWriter::NextOfLists(std::string& out) {
  constexpr size_t kElements = 16;  // a few KiB
  const std::span<const char* const> names = ListNames();
  Choice& choice = choices_[choice_];
  if (list_ == names.size()) {
    out += EndChoice(choice_);
    part_ = ++choice_ < choices_.size() ? Part::kChoice : Part::kEnd;
    return;
  }
  if (token_ == 0) out += std::string(list_ == 0 ? "\"" : ",\"") + names[list_] + "\":[";
  const size_t end = std::min(choice.kept.logprobs.size(), token_ + kElements);
  for (; token_ < end; ++token_) {
    if (token_ > 0) out += ',';
    out += Dump(ListElement(list_, choice.kept, token_, choice.logprob_offset));
  }
  if (token_ < choice.kept.logprobs.size()) return;
  out += ']';
  ++list_;
  token_ = 0;
}

}  // namespace tael::server
