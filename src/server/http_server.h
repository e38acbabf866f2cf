// HTTP/1.1 over libmicrohttpd: a thread for each connection, and a limit on everything.
//
//   connections   max_connections; the next few get 503 and Retry-After, others wait in the backlog
//   head          kHeadBytes: 431 and 413 by the library itself
//   body          max_body_bytes, whether its length is said beforehand or not: 413
//   memory        a body is charged before it is read (http_message.h): 503
//   time          of a request to arrive and of an answer to be taken (connection_watch.h)
//
// Why threads: an answer is made by code that waits (for the scheduler, for a slow reader), and a
// suspended connection of this library does not notice that its client left. What a thread costs is
// known: kConnectionBytes.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "base/result.h"
#include "server/connection_watch.h"
#include "server/http_library.h"
#include "server/http_message.h"
#include "server/listen_socket.h"

namespace tael::server {

struct HttpServerOptions {
  uint32_t max_connections = 64;
  uint64_t max_body_bytes = uint64_t{256} << 10;
  WatchLimits time = {};
};

inline constexpr size_t kHeadBytes = size_t{32} << 10;

// Connections above max_connections that are told so.
inline constexpr uint32_t kSpareConnections = 8;

// Of one connection: its head and write buffer, the touched end of its thread's stack with its
// share of the heap, kernel stack, and full socket buffers, which the kernel doubles.
inline constexpr uint64_t kConnectionBytes =
    kHeadBytes + (uint64_t{64} << 10) + (uint64_t{16} << 10) + 4 * kSocketBufferBytes;

// What connections take, and what the bodies of requests do. Apart: a connection that may come has
// its memory, however many bodies are being read.
struct HttpAccounts {
  // For all connections that there may be, and one body of the largest size (or more of smaller
  // ones). Fails: kOutOfBudget.
  static Result<HttpAccounts> Create(mem::MemoryBudget& budget, const HttpServerOptions& options);
  static uint64_t Bytes(const HttpServerOptions& options);

  std::unique_ptr<MemoryAccount> connections;
  std::unique_ptr<MemoryAccount> bodies;
};

class HttpServer {
 public:
  // Serves what comes in by `socket`, from now on. `handler` outlives it.
  // Fails: kIo; kUnsupported where the library is not there.
  static Result<std::unique_ptr<HttpServer>> Create(const HttpServerOptions& options,
                                                    ListenSocket socket, HttpAccounts accounts,
                                                    HttpHandler& handler);
  ~HttpServer() { Stop(std::chrono::milliseconds(0)); }

  // Accepts no more, gives requests in flight so long to end, and then abandons them.
  void Stop(std::chrono::milliseconds grace);

 private:
  friend struct Callbacks;
  HttpServer(const HttpServerOptions& options, const HttpLibrary& library, HttpAccounts accounts,
             HttpHandler& handler)
      : options_(options), library_(library), accounts_(std::move(accounts)), handler_(handler) {}
  void RequestBegan();
  void RequestEnded();

  const HttpServerOptions options_;
  const HttpLibrary library_;
  const HttpAccounts accounts_;
  HttpHandler& handler_;
  std::unique_ptr<ConnectionWatch> watch_;
  MHD_Daemon* daemon_ = nullptr;

  std::mutex mutex_;
  std::condition_variable all_ended_;
  size_t num_requests_ = 0;  // guarded by mutex_
  std::atomic<bool> stopping_{false};
};

}  // namespace tael::server
