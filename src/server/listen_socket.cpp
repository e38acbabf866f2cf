#include "server/listen_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

namespace tael::server {
namespace {

constexpr int kBacklog = 128;

Error CannotListen(const std::string& host, uint16_t port, const char* why) {
  return Error{ErrorCode::kInvalidArgument, "cannot listen",
               "on " + host + ", port " + std::to_string(port) + ": " + why};
}

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, address, sizeof v4);
    return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
  }
  if (address->sa_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, address, sizeof v6);
    const bool is_mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) || (is_mapped && v6.sin6_addr.s6_addr[12] == 127);
  }
  return false;
}

uint16_t BoundPort(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  if (address.ss_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &address, sizeof v6);
    return ntohs(v6.sin6_port);
  }
  sockaddr_in v4{};
  std::memcpy(&v4, &address, sizeof v4);
  return ntohs(v4.sin_port);
}

// Connections inherit the buffer sizes of the socket that they came in by.
void SetOptions(int fd) {
  const int on = 1, bytes = kSocketBufferBytes;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

}  // namespace

Result<ListenSocket> ListenSocket::Bind(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failure != 0) return CannotListen(host, port, gai_strerror(failure));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);

  int reason = 0;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    FileDescriptor fd(socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC, 0));
    if (fd.is_open()) SetOptions(fd.get());
    if (!fd.is_open() || bind(fd.get(), info->ai_addr, info->ai_addrlen) != 0) {
      reason = errno;
      continue;
    }
    ListenSocket out;
    out.port_ = BoundPort(fd.get());
    out.fd_ = std::move(fd);
    out.host_ = host;
    out.is_loopback_ = IsLoopback(info->ai_addr);
    return out;
  }
  return CannotListen(host, port, std::strerror(reason));
}

Status ListenSocket::Listen() {
  if (listen(fd_.get(), kBacklog) == 0) return {};
  return Error{ErrorCode::kIo, "cannot listen", std::strerror(errno)};
}

std::string ListenSocket::Url() const {
  const bool is_v6 = host_.find(':') != std::string::npos;
  return "http://" + (is_v6 ? "[" + host_ + "]" : host_) + ":" + std::to_string(port_);
}

}  // namespace tael::server
