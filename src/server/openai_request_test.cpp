#include "server/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tael::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

GenerateCall Parsed(const std::string& text, Api api = Api::kChat) {
  GenerateCall call;
  const auto error = ParseGenerateCall(ClientJson::parse(text), api, call);
  EXPECT_FALSE(error.has_value()) << text << ": " << (error ? error->message : "");
  return call;
}

ApiError Refused(const std::string& text, Api api = Api::kChat) {
  GenerateCall call;
  const auto error = ParseGenerateCall(ClientJson::parse(text), api, call);
  EXPECT_TRUE(error.has_value()) << text;
  return error.value_or(ApiError{});
}

// A chat request with a field more.
std::string With(const std::string& field) {
  return R"({"messages": [{"role": "user", "content": "hi"}], )" + field + "}";
}

TEST(OpenAiRequest, TheLeastThatAChatNeeds) {
  const GenerateCall call = Parsed(R"({"messages": [{"role": "user", "content": "hi"}]})");
  ASSERT_EQ(call.messages.size(), 1u);
  EXPECT_EQ(call.messages[0].role, "user");
  EXPECT_EQ(call.messages[0].content, "hi");
  EXPECT_FALSE(call.max_tokens.has_value());
  EXPECT_FALSE(call.seed.has_value());
  EXPECT_EQ(call.num_choices, 1u);
  EXPECT_FALSE(call.stream);
}

TEST(OpenAiRequest, EveryFieldThatIsBuiltGetsThrough) {
  const GenerateCall call = Parsed(With(
      R"("model": "any", "temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "top_k": 7,
         "repeat_penalty": 1.5, "seed": -3, "n": 3, "stop": ["a", "bc"], "max_tokens": 9,
         "max_completion_tokens": 8, "logprobs": true, "top_logprobs": 5, "stream": true,
         "stream_options": {"include_usage": true}, "service_tier": "flex",
         "ignore_eos": true)"));
  EXPECT_FLOAT_EQ(call.options.sampler.temperature, 0.5f);
  EXPECT_FLOAT_EQ(call.options.sampler.top_p, 0.9f);
  EXPECT_FLOAT_EQ(call.options.sampler.min_p, 0.1f);
  EXPECT_EQ(call.options.sampler.top_k, 7);
  EXPECT_FLOAT_EQ(call.options.sampler.repeat_penalty, 1.5f);
  EXPECT_EQ(call.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(call.num_choices, 3u);
  EXPECT_THAT(call.options.stop, ElementsAre("a", "bc"));
  EXPECT_EQ(call.max_tokens, 8u);
  EXPECT_EQ(call.options.logprobs, 5u);
  EXPECT_TRUE(call.stream);
  EXPECT_TRUE(call.include_usage);
  EXPECT_TRUE(call.options.ignore_eos);
  EXPECT_EQ(call.priority, engine::Priority::kBackground);
}

TEST(OpenAiRequest, WhatAsksForNothingIsTaken) {
  for (const char* field : {R"("tools": null)",
                            R"("tools": [])",
                            R"("tool_choice": "none")",
                            R"("response_format": {"type": "text"})",
                            R"("logit_bias": {})",
                            R"("frequency_penalty": 0)",
                            R"("presence_penalty": 0.0)",
                            R"("functions": [])",
                            R"("modalities": ["text"])",
                            R"("user": "u")",
                            R"("metadata": {"a": "b"})",
                            R"("store": true)",
                            R"("top_logprobs": null)",
                            R"("n": null)",
                            R"("stop": null)",
                            R"("max_tokens": 16.0)",
                            R"("audio": null)",
                            R"("service_tier": "auto")",
                            R"("stream_options": null)",
                            R"("reasoning_effort": null)",
                            R"("top_p": 0)"}) {
    Parsed(With(field));
  }
}

TEST(OpenAiRequest, WhatWouldChangeTheAnswerIsRefusedByName) {
  for (const char* name :
       {"tools", "functions", "tool_choice", "function_call", "response_format", "grammar",
        "json_schema", "guided_json", "logit_bias", "frequency_penalty", "presence_penalty",
        "audio", "echo", "suffix", "reasoning_effort", "modalities", "verbosity",
        "chat_template_kwargs", "a_field_of_tomorrow"}) {
    const ApiError error = Refused(With("\"" + std::string(name) + R"(": {"type": "x"})"));
    EXPECT_EQ(error.status, 400) << name;
    EXPECT_EQ(error.param, name);
    EXPECT_THAT(error.message, HasSubstr(name));
  }
  EXPECT_EQ(Refused(With(R"("response_format": {"type": "json_object"})")).param,
            "response_format");
  EXPECT_EQ(Refused(With(R"("frequency_penalty": 0.1)")).param, "frequency_penalty");
  EXPECT_EQ(Refused(With(R"("echo": true)")).param, "echo");
}

TEST(OpenAiRequest, BadValuesAreRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"temperature", "2.1"},
      {"temperature", "-1"},
      {"temperature", "\"hot\""},
      {"top_p", "1.01"},
      {"min_p", "-0.1"},
      {"top_k", "-2"},
      {"n", "0"},
      {"n", "129"},
      {"n", "1.5"},
      {"max_tokens", "0"},
      {"max_tokens", "-5"},
      {"max_tokens", "1e300"},
      {"max_completion_tokens", "[]"},
      {"stop", "\"\""},
      {"stop", "[1]"},
      {"stop", "[[]]"},
      {"stream", "1"},
      {"logprobs", "5"},
      {"seed", "1.5"},
      {"seed", "18446744073709551615"},
      {"model", "7"},
      {"service_tier", "\"x\""},
      {"repeat_penalty", "0"},
      {"stream_options", "{}"},
      {"best_of", "2"},
      {"ignore_eos", "\"yes\""},
  };
  for (const auto& [name, value] : cases) {
    const ApiError error = Refused(With("\"" + std::string(name) + "\": " + value));
    EXPECT_EQ(error.param, name) << value;
    EXPECT_EQ(error.code, "invalid_value");
    EXPECT_THAT(error.message, HasSubstr(name));
  }
  EXPECT_EQ(Refused(With(R"("logprobs": true, "top_logprobs": 21)")).param, "top_logprobs");
  EXPECT_EQ(Refused(With(R"("top_logprobs": 2)")).param, "top_logprobs");
  EXPECT_EQ(Refused(With(R"("stream": true, "stream_options": {"x": 1})")).param,
            "stream_options.x");
}

TEST(OpenAiRequest, ManyOrLongStopStringsAreRefused) {
  std::string many = "\"x\"";
  for (int i = 0; i < 16; ++i) many += ", \"x\"";
  EXPECT_EQ(Refused(With("\"stop\": [" + many + "]")).param, "stop");
  EXPECT_EQ(Refused(With("\"stop\": \"" + std::string(1025, 'x') + "\"")).param, "stop");
}

TEST(OpenAiRequest, MessagesMayBeInParts) {
  const GenerateCall call = Parsed(
      R"({"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"},
                                                        {"type": "text", "text": "b"}]},
                       {"role": "assistant", "content": null, "tool_calls": [], "refusal": null},
                       {"role": "tool", "content": "c", "tool_call_id": "1"},
                       {"role": "user", "content": "", "name": "Ann"}]})");
  ASSERT_EQ(call.messages.size(), 4u);
  EXPECT_EQ(call.messages[0].role, "system");
  EXPECT_EQ(call.messages[0].content, "ab");
  EXPECT_EQ(call.messages[1].content, "");
  EXPECT_EQ(call.messages[2].role, "tool");
}

