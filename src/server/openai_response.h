// Answers in the forms of the OpenAI API: whole, or as the events of a stream (SSE).
//
// A stream, put together, is the whole answer: both are made from the same pieces here.
//
// Beside what the API has: `truncated`, whether a window dropped anything of the prompt or the
// answer before it was complete, and `dropped_tokens`, how many; at the top of the whole answer,
// and of the chunk with which a choice ends.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/answer.h"
#include "server/api_error.h"
#include "server/json.h"
#include "server/openai_request.h"
#include "tokenizer/tokenizer.h"

namespace tael::server {

struct ResponseHead {
  Api api = Api::kChat;
  std::string model;
  std::string id;       // without the API's prefix
  int64_t created = 0;  // seconds since 1970
  uint32_t num_choices = 1;
  bool logprobs = false;
  bool include_usage = false;
};

// The text of a token by itself, and its bytes. A token that is no whole character reads
// "bytes:\xe2\x80", a control token as it is spelled.
struct TokenText {
  std::string text;
  std::string bytes;
};
TokenText TextOf(const tokenizer::Tokenizer& tokenizer, TokenId id);

// An event of a stream: "data: ...", and an empty line. `data` has no line ends.
std::string SseEvent(const std::string& data);

class ResponseWriter {
 public:
  ResponseWriter(ResponseHead head, const tokenizer::Tokenizer& tokenizer);

  // The events of a stream. Begin() first, then pieces as they come, then End() or Fail().
  std::string Begin();
  std::string Events(const engine::Piece& piece);
  std::string End(const engine::Usage& usage);
  std::string Fail(const ApiError& error);

  // The whole answer: all pieces, then NextPart() until it is false. In parts, because its
  // log-probabilities take ten times as much as text as they do as numbers.
  void Keep(engine::Piece piece);
  void SetUsage(const engine::Usage& usage) { usage_ = usage; }
  bool NextPart(std::string& out);
  // What is kept for each token of an answer whose `top` likeliest are reported, at most.
  static uint64_t KeptBytesPerToken(std::optional<uint32_t> top);

 private:
  struct Choice {
    engine::Piece kept;         // of the whole answer
    size_t logprob_offset = 0;  // bytes of text before the next token, for kText
  };
  // The lists of a choice's log-probabilities, one after the other.
  std::span<const char* const> ListNames() const;
  Json ListElement(size_t list, const engine::Piece& piece, size_t token, size_t& offset) const;
  std::string BeginChoice(uint32_t index) const;
  std::string EndChoice(uint32_t index) const;
  Json ChatEntry(const engine::Piece& piece, size_t token) const;
  Json TopOf(const sample::LogProbs& logprobs) const;
  void NextOfLists(std::string& out);

  Json Envelope(const char* object) const;
  Json Chunk(Json choice) const;
  uint32_t MostDropped() const;
  Json LogprobsOf(const engine::Piece& piece, Choice& choice) const;

  const ResponseHead head_;
  const tokenizer::Tokenizer& tokenizer_;
  std::vector<Choice> choices_;
  engine::Usage usage_;
  // Where NextPart() is.
  enum class Part : uint8_t { kBegin, kChoice, kLists, kEnd, kDone } part_ = Part::kBegin;
  uint32_t choice_ = 0;
  size_t list_ = 0;
  size_t token_ = 0;
};

}  // namespace tael::server
