// /v1/chat/completions and /v1/completions: a request becomes tokens, goes to the scheduler, and
// its answer comes back whole or as a stream.
#include <algorithm>
#include <random>
#include <utility>

#include "server/answer_reader.h"
#include "server/openai_response.h"
#include "server/routes.h"
#include "text/prompt.h"

namespace tael::server {
namespace {

// What a request takes in memory once its JSON is gone, for each byte of its body: its messages,
// the text that the template makes of them, and an id for each byte at worst.
constexpr uint64_t kBytesAfterParsing = 8;
// And once it is encoded: the ids of its prompt, here and in the scheduler.
constexpr uint64_t kBytesPerQueuedToken = 16;

// The answer as it is written, for a client that wants to see that.
class AnswerStream final : public BodyStream {
 public:
  AnswerStream(std::shared_ptr<engine::Answer> answer, const Client& client, Metrics& metrics,
               ResponseHead head, const tokenizer::Tokenizer& tokenizer)
      : reader_(std::move(answer), client, metrics), writer_(std::move(head), tokenizer) {}

  bool Next(std::string& out) override {
    if (!begun_) out += writer_.Begin();
    begun_ = true;
    while (out.empty() && !ended_) {
      if (reader_.Read(pieces_)) {
        for (engine::Piece& piece : pieces_) {
          // An answer that was cancelled ends with an error, not as if it were whole.
          if (piece.finish == engine::FinishReason::kCancelled) piece.finish.reset();
          out += writer_.Events(piece);
        }
      } else {
        ended_ = true;
        const auto failure = reader_.Failure();
        out += failure ? writer_.Fail(*failure) : writer_.End(reader_.usage());
      }
    }
    return !out.empty();
  }

 private:
  AnswerReader reader_;
  ResponseWriter writer_;
  std::vector<engine::Piece> pieces_;
  bool begun_ = false;
  bool ended_ = false;
};

// The answer when it is whole, part by part.
class WholeAnswer final : public BodyStream {
 public:
  WholeAnswer(ResponseHead head, const tokenizer::Tokenizer& tokenizer)
      : writer_(std::move(head), tokenizer) {}

  // Blocks: until the answer is whole, or will not be.
  std::optional<ApiError> ReadAll(std::shared_ptr<engine::Answer> answer, const Client& client,
                                  Metrics& metrics) {
    AnswerReader reader(std::move(answer), client, metrics);
    std::vector<engine::Piece> pieces;
    while (reader.Read(pieces)) {
      for (engine::Piece& piece : pieces) writer_.Keep(std::move(piece));
    }
    writer_.SetUsage(reader.usage());
    return reader.Failure();
  }
  bool Next(std::string& out) override { return writer_.NextPart(out); }

