// Errors as clients of the OpenAI API expect them: a status, and
// {"error": {"message", "type", "param", "code"}}.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "server/http_message.h"
#include "server/json.h"

namespace tael::server {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;               // the field that is to blame; "" if none
  std::string code;                // "" if none
  int retry_after_s = 0;           // with 429 and 503
  std::vector<std::string> allow;  // methods, with 405
};

// 400, for a field of the request.
ApiError BadField(std::string param, std::string message);

// Of an error of ours; `param` is what the client sent that it is about.
ApiError ApiErrorOf(const Error& error, std::string param = "");

// {"error": {...}}
Json ToJson(const ApiError& error);

HttpResponse ToResponse(const ApiError& error);
HttpResponse JsonResponse(const Json& body, int status = 200);

}  // namespace tael::server
