#include "server/openai_response.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tokenizer/testing.h"

namespace tael::server {
namespace {

using engine::FinishReason;
using engine::Piece;
using testing::ElementsAre;
using tokenizer::testing::Loaded;
using tokenizer::testing::SmallVocab;

Loaded ByteVocab() {
  SmallVocab vocab = SmallVocab::ByteLevel();
  vocab.Add("<|end|>", tokenizer::testing::kFileControl);  // 256
  auto loaded = vocab.Load();
  EXPECT_TRUE(loaded.has_value());
  return *std::move(loaded);
}

Piece TextPiece(const std::string& text, std::optional<FinishReason> finish = {},
                uint32_t choice = 0) {
  Piece piece;
  piece.choice = choice;
  piece.text = text;
  piece.finish = finish;
  return piece;
}

// A token with its log-probability, and one more that was likely.
Piece TokenPiece(char byte, float logprob) {
  Piece piece = TextPiece(std::string(1, byte));
  piece.tokens = {TokenId{byte}};
  piece.logprobs = {{.logprob = logprob, .top = {{TokenId{byte}, logprob}, {TokenId{256}, -3}}}};
  return piece;
}

Json Whole(ResponseWriter& writer) {
  std::string text;
  while (writer.NextPart(text)) {
  }
  return Json::parse(text);
}

// The data of every event.
std::vector<std::string> DataOf(const std::string& events) {
  std::vector<std::string> out;
  for (size_t at = 0; at < events.size();) {
    EXPECT_EQ(events.substr(at, 6), "data: ");
    const size_t end = events.find("\n\n", at);
    if (end == std::string::npos) {
      ADD_FAILURE() << "an event without an end: " << events.substr(at);
      return out;
    }
    out.push_back(events.substr(at + 6, end - at - 6));
    EXPECT_EQ(out.back().find('\n'), std::string::npos);
    at = end + 2;
  }
  return out;
}

struct Case {
  Case(Api api, uint32_t num_choices, bool logprobs, bool usage = false)
      : writer({.api = api,
                .model = "m",
                .id = "1",
                .created = 7,
                .num_choices = num_choices,
                .logprobs = logprobs,
                .include_usage = usage},
               *vocab.tokenizer) {}