 private:
  ResponseWriter writer_;
};

// One body where it is short: with its length, it is what most clients know best.
HttpResponse ResponseOf(std::unique_ptr<WholeAnswer> whole, bool is_short) {
  HttpResponse response;
  if (is_short) {
    while (whole->Next(response.body)) {
    }
  } else {
    response.stream = std::move(whole);
  }
  return response;
}

std::string NewId() {
  constexpr char kDigits[] = "0123456789abcdef";
  std::random_device random;
  std::string id;
  for (int i = 0; i < 3; ++i) {
    for (uint32_t bits = random(), left = 8; left > 0; --left, bits >>= 4) {
      id += kDigits[bits & 15];
    }
  }
  return id;
}

ResponseHead HeadOf(const Service& service, const GenerateCall& call) {
  return {.api = call.api,
          .model = service.model_name,
          .id = NewId(),
          .created = std::chrono::duration_cast<std::chrono::seconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count(),
          .num_choices = call.num_choices,
          .logprobs = call.options.logprobs.has_value(),
          .include_usage = call.include_usage};
}

Result<EncodedPrompt> PromptOf(const Service& service, GenerateCall& call) {
  if (call.api == Api::kChat) return service.EncodeMessages(std::move(call.messages));
  if (call.prompt_ids) return EncodedPrompt{.ids = *std::move(call.prompt_ids)};
  return EncodedPrompt{.ids = service.EncodeText(call.prompt)};
}

// Parses the body into `call` and lets go of it.
std::optional<ApiError> TakeBody(HttpRequest& request, Api api, GenerateCall& call) {
  const uint64_t num_bytes = request.body.size();
  {
    const auto json = ParseJson(request.body);
    if (!json) return ApiErrorOf(json.error());
    if (auto error = ParseGenerateCall(*json, api, call)) return error;
  }
  request.body = std::string();
  request.charge.ShrinkTo(kBytesAfterParsing * num_bytes);
  return std::nullopt;
}

engine::Request RequestOf(const Service& service, const HttpRequest& request, GenerateCall& call,
                          EncodedPrompt prompt) {
  engine::Request out;
  out.options = std::move(call.options);
  out.options.max_tokens =
      call.max_tokens.value_or(service.scheduler.MostNewTokens(prompt.ids.size()));
  out.options.sampler.seed = call.seed ? *call.seed : std::random_device{}();
  // Where the model has no template, turns are written in a plain form, and this begins the next.
  if (call.api == Api::kChat && !service.has_own_template)
    out.options.stop.push_back(text::kPlainStop);
  out.num_choices = call.num_choices;
  out.priority = call.priority;
  out.salt = request.salt;
  out.system_tokens = prompt.system_tokens;
  out.prompt = std::move(prompt.ids);
  return out;
}

ApiError Refusal(const Service& service, const Error& error, const GenerateCall& call) {
  ApiError out = ApiErrorOf(error, call.prompt_field());
  if (error.code == ErrorCode::kBusy) {
    out.param.clear();
    out.retry_after_s = static_cast<int>(service.scheduler.RetryAfterSeconds());
  }
  return out;
}

// From here to the end of the response: the prompt, and what is kept of an answer that is sent as a
// whole. All of it now, so that no answer fails half-way.
std::optional<ApiError> ChargeAnswer(const Service& service, HttpRequest& request,
                                     const GenerateCall& call, size_t prompt_tokens) {
  uint64_t bytes = kBytesPerQueuedToken * prompt_tokens;
  if (!call.stream) {
    const uint64_t most = service.scheduler.MostNewTokens(prompt_tokens);
    uint64_t tokens = call.max_tokens.value_or(most);
    // What does not fit the context will be refused; a window has no such end.
    if (!service.engine.plan().is_endless()) tokens = std::min(tokens, most);
    bytes += call.num_choices * tokens * ResponseWriter::KeptBytesPerToken(call.options.logprobs);
  }
  if (request.charge.TryResizeTo(bytes)) return std::nullopt;
  return ApiErrorOf(Error{ErrorCode::kBusy,
                          "an answer of this size, kept until it is whole, does not fit the "
                          "server's memory now; try again, ask for fewer tokens or choices, or "
                          "for a stream",
                          {}});
}

HttpResponse Generate(Service& service, HttpRequest& request, Api api) {
  GenerateCall call;
  if (const auto error = TakeBody(request, api, call)) return ToResponse(*error);
  auto prompt = PromptOf(service, call);
  if (!prompt) return ToResponse(ApiErrorOf(prompt.error(), call.prompt_field()));
  if (const auto error = ChargeAnswer(service, request, call, prompt->ids.size())) {
    return ToResponse(*error);
  }
  ResponseHead head = HeadOf(service, call);
  auto answer = service.scheduler.Submit(RequestOf(service, request, call, *std::move(prompt)));
  if (!answer) return ToResponse(Refusal(service, answer.error(), call));

  const tokenizer::Tokenizer& tokenizer = service.engine.tokenizer();
  if (!call.stream) {
    const bool is_short = !head.logprobs;
    auto whole = std::make_unique<WholeAnswer>(std::move(head), tokenizer);
    if (const auto failure = whole->ReadAll(*std::move(answer), request.client, service.metrics)) {
      return ToResponse(*failure);
    }
    return ResponseOf(std::move(whole), is_short);
  }
  HttpResponse response;
  response.content_type = "text/event-stream; charset=utf-8";
  response.headers.emplace_back("Cache-Control", "no-cache");
  response.stream = std::make_unique<AnswerStream>(*std::move(answer), request.client,
                                                   service.metrics, std::move(head), tokenizer);
  return response;
}

}  // namespace

HttpResponse ChatCompletions(Service& service, HttpRequest& request) {
  return Generate(service, request, Api::kChat);
}

HttpResponse Completions(Service& service, HttpRequest& request) {
  return Generate(service, request, Api::kText);
}

HttpResponse Embeddings(Service&, HttpRequest&) {
  return ToResponse(
      ApiErrorOf(Error{ErrorCode::kUnsupported,
                       "this server gives no embeddings: it runs models that write text",
                       {}}));
}

}  // namespace tael::server
