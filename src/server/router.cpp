#include "server/router.h"

#include <array>
#include <exception>
#include <utility>

#include "base/units.h"
#include "server/api_error.h"
#include "server/routes.h"

namespace tael::server {
namespace {

struct Route {
  std::string_view method;
  std::string_view path;  // with a slash at its end: and everything below
  HttpResponse (*answer)(Service&, HttpRequest&);
  bool is_open = false;  // needs no key
};

constexpr std::array kRoutes = {
    Route{"GET", "/", FrontPage, true},
    Route{"GET", "/health", Health, true},
    Route{"GET", "/metrics", PrometheusMetrics},
    Route{"GET", "/v1/models", Models},
    Route{"GET", "/v1/models/", Model},
    Route{"GET", "/v1/memory", Memory},
    Route{"POST", "/v1/memory/trim", TrimMemory},
    Route{"POST", "/v1/chat/completions", ChatCompletions},
    Route{"POST", "/v1/completions", Completions},
    Route{"POST", "/v1/embeddings", Embeddings},
    Route{"POST", "/tokenize", Tokenize},
    Route{"POST", "/detokenize", Detokenize},
};

bool Matches(const Route& route, std::string_view path) {
  if (route.path == path) return true;
  return route.path.size() > 1 && route.path.ends_with('/') && path.starts_with(route.path) &&
         path.size() > route.path.size();
}

// HEAD is GET without the body, which the transport leaves out.
std::string_view MethodOf(const HttpRequest& request) {
  return request.method == "HEAD" ? "GET" : std::string_view(request.method);
}

const Route* Find(const HttpRequest& request) {
  for (const Route& route : kRoutes) {
    if (route.method == MethodOf(request) && Matches(route, request.path)) return &route;
  }
  return nullptr;
}

// No route takes the path, or none with this method.
ApiError NoRoute(const HttpRequest& request) {
  ApiError error;
  for (const Route& route : kRoutes) {
    if (!Matches(route, request.path)) continue;
    error.allow.emplace_back(route.method);
    if (route.method == "GET") error.allow.emplace_back("HEAD");
  }
  const std::string shown = request.method.substr(0, 16) + " " + request.path.substr(0, 128);
  if (error.allow.empty()) {
    error.status = 404;
    error.code = "unknown_url";
    error.message = "there is no " + shown + "; GET / lists what there is";
  } else {
    error.status = 405;
    error.code = "method_not_allowed";
    error.message = "there is no " + shown + "; it takes " + error.allow.front();
  }
  return error;
}

ApiError BadKey(bool has_one) {
  ApiError error;
  error.status = 401;
  error.code = "invalid_api_key";
  error.message = has_one ? "this API key is not known here"
                          : "an API key is needed: \"Authorization: Bearer KEY\"";
  return error;
}

ApiError CrossOrigin() {
  ApiError error;
  error.status = 403;
  error.code = "cross_origin";
  error.message = "this request comes from a page of another site";
  return error;
}

}  // namespace

bool IsCrossOrigin(std::string_view origin, std::string_view host) {
  if (origin.empty()) return false;
  const size_t scheme = origin.find("://");
  return scheme == std::string_view::npos || origin.substr(scheme + 3) != host;
}

std::optional<HttpResponse> Router::OnHead(HttpRequest& head) {
  const Route* route = Find(head);
  if (route == nullptr) return ToResponse(NoRoute(head));
  if (IsCrossOrigin(head.Header("Origin"), head.Header("Host"))) return ToResponse(CrossOrigin());
  const std::string_view authorization = head.Header("Authorization");
  const auto salt = keys_.Check(authorization);
  if (!salt && !route->is_open) return ToResponse(BadKey(!authorization.empty()));
  head.salt = salt.value_or(0);
  return std::nullopt;
}

HttpResponse Router::OnRequest(HttpRequest& request) {
  const Route* route = Find(request);
  if (route == nullptr) return ToResponse(NoRoute(request));
  try {
    return route->answer(service_, request);
  } catch (const std::exception&) {  // libraries may throw, out of memory for one
    return ToResponse(ApiErrorOf(Error{ErrorCode::kInternal, "the server could not answer", {}}));
  }
}

HttpResponse Router::OnBodyTooLarge(uint64_t limit_bytes) {
  ApiError error;
  error.status = 413;
  error.code = "body_too_large";
  error.message = "the body is larger than " + FormatSize(limit_bytes) +
                  ", the limit of this server (--max-body)";
  return ToResponse(error);
}

HttpResponse Router::OnOverload(std::string_view why) {
  ApiError error;
  error.status = 503;
  error.code = "busy";
  error.message = std::string(why);
  error.retry_after_s = 1;
  return ToResponse(error);
}

}  // namespace tael::server
