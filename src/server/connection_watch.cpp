#include "server/connection_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/thread.h"

namespace tael::server {

Result<std::unique_ptr<ConnectionWatch>> ConnectionWatch::Create(const WatchLimits& limits) {
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.is_open()) {
    return Error{ErrorCode::kIo, "no event descriptor for the server", std::strerror(errno)};
  }
  std::unique_ptr<ConnectionWatch> watch(new ConnectionWatch(limits, std::move(wake)));
  TAEL_ASSIGN_OR_RETURN(watch->thread_, StartThread("the server cannot start a thread",
                                                    [raw = watch.get()] { raw->Run(); }));
  return watch;
}

ConnectionWatch::~ConnectionWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
}

void ConnectionWatch::Wake() {
  const uint64_t one = 1;
  // Only full counters make it fail, and those are readable already.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

ConnectionWatch::Id ConnectionWatch::Open(int fd) {
  Id id = 0;
  {
    const std::lock_guard lock(mutex_);
    id = next_id_++;
    connections_[id] = {.fd = fd, .deadline = Clock::now() + limits_.request, .on_gone = {}};
  }
  Wake();
  return id;
}

void ConnectionWatch::Close(Id id) {
  const std::lock_guard lock(mutex_);
  connections_.erase(id);
}

void ConnectionWatch::SetDeadline(Id id, Clock::time_point deadline) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    found->second.deadline = deadline;
    if (deadline == Clock::time_point::max()) return;
  }
  Wake();
}

void ConnectionWatch::RequestRead(Id id) { SetDeadline(id, Clock::time_point::max()); }
void ConnectionWatch::AnswerMade(Id id) { SetDeadline(id, Clock::now() + limits_.answer); }
void ConnectionWatch::AnswerSent(Id id) { SetDeadline(id, Clock::now() + limits_.request); }

void ConnectionWatch::OnGone(Id id, std::function<void()> gone) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = connections_.find(id);
    if (found == connections_.end() || found->second.gone || all_gone_) {
      gone();
      return;
    }
    found->second.on_gone = std::move(gone);
  }
  Wake();
}

void ConnectionWatch::ForgetOnGone(Id id) {
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find(id);
  if (found != connections_.end()) found->second.on_gone = nullptr;
}

bool ConnectionWatch::IsGone(Id id) const {
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find(id);
  return all_gone_ || found == connections_.end() || found->second.gone;
}

void ConnectionWatch::AbandonAll() {
  const std::lock_guard lock(mutex_);
  all_gone_ = true;
  for (auto& [id, connection] : connections_) {
    if (auto on_gone = std::exchange(connection.on_gone, nullptr)) on_gone();
  }
}

size_t ConnectionWatch::num_connections() const {
  const std::lock_guard lock(mutex_);
  return connections_.size();
}

// The connection's own thread may be waiting for the client to read: the shutdown ends that.
void ConnectionWatch::MarkGone(Connection& connection) {
  connection.gone = true;
  shutdown(connection.fd, SHUT_RDWR);
  if (auto on_gone = std::exchange(connection.on_gone, nullptr)) on_gone();
}

int ConnectionWatch::MillisecondsToWait() const {
  Clock::time_point first = Clock::time_point::max();
  for (const auto& [id, connection] : connections_) first = std::min(first, connection.deadline);
  if (first == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(first - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

void ConnectionWatch::CutLateOnes() {
  const Clock::time_point now = Clock::now();
  for (auto& [id, connection] : connections_) {
    if (connection.deadline > now) continue;
    connection.deadline = Clock::time_point::max();
    MarkGone(connection);
  }
}

void ConnectionWatch::Run() {
  std::vector<pollfd> sockets;
  std::vector<Id> ids;
  for (;;) {
    sockets.assign(1, {wake_.get(), POLLIN, 0});
    ids.assign(1, 0);
    int timeout = 0;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      for (const auto& [id, connection] : connections_) {
        if (!connection.on_gone) continue;
        sockets.push_back({connection.fd, POLLRDHUP, 0});
        ids.push_back(id);
      }
      timeout = MillisecondsToWait();
    }
    if (poll(sockets.data(), sockets.size(), timeout) < 0) continue;  // a signal
    uint64_t drained = 0;
    [[maybe_unused]] const ssize_t count = read(wake_.get(), &drained, sizeof drained);

    const std::lock_guard lock(mutex_);
    for (size_t i = 1; i < sockets.size(); ++i) {
      if (sockets[i].revents == 0) continue;
      // By id: the descriptor may be another connection's by now.
      const auto found = connections_.find(ids[i]);
      if (found != connections_.end() && found->second.on_gone) MarkGone(found->second);
    }
    CutLateOnes();
  }
}

}  // namespace tael::server
