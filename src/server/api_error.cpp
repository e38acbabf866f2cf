#include "server/api_error.h"

#include <utility>

namespace tael::server {
namespace {

std::string_view TypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    case 501:
      return "not_implemented_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

// A moment: an answer that runs makes room in seconds.
constexpr int kRetryAfterSeconds = 2;

}  // namespace

ApiError BadField(std::string param, std::string message) {
  ApiError error;
  error.message = std::move(message);
  error.param = std::move(param);
  error.code = "invalid_value";
  return error;
}

ApiError ApiErrorOf(const Error& error, std::string param) {
  ApiError out;
  out.message = error.Message();
  out.param = std::move(param);
  out.code = std::string(ToString(error.code));
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kContextExceeded:
    case ErrorCode::kMalformed:
    case ErrorCode::kOutOfBudget:  // it would never fit: no reason to come again
      return out;
    case ErrorCode::kUnsupported:
      out.status = 501;
      return out;
    case ErrorCode::kBusy:
    case ErrorCode::kNoFreeBlocks:
    case ErrorCode::kCancelled:
      out.status = 503;
      out.retry_after_s = kRetryAfterSeconds;
      return out;
    case ErrorCode::kNotFound:
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
      break;
  }
  out.status = 500;
  return out;
}

Json ToJson(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"error",
           {{"message", error.message},
            {"type", TypeOf(error.status)},
            {"param", or_null(error.param)},
            {"code", or_null(error.code)}}}};
}

HttpResponse JsonResponse(const Json& body, int status) {
  HttpResponse response;
  response.status = status;
  response.body = Dump(body);
  return response;
}

HttpResponse ToResponse(const ApiError& error) {
  HttpResponse response = JsonResponse(ToJson(error), error.status);
  if (error.retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  if (!error.allow.empty()) {
    std::string methods;
    for (const std::string& method : error.allow) methods += (methods.empty() ? "" : ", ") + method;
    response.headers.emplace_back("Allow", std::move(methods));
  }
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace tael::server
