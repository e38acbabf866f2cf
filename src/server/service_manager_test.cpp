#include "server/service_manager.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/file_descriptor.h"

namespace tael::server {
namespace {

using namespace std::chrono_literals;

// Listens as systemd does, on an abstract socket.
class Listener {
 public:
  Listener() : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name_.data(), name_.size());
    address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name_.size());
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  }
  const std::string& name() const { return name_; }
  std::string Receive() {
    char text[256];
    const ssize_t count = recv(fd_.get(), text, sizeof text, MSG_DONTWAIT);
    return count < 0 ? "" : std::string(text, static_cast<size_t>(count));
  }

 private:
  const std::string name_ = "@tael-test-" + std::to_string(getpid());
  FileDescriptor fd_;
};

TEST(ServiceManager, SaysWhatHappensInADatagramEach) {
  Listener listener;
  const ServiceManager manager(listener.name(), 3000ms);
  manager.Ready("serving m");
  EXPECT_EQ(listener.Receive(), "READY=1\nSTATUS=serving m");
  manager.Alive();
  EXPECT_EQ(listener.Receive(), "WATCHDOG=1");
  manager.Stopping();
  EXPECT_EQ(listener.Receive(), "STOPPING=1");
  EXPECT_EQ(manager.watchdog_interval(), 1000ms);
}

TEST(ServiceManager, WithoutASocketNothingIsSaid) {
  const ServiceManager manager("", 3000ms);
  manager.Ready("x");
  EXPECT_FALSE(manager.watchdog_interval().has_value());
}

TEST(ServiceManager, AWatchdogThatIsMeantForAnotherProcessIsNotOurs) {
  setenv("NOTIFY_SOCKET", "@nobody", 1);
  setenv("WATCHDOG_USEC", "9000000", 1);
  setenv("WATCHDOG_PID", std::to_string(getpid()).c_str(), 1);
  EXPECT_EQ(ServiceManager::FromEnvironment().watchdog_interval(), 3000ms);
  setenv("WATCHDOG_PID", "1", 1);
  EXPECT_FALSE(ServiceManager::FromEnvironment().watchdog_interval().has_value());
  unsetenv("NOTIFY_SOCKET");
  unsetenv("WATCHDOG_USEC");
  unsetenv("WATCHDOG_PID");
}

}  // namespace
}  // namespace tael::server
