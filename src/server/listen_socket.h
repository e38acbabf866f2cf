// The socket that the server listens on: bound before a model is loaded, so that a port that is
// taken is said at once, and listening when the server is ready.
#pragma once

#include <cstdint>
#include <string>

#include "base/file_descriptor.h"
#include "base/result.h"

namespace tael::server {

class ListenSocket {
 public:
  // `host` is a name or an address; port 0: any that is free.
  // Fails: kInvalidArgument, naming host and port.
  static Result<ListenSocket> Bind(const std::string& host, uint16_t port);

  // From now on clients may connect. Fails: kIo.
  Status Listen();

  uint16_t port() const { return port_; }
  bool is_loopback() const { return is_loopback_; }  // reachable from this machine alone
  std::string Url() const;                           // "http://127.0.0.1:8080"
  int Release() { return fd_.Release(); }

 private:
  ListenSocket() = default;

  FileDescriptor fd_;
  std::string host_;
  uint16_t port_ = 0;
  bool is_loopback_ = false;
};

// What the kernel may hold for a connection in each direction: it doubles what it is told.
inline constexpr int kSocketBufferBytes = 16 * 1024;

}  // namespace tael::server