TEST(OpenAiRequest, BadMessagesAreRefusedAtTheirPlace) {
  const auto param = [](const std::string& messages) {
    return Refused("{\"messages\": " + messages + "}").param;
  };
  EXPECT_EQ(param("[]"), "messages");
  EXPECT_EQ(param("\"hi\""), "messages");
  EXPECT_EQ(param("null"), "messages");
  EXPECT_EQ(param("[7]"), "messages[0]");
  EXPECT_EQ(param(R"([{"content": "x"}])"), "messages[0].role");
  EXPECT_EQ(param(R"([{"role": "boss", "content": "x"}])"), "messages[0].role");
  EXPECT_EQ(param(R"([{"role": "user"}])"), "messages[0].content");
  EXPECT_EQ(param(R"([{"role": "user", "content": 3}])"), "messages[0].content");
  EXPECT_EQ(param(R"([{"role": "user", "content": "x"},
                      {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])"),
            "messages[1].content[0].type");
  EXPECT_EQ(param(R"([{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}])"),
            "messages[0].tool_calls");
  EXPECT_EQ(param(R"([{"role": "user", "content": "x", "mood": "good"}])"), "messages[0].mood");
}

TEST(OpenAiRequest, ACompletionTakesTextOrIds) {
  EXPECT_EQ(Parsed(R"({"prompt": "abc"})", Api::kText).prompt, "abc");
  EXPECT_EQ(Parsed(R"({"prompt": "abc"})", Api::kText).max_tokens, 16u);
  EXPECT_EQ(Parsed(R"({"prompt": ["abc"]})", Api::kText).prompt, "abc");
  EXPECT_THAT(*Parsed(R"({"prompt": [5, 6]})", Api::kText).prompt_ids,
              ElementsAre(TokenId{5}, TokenId{6}));
  EXPECT_THAT(*Parsed(R"({"prompt": [[7]]})", Api::kText).prompt_ids, ElementsAre(TokenId{7}));
  EXPECT_EQ(Parsed(R"({"prompt": "x", "logprobs": 0})", Api::kText).options.logprobs, 0u);
  for (const char* prompt : {"null", "\"\"", "[]", "7", R"(["a", "b"])", "[[1], [2]]", "[1, -2]",
                             "[1, \"a\"]", "[1.5]", "[3000000000]", "{}", "[[]]"}) {
    EXPECT_EQ(Refused("{\"prompt\": " + std::string(prompt) + "}", Api::kText).param, "prompt")
        << prompt;
  }
}

TEST(OpenAiRequest, ABodyThatIsNoObjectIsRefused) {
  for (const char* body : {"[]", "7", "null", "\"x\""}) {
    EXPECT_THAT(Refused(body).message, HasSubstr("object")) << body;
  }
}

}  // namespace
}  // namespace tael::server
