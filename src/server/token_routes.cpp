// /tokenize and /detokenize: text to ids and back, as the model sees them.
#include <utility>

#include "server/api_error.h"
#include "server/fields.h"
#include "server/json.h"
#include "server/openai_request.h"
#include "server/routes.h"
#include "text/prompt.h"
#include "tokenizer/tokenizer.h"

namespace tael::server {
namespace {

HttpResponse Ids(const Service& service, const std::vector<TokenId>& ids) {
  Json list = Json::array();
  for (const TokenId id : ids) list.push_back(ToInt(id));
  return JsonResponse({{"tokens", std::move(list)},
                       {"count", ids.size()},
                       {"max_model_len", service.engine.context_length()}});
}

// The text to tokenise; "prompt" is another name for "content".
const std::string* ContentOf(Fields& fields) {
  const std::string* content = fields.String("content");
  const std::string* prompt = fields.String("prompt");
  if (content == nullptr) content = prompt;
  if (content == nullptr) fields.Fail("content", "is missing; a conversation goes in \"messages\"");
  return content;
}

}  // namespace

HttpResponse Tokenize(Service& service, HttpRequest& request) {
  const auto json = ParseJson(request.body);
  if (!json) return ToResponse(ApiErrorOf(json.error()));
  std::optional<ApiError> error;
  Fields fields(*json, "", error);
  fields.Ignore({"model"});
  if (const ClientJson* messages = fields.Value("messages")) {
    std::vector<text::ChatMessage> parsed;
    if (auto wrong = ParseMessages(*messages, parsed)) return ToResponse(*wrong);
    fields.RefuseOthers();
    if (error) return ToResponse(*error);
    const auto prompt = service.EncodeMessages(std::move(parsed));
    if (!prompt) return ToResponse(ApiErrorOf(prompt.error(), "messages"));
    return Ids(service, prompt->ids);
  }
  const std::string* content = ContentOf(fields);
  const bool parse_special = fields.Bool("parse_special").value_or(true);
  const bool add_special = fields.Bool("add_special").value_or(false);
  fields.RefuseOthers();
  if (error) return ToResponse(*error);
  std::vector<TokenId> ids = service.Encode(*content, parse_special);
  if (add_special) text::AddBos(service.engine.tokenizer(), ids);
  return Ids(service, ids);
}

HttpResponse Detokenize(Service& service, HttpRequest& request) {
  const auto json = ParseJson(request.body);
  if (!json) return ToResponse(ApiErrorOf(json.error()));
  std::optional<ApiError> error;
  Fields fields(*json, "", error);
  fields.Ignore({"model"});
  const ClientJson* tokens = fields.Value("tokens");
  if (tokens == nullptr) fields.Fail("tokens", "is missing");
  fields.RefuseOthers();
  if (error) return ToResponse(*error);
  std::vector<TokenId> ids;
  if (const auto wrong = ParseTokens(*tokens, "tokens", ids)) return ToResponse(*wrong);
  const tokenizer::Tokenizer& tokenizer = service.engine.tokenizer();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (tokenizer.IsValid(ids[i])) continue;
    return ToResponse(BadField("tokens", "tokens[" + std::to_string(i) + "] is " +
                                             std::to_string(ToInt(ids[i])) + ", the model has " +
                                             std::to_string(tokenizer.size()) + " tokens"));
  }
  return JsonResponse({{"content", tokenizer.Decode(ids)}});
}

}  // namespace tael::server
