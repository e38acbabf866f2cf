#include "server/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/file_descriptor.h"

namespace tael::server {
namespace {

std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::optional<int64_t> NumberIn(const char* name) {
  const std::string_view text = Variable(name);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), value);
  if (text.empty() || error != std::errc{} || end != text.end()) return std::nullopt;
  return value;
}

std::optional<std::chrono::milliseconds> WatchdogTime() {
  const auto microseconds = NumberIn("WATCHDOG_USEC");
  if (!microseconds || *microseconds <= 0) return std::nullopt;
  // Another process may be meant: the variables are inherited.
  const auto pid = NumberIn("WATCHDOG_PID");
  if (pid && *pid != getpid()) return std::nullopt;
  return std::chrono::milliseconds(std::max<int64_t>(1, *microseconds / 1000));
}

}  // namespace

ServiceManager ServiceManager::FromEnvironment() {
  return ServiceManager(std::string(Variable("NOTIFY_SOCKET")), WatchdogTime());
}

std::optional<std::chrono::milliseconds> ServiceManager::watchdog_interval() const {
  if (socket_path_.empty() || !watchdog_) return std::nullopt;
  return *watchdog_ / 3;  // two may be late
}

void ServiceManager::Ready(std::string_view status) const {
  Send("READY=1\nSTATUS=" + std::string(status));
}

void ServiceManager::Send(std::string_view message) const {
  sockaddr_un address{};
  if (socket_path_.empty() || socket_path_.size() >= sizeof address.sun_path) return;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_path_.data(), socket_path_.size());
  if (socket_path_.front() == '@') address.sun_path[0] = '\0';
  const FileDescriptor fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) return;
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_path_.size());
  // Nothing to be done where nobody takes it.
  [[maybe_unused]] const ssize_t sent =
      sendto(fd.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
             reinterpret_cast<const sockaddr*>(&address), length);
}

}  // namespace tael::server
