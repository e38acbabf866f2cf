#include "server/http_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/select.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>
#include <utility>

#include "base/fault.h"

namespace tael::server {
namespace {

uint64_t ConnectionsBytes(const HttpServerOptions& options) {
  return (uint64_t{options.max_connections} + kSpareConnections) * kConnectionBytes;
}

uint64_t BodiesBytes(const HttpServerOptions& options) {
  return kBytesPerBodyByte * options.max_body_bytes;
}

// Address space only: what is touched is counted in kConnectionBytes.
constexpr size_t kStackBytes = size_t{512} << 10;
// Of a refused body so much is read, so that the client gets to the response; a longer one is cut.
constexpr uint64_t kMostDiscardedBytes = uint64_t{8} << 20;

// One connection, from its first byte to its last.
struct Connection {
  ConnectionWatch::Id id;
  bool is_spare;  // above the limit: there to be told so
  Charge charge;
};

// One request, from its head to the end of its response.
struct Exchange {
  explicit Exchange(const Client& client) : request(client) {}

  HttpRequest request;
  std::optional<HttpResponse> refusal;  // known before the body was read
  uint64_t discarded_bytes = 0;
};

// A response that is made piece by piece, on its way through the library's buffer.
struct Streaming {
  std::unique_ptr<BodyStream> body;
  std::string piece;
  size_t taken = 0;
  ConnectionWatch* watch = nullptr;
  ConnectionWatch::Id id = 0;
};

ssize_t ReadStream(void* closure, uint64_t, char* out, size_t capacity) noexcept {
  auto& stream = *static_cast<Streaming*>(closure);
  try {
    while (stream.taken == stream.piece.size()) {
      stream.piece.clear();
      stream.taken = 0;
      if (!stream.body->Next(stream.piece)) {
        stream.watch->AnswerMade(stream.id);
        return MHD_CONTENT_READER_END_OF_STREAM;
      }
    }
  } catch (...) {  // out of memory
    return MHD_CONTENT_READER_END_WITH_ERROR;
  }
  const size_t count = std::min(capacity, stream.piece.size() - stream.taken);
  std::memcpy(out, stream.piece.data() + stream.taken, count);
  stream.taken += count;
  return static_cast<ssize_t>(count);
}

void FreeStream(void* closure) noexcept { delete static_cast<Streaming*>(closure); }
void FreeString(void* closure) noexcept { delete static_cast<std::string*>(closure); }

MHD_Result KeepPair(void* closure, MHD_ValueKind, const char* key, const char* value) noexcept {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  try {
    static_cast<Pairs*>(closure)->emplace_back(key != nullptr ? key : "",
                                               value != nullptr ? value : "");
    return MHD_YES;
  } catch (...) {
    return MHD_NO;
  }
}

// 0 where nothing is said; what is no number has been refused by the library already.
uint64_t ContentLength(const HttpRequest& request) {
  const std::string_view text = request.Header("Content-Length");
  uint64_t length = 0;
  std::from_chars(text.data(), text.data() + text.size(), length);
  return length;
}

// A client that vanishes without a word, or takes nothing of its answer, is found within half a
// minute, whatever is going on. Not by the library's own time limit: that one also ends answers of
// which the next piece took longer.
void WatchForSilence(int fd) {
  const int on = 1, idle_s = 10, interval_s = 5, probes = 4;
  const unsigned unacknowledged_ms = 30'000;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
}

}  // namespace

// What the library calls. Nothing thrown gets out of here.
struct Callbacks {
  static void OnConnection(void* closure, MHD_Connection* connection, void** context,
                           MHD_ConnectionNotificationCode code) noexcept {
    auto& server = *static_cast<HttpServer*>(closure);
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
      std::unique_ptr<Connection> ended(static_cast<Connection*>(*context));
      if (ended != nullptr) server.watch_->Close(ended->id);
      *context = nullptr;
      server.handler_.OnConnections(server.watch_->num_connections());
      return;
    }
    const auto* info =
        server.library_.get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info == nullptr) return;
    WatchForSilence(info->connect_fd);
    try {
      auto begun = std::make_unique<Connection>();
      begun->id = server.watch_->Open(info->connect_fd);
      begun->is_spare = server.watch_->num_connections() > server.options_.max_connections;
      begun->charge = server.accounts_.connections->NewCharge();
      // Planned for every connection: it cannot fail.
      (void)begun->charge.TryResizeTo(kConnectionBytes).has_value();
      *context = begun.release();
      server.handler_.OnConnections(server.watch_->num_connections());
    } catch (...) {
      *context = nullptr;  // its requests are refused
    }
  }

  static void OnCompleted(void* closure, MHD_Connection*, void** context,
                          MHD_RequestTerminationCode) noexcept {
    auto& server = *static_cast<HttpServer*>(closure);
    auto* const exchange = static_cast<Exchange*>(*context);
    *context = nullptr;
    if (exchange == nullptr) return;
    server.watch_->AnswerSent(exchange->request.client.id());
    delete exchange;
    server.RequestEnded();
  }

  static MHD_Result OnAccess(void* closure, MHD_Connection* connection, const char* url,
                             const char* method, const char*, const char* data, size_t* size,
                             void** context) noexcept {
    auto& server = *static_cast<HttpServer*>(closure);
    try {
      auto* const exchange = static_cast<Exchange*>(*context);
      if (exchange == nullptr) return OnHead(server, connection, url, method, context);
      if (*size != 0) return OnBody(server, *exchange, data, size);
      return OnEnd(server, connection, *exchange);
    } catch (...) {  // out of memory: nothing better can be said
      return MHD_NO;
    }
  }

 private:
  static MHD_Result OnHead(HttpServer& server, MHD_Connection* connection, const char* url,
                           const char* method, void** context) {
    const auto* info =
        server.library_.get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (info == nullptr || info->socket_context == nullptr) return MHD_NO;
    const auto& from = *static_cast<const Connection*>(info->socket_context);
    auto owned = std::make_unique<Exchange>(Client(*server.watch_, from.id));
    HttpRequest& request = owned->request;
    request.method = method;
    request.path = url;
    server.library_.get_connection_values(connection, MHD_HEADER_KIND, KeepPair, &request.headers);
    server.library_.get_connection_values(connection, MHD_GET_ARGUMENT_KIND, KeepPair,
                                          &request.query);
    request.charge = server.accounts_.bodies->NewCharge();
    server.RequestBegan();
    Exchange& exchange = *owned.release();
    *context = &exchange;

    exchange.refusal = Refuse(server, from, request);
    // A client that waits for a word before it sends the body, or has too much of it, gets the word
    // at once; the connection ends with it. Others are read to the end, so that they look at it.
    const bool waits = !request.Header("Expect").empty();
    if (exchange.refusal && (waits || ContentLength(request) > kMostDiscardedBytes)) {
      exchange.refusal->close = true;
      return Respond(server, connection, *std::exchange(exchange.refusal, std::nullopt),
                     request.client.id());
    }
    return MHD_YES;
  }

  static std::optional<HttpResponse> Refuse(HttpServer& server, const Connection& from,
                                            HttpRequest& request) {
    if (server.stopping_.load(std::memory_order_relaxed)) {
      return server.handler_.OnOverload("the server is stopping");
    }
    if (from.is_spare) {
      HttpResponse response = server.handler_.OnOverload("too many connections");
      response.close = true;
      return response;
    }
    if (ContentLength(request) > server.options_.max_body_bytes) {
      return server.handler_.OnBodyTooLarge(server.options_.max_body_bytes);
    }
    if (auto response = server.handler_.OnHead(request)) return response;
    if (const Status charged =
            request.charge.TryResizeTo(kBytesPerBodyByte * ContentLength(request));
        !charged) {
      return server.handler_.OnOverload(charged.error().Message());
    }
    return std::nullopt;
  }

  static MHD_Result OnBody(HttpServer& server, Exchange& exchange, const char* data, size_t* size) {
    const size_t count = std::exchange(*size, 0);
    HttpRequest& request = exchange.request;
    if (!exchange.refusal && request.body.size() + count > server.options_.max_body_bytes) {
      exchange.refusal = server.handler_.OnBodyTooLarge(server.options_.max_body_bytes);
    }
    // A body of unknown length is charged as it comes, a step ahead.
    if (const uint64_t needed = kBytesPerBodyByte * (request.body.size() + count);
        !exchange.refusal && needed > request.charge.bytes()) {
      const Status charged = request.charge.TryResizeTo(
          std::min(needed + kBytesPerBodyByte * kHeadBytes, BodiesBytes(server.options_)));
      if (!charged) exchange.refusal = server.handler_.OnOverload(charged.error().Message());
    }
    if (!exchange.refusal) {
      request.body.append(data, count);
      return MHD_YES;
    }
    request.body = std::string();
    request.charge.ShrinkTo(0);
    exchange.discarded_bytes += count;
    return exchange.discarded_bytes > kMostDiscardedBytes ? MHD_NO : MHD_YES;
  }

  static MHD_Result OnEnd(HttpServer& server, MHD_Connection* connection, Exchange& exchange) {
    HttpRequest& request = exchange.request;
    const ConnectionWatch::Id id = request.client.id();
    server.watch_->RequestRead(id);
    HttpResponse response = exchange.refusal ? *std::exchange(exchange.refusal, std::nullopt)
                                             : server.handler_.OnRequest(request);
    return Respond(server, connection, std::move(response), id);
  }

  static MHD_Result Respond(HttpServer& server, MHD_Connection* connection, HttpResponse response,
                            ConnectionWatch::Id id) {
    server.handler_.OnStatus(response.status);
    const HttpLibrary& library = server.library_;
    MHD_Response* out = nullptr;
    if (response.stream != nullptr) {
      auto closure = std::make_unique<Streaming>();
      closure->body = std::move(response.stream);
      closure->watch = server.watch_.get();
      closure->id = id;
      out = library.create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, ReadStream, closure.get(),
                                                  FreeStream);
      if (out != nullptr) (void)closure.release();
    } else {
      server.watch_->AnswerMade(id);
      auto body = std::make_unique<std::string>(std::move(response.body));
      out = library.create_response_from_buffer(body->size(), body->data(), FreeString, body.get());
      if (out != nullptr) (void)body.release();
    }
    if (out == nullptr) return MHD_NO;
    library.add_response_header(out, "Content-Type", response.content_type.c_str());
    library.add_response_header(out, "X-Content-Type-Options", "nosniff");
    for (const auto& [name, value] : response.headers) {
      library.add_response_header(out, name.c_str(), value.c_str());
    }
    if (response.close || server.stopping_.load(std::memory_order_relaxed)) {
      library.add_response_header(out, "Connection", "close");
    }
    const MHD_Result queued =
        library.queue_response(connection, static_cast<unsigned>(response.status), out);
    library.destroy_response(out);  // the connection holds it
    return queued;
  }
};

