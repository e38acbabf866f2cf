// Answers in the forms of the OpenAI API: whole, or as the events of a stream (SSE).
//
// A stream, put together, is the whole answer: both are made from the same pieces here.
#pragma once

#include <cstdint>
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

  // The whole answer: all pieces, then Whole().
  void Keep(const engine::Piece& piece);
  Json Whole(const engine::Usage& usage);

 private:
  struct Choice {
    std::string text;
    Json logprobs;              // of the whole answer
    size_t logprob_offset = 0;  // bytes of text before the next token, for kText
    std::string finish_reason;
  };

  Json Envelope(const char* object) const;
  Json Chunk(Json choice) const;
  Json LogprobsOf(const engine::Piece& piece, Choice& choice) const;
  Json ChatLogprobs(const engine::Piece& piece) const;
  Json TextLogprobs(const engine::Piece& piece, Choice& choice) const;

  const ResponseHead head_;
  const tokenizer::Tokenizer& tokenizer_;
  std::vector<Choice> choices_;
};

}  // namespace tael::server
