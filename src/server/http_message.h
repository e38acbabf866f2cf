// Requests and responses as values: what the routes see of HTTP.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/connection_watch.h"
#include "server/memory_account.h"

namespace tael::server {

// The client of one request, for whoever works for it. Copyable; outlived by its connection watch.
class Client {
 public:
  Client(ConnectionWatch& watch, ConnectionWatch::Id id) : watch_(&watch), id_(id) {}

  ConnectionWatch::Id id() const { return id_; }

 private:
  friend class GoneHook;
  ConnectionWatch* watch_;
  ConnectionWatch::Id id_;
};

// Calls a function when the client leaves, for as long as the hook lives. One for each client at a
// time; quick, and on another thread.
class GoneHook {
 public:
  GoneHook(const Client& client, std::function<void()> gone) : client_(client) {
    client_.watch_->OnGone(client_.id_, std::move(gone));
  }
  ~GoneHook() { client_.watch_->ForgetOnGone(client_.id_); }
  GoneHook(const GoneHook&) = delete;
  GoneHook& operator=(const GoneHook&) = delete;

 private:
  Client client_;
};

struct HttpRequest {
  explicit HttpRequest(const Client& from) : client(from) {}

  // "" when it is not there. Names of headers are matched in any case.
  std::string_view Header(std::string_view name) const;
  std::string_view Query(std::string_view name) const;

  std::string method;  // as sent: "GET"
  std::string path;    // without the query, percent-decoded
  std::vector<std::pair<std::string, std::string>> headers;
  std::vector<std::pair<std::string, std::string>> query;
  std::string body;
  Charge charge;      // of the body, kBytesPerBodyByte a byte; then of what the answer keeps
  uint64_t salt = 0;  // of the tenant whose key it carries (api_keys.h)
  Client client;
};

// JSON takes up to so many times its text once it is parsed: "[[],[],[]]" is the worst.
inline constexpr uint64_t kBytesPerBodyByte = 20;

// A body that comes piece by piece.
class BodyStream {
 public:
  virtual ~BodyStream() = default;
  // Appends the next piece, at least a byte, and waits for it; false at the end.
  virtual bool Next(std::string& out) = 0;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::unique_ptr<BodyStream> stream;  // instead of `body`
  bool close = false;                  // end the connection after it
};

// Decides over requests. Called on the connections' threads, many at a time.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // With the head alone, before a byte of the body is read: a response refuses the request.
  virtual std::optional<HttpResponse> OnHead(HttpRequest& head) = 0;
  virtual HttpResponse OnRequest(HttpRequest& request) = 0;
  // What the transport itself has to say, in the same form as the other responses.
  virtual HttpResponse OnBodyTooLarge(uint64_t limit_bytes) = 0;
  virtual HttpResponse OnOverload(std::string_view why) = 0;
  // Of every response that was begun.
  virtual void OnStatus(int status) = 0;
  // How many connections there are now.
  virtual void OnConnections(size_t count) = 0;
};

}  // namespace tael::server