namespace {

// Where there are too many connections the library's loop over select() leaves further ones in the
// backlog, and its loop over poll() accepts and resets them. But select() knows low descriptors
// only; so many may be others than connections.
unsigned PollingFlag(const HttpServerOptions& options) {
  constexpr uint64_t kOtherDescriptors = 128;
  const uint64_t most = uint64_t{options.max_connections} + kSpareConnections + kOtherDescriptors;
  return most <= FD_SETSIZE ? 0 : MHD_USE_POLL;
}

}  // namespace

uint64_t HttpAccounts::Bytes(const HttpServerOptions& options) {
  return ConnectionsBytes(options) + BodiesBytes(options);
}

Result<HttpAccounts> HttpAccounts::Create(mem::MemoryBudget& budget,
                                          const HttpServerOptions& options) {
  HttpAccounts accounts;
  TAEL_ASSIGN_OR_RETURN(accounts.connections,
                        MemoryAccount::Create(budget, ConnectionsBytes(options)));
  TAEL_ASSIGN_OR_RETURN(accounts.bodies, MemoryAccount::Create(budget, BodiesBytes(options)));
  return accounts;
}

Result<std::unique_ptr<HttpServer>> HttpServer::Create(const HttpServerOptions& options,
                                                       ListenSocket socket, HttpAccounts accounts,
                                                       HttpHandler& handler) {
  TAEL_ASSIGN_OR_RETURN(const HttpLibrary library, HttpLibrary::Load());
  std::unique_ptr<HttpServer> server(
      new HttpServer(options, library, std::move(accounts), handler));
  TAEL_ASSIGN_OR_RETURN(server->watch_, ConnectionWatch::Create(options.time));
  TAEL_RETURN_IF_ERROR(socket.Listen());
  const unsigned flags = PollingFlag(options) | MHD_USE_INTERNAL_POLLING_THREAD |
                         MHD_USE_THREAD_PER_CONNECTION | MHD_USE_ITC;
  const Error failure{ErrorCode::kIo, "the HTTP server cannot start its thread", {}};
  if (FaultHere(FaultKind::kThread)) return failure;
  void* const self = server.get();
  server->daemon_ = server->library_.start_daemon(
      flags, socket.port(), nullptr, nullptr, &Callbacks::OnAccess, self,  //
      MHD_OPTION_LISTEN_SOCKET, socket.Release(),                          //
      MHD_OPTION_CONNECTION_LIMIT, options.max_connections + kSpareConnections,
      MHD_OPTION_CONNECTION_MEMORY_LIMIT, kHeadBytes,                //
      MHD_OPTION_THREAD_STACK_SIZE, kStackBytes,                     //
      MHD_OPTION_STRICT_FOR_CLIENT, 1,                               //
      MHD_OPTION_NOTIFY_COMPLETED, &Callbacks::OnCompleted, self,    //
      MHD_OPTION_NOTIFY_CONNECTION, &Callbacks::OnConnection, self,  //
      MHD_OPTION_END);
  if (server->daemon_ == nullptr) return failure;
  return server;
}

void HttpServer::RequestBegan() {
  const std::lock_guard lock(mutex_);
  ++num_requests_;
}

void HttpServer::RequestEnded() {
  const std::lock_guard lock(mutex_);
  if (--num_requests_ == 0) all_ended_.notify_all();
}

void HttpServer::Stop(std::chrono::milliseconds grace) {
  if (daemon_ == nullptr) return;
  stopping_.store(true, std::memory_order_relaxed);
  const FileDescriptor listening(library_.quiesce_daemon(daemon_));
  {
    std::unique_lock lock(mutex_);
    all_ended_.wait_for(lock, grace, [this] { return num_requests_ == 0; });
  }
  watch_->AbandonAll();
  library_.stop_daemon(daemon_);
  daemon_ = nullptr;
}

}  // namespace tael::server