  Loaded vocab = ByteVocab();
  ResponseWriter writer;
};

TEST(OpenAiResponse, AStreamPutTogetherIsTheWholeAnswer) {
  for (const Api api : {Api::kChat, Api::kText}) {
    const std::vector<Piece> pieces = {TextPiece("Hel"), TextPiece("x\ny", {}, 1),
                                       TextPiece("lo\xC3\xA9", FinishReason::kStop),
                                       TextPiece("", FinishReason::kLength, 1)};
    Case streamed(api, 2, false), whole(api, 2, false);
    std::string events = streamed.writer.Begin();
    for (const Piece& piece : pieces) {
      events += streamed.writer.Events(piece);
      whole.writer.Keep(piece);
    }
    events += streamed.writer.End({});
    std::vector<std::string> data = DataOf(events);
    ASSERT_FALSE(data.empty());
    EXPECT_EQ(data.back(), "[DONE]");
    data.pop_back();
    std::string texts[2];
    std::vector<std::string> finishes[2];
    for (const std::string& line : data) {
      const Json chunk = Json::parse(line);
      EXPECT_EQ(chunk["object"], api == Api::kChat ? "chat.completion.chunk" : "text_completion");
      ASSERT_EQ(chunk["choices"].size(), 1u);
      const Json& choice = chunk["choices"][0];
      const auto index = choice["index"].get<size_t>();
      texts[index] += api == Api::kChat ? choice["delta"].value("content", "")
                                        : choice["text"].get<std::string>();
      if (!choice["finish_reason"].is_null()) finishes[index].push_back(choice["finish_reason"]);
    }
    const Json answer = Whole(whole.writer);
    for (size_t i = 0; i < 2; ++i) {
      const Json& choice = answer["choices"][i];
      EXPECT_EQ(texts[i], api == Api::kChat ? choice["message"]["content"] : choice["text"]);
      EXPECT_THAT(finishes[i], ElementsAre(choice["finish_reason"].get<std::string>()));
    }
    EXPECT_EQ(texts[0], "Hello\xC3\xA9");
    EXPECT_EQ(finishes[1][0], "length");
  }
}

TEST(OpenAiResponse, UsageComesInAChunkOfItsOwnWhenItIsAskedFor) {
  Case with(Api::kChat, 1, false, true);
  const auto data =
      DataOf(with.writer.Begin() + with.writer.Events(TextPiece("x")) +
             with.writer.End({.prompt_tokens = 5, .completion_tokens = 2, .cached_tokens = 3}));
  ASSERT_EQ(data.size(), 4u);
  EXPECT_TRUE(Json::parse(data[0])["usage"].is_null());
  const Json last = Json::parse(data[2]);
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(last["usage"]["completion_tokens"], 2);
  EXPECT_EQ(last["usage"]["total_tokens"], 7);
  EXPECT_EQ(last["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
  Case without(Api::kChat, 1, false);
  EXPECT_FALSE(Json::parse(DataOf(without.writer.Begin())[0]).contains("usage"));
}

Piece CutPiece(uint32_t dropped_tokens, uint32_t choice) {
  Piece piece = TextPiece("x", FinishReason::kStop, choice);
  piece.dropped_tokens = dropped_tokens;
  return piece;
}

TEST(OpenAiResponse, WhatAWindowDroppedIsSaidWhereAnAnswerEnds) {
  for (const Api api : {Api::kChat, Api::kText}) {
    Case streamed(api, 2, false), whole(api, 2, false), uncut(api, 1, false);
    std::string events = streamed.writer.Begin() + streamed.writer.Events(CutPiece(7, 1)) +
                         streamed.writer.Events(CutPiece(0, 0));
    std::vector<Json> ends;
    for (const std::string& line : DataOf(events)) {
      const Json chunk = Json::parse(line);
      EXPECT_EQ(chunk.contains("truncated"), !chunk["choices"][0]["finish_reason"].is_null());
      if (chunk.contains("truncated")) ends.push_back(chunk);
    }
    ASSERT_EQ(ends.size(), 2u);
    EXPECT_EQ(ends[0]["truncated"], true);
    EXPECT_EQ(ends[0]["dropped_tokens"], 7);
    EXPECT_EQ(ends[1]["truncated"], false);

    whole.writer.Keep(CutPiece(7, 1));
    whole.writer.Keep(CutPiece(0, 0));
    whole.writer.SetUsage({.prompt_tokens = 9, .truncated_tokens = 4});
    const Json answer = Whole(whole.writer);
    EXPECT_EQ(answer["truncated"], true);
    EXPECT_EQ(answer["dropped_tokens"], 7);
    EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["truncated_tokens"], 4);
    uncut.writer.Keep(CutPiece(0, 0));
    EXPECT_EQ(Whole(uncut.writer)["truncated"], false);
  }
}

TEST(OpenAiResponse, ChatLogprobsNameTokensAndBytes) {
  Case one(Api::kChat, 1, true);
  one.writer.Keep(TokenPiece('a', -0.5f));
  one.writer.Keep(TokenPiece('b', -INFINITY));
  const Json answer = Whole(one.writer);
  const Json& content = answer["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["token"], "a");
  EXPECT_EQ(content[0]["logprob"], -0.5);
  EXPECT_EQ(content[0]["bytes"], Json::array({97}));
  EXPECT_EQ(content[0]["top_logprobs"][1]["token"], "<|end|>");
  EXPECT_EQ(content[1]["logprob"], -9999.0);
}

TEST(OpenAiResponse, TextLogprobsAreListsWithOffsets) {
  Case one(Api::kText, 1, true);
  one.writer.Keep(TokenPiece('a', -0.5f));
  one.writer.Keep(TokenPiece('b', -1.5f));
  const Json answer = Whole(one.writer);
  const Json& logprobs = answer["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json::array({"a", "b"}));
  EXPECT_EQ(logprobs["token_logprobs"], Json::array({-0.5, -1.5}));
  EXPECT_EQ(logprobs["text_offset"], Json::array({0, 1}));
  EXPECT_EQ(logprobs["top_logprobs"][0]["a"], -0.5);
}

TEST(OpenAiResponse, LogprobsThatWereAskedForAreThereWithoutATokenToo) {
  Case chat(Api::kChat, 1, true), text(Api::kText, 1, true), off(Api::kChat, 1, false);
  EXPECT_TRUE(Whole(chat.writer)["choices"][0]["logprobs"]["content"].is_array());
  EXPECT_TRUE(Whole(text.writer)["choices"][0]["logprobs"]["tokens"].is_array());
  EXPECT_TRUE(Whole(off.writer)["choices"][0]["logprobs"].is_null());
}

TEST(OpenAiResponse, ATokenThatIsNoCharacterIsShownAsBytes) {
  const Loaded vocab = ByteVocab();
  EXPECT_EQ(TextOf(*vocab.tokenizer, TokenId{0xC3}).text, "bytes:\\xc3");
  EXPECT_EQ(TextOf(*vocab.tokenizer, TokenId{0xC3}).bytes, "\xC3");
  EXPECT_EQ(TextOf(*vocab.tokenizer, TokenId{256}).text, "<|end|>");
}

TEST(OpenAiResponse, AnErrorIsAnEventOfAStream) {
  Case one(Api::kChat, 1, false);
  ApiError error;
  error.status = 503;
  error.message = "no";
  const auto data = DataOf(one.writer.Fail(error));
  ASSERT_EQ(data.size(), 1u);
  EXPECT_EQ(Json::parse(data[0])["error"]["message"], "no");
  EXPECT_EQ(Json::parse(data[0])["error"]["type"], "server_error");
}

}  // namespace
}  // namespace tael::server
