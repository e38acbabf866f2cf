// Tells systemd (or whoever set NOTIFY_SOCKET) that the service is ready, alive, or stopping: one
// datagram each. Without such a socket nothing is said.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tael::server {

class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
  static ServiceManager FromEnvironment();
  ServiceManager(std::string socket_path, std::optional<std::chrono::milliseconds> watchdog)
      : socket_path_(std::move(socket_path)), watchdog_(watchdog) {}

  void Ready(std::string_view status) const;
  void Stopping() const { Send("STOPPING=1"); }
  void Alive() const { Send("WATCHDOG=1"); }

  // Alive() is wanted this often; none: never.
  std::optional<std::chrono::milliseconds> watchdog_interval() const;

 private:
  void Send(std::string_view message) const;

  std::string socket_path_;  // "": nobody listens; "@name": an abstract one
  std::optional<std::chrono::milliseconds> watchdog_;
};

}  // namespace tael::server
