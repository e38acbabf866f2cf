// Watches the sockets of all connections from one thread, so that two things are noticed whatever
// the connection's own thread is busy with:
//
//   a client that left    while its answer is queued, computed or sent; known at once (POLLRDHUP),
//                         and what was registered with OnGone() is called
//   a client that dawdles a request that is not complete, or an answer that is not taken, in time;
//                         its socket is shut down
//
//   state      deadline            entered by
//   waiting    limits.request      Open(), AnswerSent()
//   answering  none                RequestRead()
//   sending    limits.answer       AnswerMade()
//
// A client that closes its half of the connection while its answer is made counts as gone. One that
// vanishes without a word is found by the kernel's keep-alive probes (http_server.cpp).
//
// Any thread may call anything.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/file_descriptor.h"
#include "base/result.h"

namespace tael::server {

struct WatchLimits {
  std::chrono::milliseconds request{30'000};
  std::chrono::milliseconds answer{60'000};
};

class ConnectionWatch {
 public:
  using Id = uint64_t;  // never used twice

  static Result<std::unique_ptr<ConnectionWatch>> Create(const WatchLimits& limits);
  ~ConnectionWatch();

  Id Open(int fd);
  void Close(Id id);  // before the socket is closed
  void RequestRead(Id id);
  void AnswerMade(Id id);
  void AnswerSent(Id id);

  // Calls `gone` once when the client leaves, or at once when it has left already. Quick, and does
  // not call back. One at a time for each connection.
  void OnGone(Id id, std::function<void()> gone);
  // Afterwards it is neither called nor being called.
  void ForgetOnGone(Id id);
  bool IsGone(Id id) const;  // true for a connection that is closed, too

  // From now on every client counts as gone.
  void AbandonAll();

  size_t num_connections() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Connection {
    int fd = -1;
    bool gone = false;
    Clock::time_point deadline = Clock::time_point::max();
    std::function<void()> on_gone;
  };

  explicit ConnectionWatch(const WatchLimits& limits, FileDescriptor wake)
      : limits_(limits), wake_(std::move(wake)) {}
  void Run();
  void Wake();
  void SetDeadline(Id id, Clock::time_point deadline);
  static void MarkGone(Connection& connection);
  int MillisecondsToWait() const;
  void CutLateOnes();

  const WatchLimits limits_;
  const FileDescriptor wake_;

  mutable std::mutex mutex_;
  std::map<Id, Connection> connections_;  // and what follows: guarded by mutex_
  Id next_id_ = 1;
  bool all_gone_ = false;
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace tael::server
