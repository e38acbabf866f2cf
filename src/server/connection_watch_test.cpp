#include "server/connection_watch.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>
#include <utility>

#include "server/testing.h"

namespace tael::server {
namespace {

using namespace std::chrono_literals;

// Two ends of a connection: ours is watched.
struct Pair {
  Pair() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    ours = FileDescriptor(ends[0]);
    theirs = FileDescriptor(ends[1]);
  }
  FileDescriptor ours, theirs;
};

std::unique_ptr<ConnectionWatch> Create(const WatchLimits& limits = {}) {
  auto watch = ConnectionWatch::Create(limits);
  EXPECT_TRUE(watch.has_value());
  return *std::move(watch);
}

TEST(ConnectionWatch, AClientThatLeavesIsNoticedWhileItsAnswerIsMade) {
  Pair pair;
  const auto watch = Create();
  const auto id = watch->Open(pair.ours.get());
  watch->RequestRead(id);
  std::atomic<int> calls{0};
  watch->OnGone(id, [&] { ++calls; });
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(calls, 0);
  EXPECT_FALSE(watch->IsGone(id));
  pair.theirs = FileDescriptor();
  EXPECT_TRUE(Soon([&] { return calls == 1; }));
  EXPECT_TRUE(watch->IsGone(id));
  watch->Close(id);
}

TEST(ConnectionWatch, AClientThatOnlySendsIsNotGone) {
  Pair pair;
  const auto watch = Create();
  const auto id = watch->Open(pair.ours.get());
  std::atomic<int> calls{0};
  watch->OnGone(id, [&] { ++calls; });
  ASSERT_EQ(write(pair.theirs.get(), "next", 4), 4);
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(calls, 0);
  watch->Close(id);
}

TEST(ConnectionWatch, WhatIsForgottenIsNotCalled) {
  Pair pair;
  const auto watch = Create();
  const auto id = watch->Open(pair.ours.get());
  std::atomic<int> calls{0};
  watch->OnGone(id, [&] { ++calls; });
  watch->ForgetOnGone(id);
  pair.theirs = FileDescriptor();
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(calls, 0);
  watch->Close(id);
}

TEST(ConnectionWatch, ARequestThatIsNotCompleteInTimeIsCut) {
  Pair pair;
  const auto watch = Create({.request = 30ms, .answer = 10s});
  const auto id = watch->Open(pair.ours.get());
  char byte = 0;
  EXPECT_EQ(recv(pair.theirs.get(), &byte, 1, 0), 0);  // blocks until the shutdown
  watch->Close(id);
}

TEST(ConnectionWatch, AnAnswerHasAllTheTimeToBeMadeAndALimitToBeTaken) {
  Pair pair;
  const auto watch = Create({.request = 10ms, .answer = 20ms});
  const auto id = watch->Open(pair.ours.get());
  watch->RequestRead(id);
  std::this_thread::sleep_for(60ms);
  char byte = 0;
  EXPECT_EQ(recv(pair.theirs.get(), &byte, 1, MSG_DONTWAIT), -1);  // still open
  watch->AnswerMade(id);
  EXPECT_EQ(recv(pair.theirs.get(), &byte, 1, 0), 0);
  watch->Close(id);
}

TEST(ConnectionWatch, AbandonAllCallsEveryoneNowAndLater) {
  Pair pair;
  const auto watch = Create();
  const auto id = watch->Open(pair.ours.get());
  int calls = 0;
  watch->OnGone(id, [&] { ++calls; });
  watch->AbandonAll();
  EXPECT_EQ(calls, 1);
  watch->OnGone(id, [&] { ++calls; });
  EXPECT_EQ(calls, 2);
  watch->Close(id);
}

TEST(ConnectionWatch, AClosedConnectionIsGone) {
  Pair pair;
  const auto watch = Create();
  const auto id = watch->Open(pair.ours.get());
  EXPECT_EQ(watch->num_connections(), 1u);
  watch->Close(id);
  EXPECT_EQ(watch->num_connections(), 0u);
  int calls = 0;
  watch->OnGone(id, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace tael::server
