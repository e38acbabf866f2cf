// From a request's method, path and key to its route, and the refusals that need no more than that.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/api_keys.h"
#include "server/http_message.h"
#include "server/service.h"

namespace tael::server {

class Router final : public HttpHandler {
 public:
  Router(Service& service, ApiKeys keys) : service_(service), keys_(std::move(keys)) {}

  std::optional<HttpResponse> OnHead(HttpRequest& head) override;
  HttpResponse OnRequest(HttpRequest& request) override;
  HttpResponse OnBodyTooLarge(uint64_t limit_bytes) override;
  HttpResponse OnOverload(std::string_view why) override;
  void OnStatus(int status) override { service_.metrics.CountResponse(status); }
  void OnConnections(size_t count) override { service_.metrics.connections.store(count); }

 private:
  Service& service_;
  const ApiKeys keys_;
};

// A page of another site may send requests to a server on its reader's machine; it says where it
// is from. True where that is not this server itself.
bool IsCrossOrigin(std::string_view origin, std::string_view host);

}  // namespace tael::server
