#include "base/fault.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace tael {
namespace {

TEST(Fault, NothingFailsUnlessArmed) {
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(FaultHere(FaultKind::kMap));
}

TEST(Fault, TheNthFailsOnceAndNoOtherKind) {
  const FaultInjection fault(FaultKind::kMap, 3);
  for (int i = 1; i <= 10; ++i) {
    EXPECT_FALSE(FaultHere(FaultKind::kRead));
    EXPECT_EQ(FaultHere(FaultKind::kMap), i == 3) << i;
    EXPECT_EQ(fault.fired(), i >= 3) << i;
  }
}

TEST(Fault, AnEndedInjectionFailsNothing) {
  { const FaultInjection fault(FaultKind::kThread, 1); }
  EXPECT_FALSE(FaultHere(FaultKind::kThread));
}

TEST(Fault, OfManyThreadsExactlyOneFails) {
  const FaultInjection fault(FaultKind::kReserve, 500);
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 250; ++i) failed += FaultHere(FaultKind::kReserve) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 1);
}

TEST(Fault, WhatTheEnvironmentSaysMustBeAKindAndANumber) {
  for (const char* text : {"", "map", "map:", "map:0", "map:x", "map:1x", "mapping:1", "disk:1"}) {
    EXPECT_FALSE(ArmFault(text)) << text;
    EXPECT_FALSE(FaultHere(FaultKind::kMap)) << text;
  }
  const FaultInjection cleans_up(FaultKind::kMap, 9);
  EXPECT_TRUE(ArmFault("map:2"));
  EXPECT_FALSE(FaultHere(FaultKind::kMap));
  EXPECT_TRUE(FaultHere(FaultKind::kMap));
}

}  // namespace
}  // namespace tael
