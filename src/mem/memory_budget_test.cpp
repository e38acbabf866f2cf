#include "mem/memory_budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace tael::mem {
namespace {

LedgerPart PartOf(const MemoryBudget& budget, MemoryTag tag) {
  return budget.Snapshot().parts[static_cast<size_t>(tag)];
}

TEST(MemoryBudget, GrantsUpToTheLimitAndNotAByteMore) {
  MemoryBudget budget(100);
  Result<Reservation> most = budget.Reserve(MemoryTag::kKv, 99);
  ASSERT_TRUE(most);
  EXPECT_EQ(budget.free_bytes(), 1u);
  EXPECT_FALSE(budget.Reserve(MemoryTag::kKv, 2));
  Result<Reservation> last = budget.Reserve(MemoryTag::kServer, 1);
  ASSERT_TRUE(last);
  EXPECT_EQ(budget.free_bytes(), 0u);
  EXPECT_TRUE(budget.Reserve(MemoryTag::kServer, 0));
}

TEST(MemoryBudget, ARefusedReserveChangesNothingAndAllocatesNothing) {
  MemoryBudget budget(100);
  Result<Reservation> held = budget.Reserve(MemoryTag::kKv, 60);
  ASSERT_TRUE(held);
  for (const uint64_t bytes : {uint64_t{41}, uint64_t{1} << 63, UINT64_MAX}) {
    const Result<Reservation> refused = budget.Reserve(MemoryTag::kPrefix, bytes);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBudget);
    EXPECT_TRUE(refused.error().detail.empty());  // the message is static
    EXPECT_NE(refused.error().Message().find("prefix"), std::string::npos);
    EXPECT_NE(refused.error().Message().find("--budget"), std::string::npos);
  }
  const LedgerSnapshot ledger = budget.Snapshot();
  EXPECT_EQ(ledger.reserved_bytes, 60u);
  EXPECT_EQ(ledger.high_water_bytes, 60u);
  EXPECT_EQ(PartOf(budget, MemoryTag::kPrefix).high_water_bytes, 0u);
}

TEST(MemoryBudget, WithoutACapEverythingIsStillCounted) {
  MemoryBudget budget(0);
  Result<Reservation> huge = budget.Reserve(MemoryTag::kKv, UINT64_MAX - 1);
  ASSERT_TRUE(huge);
  EXPECT_EQ(budget.free_bytes(), UINT64_MAX);
  EXPECT_EQ(budget.reserved_bytes(), UINT64_MAX - 1);
  EXPECT_FALSE(budget.Reserve(MemoryTag::kKv, 2)) << "the sum would wrap";
}

TEST(MemoryBudget, HighWaterMarksStayWhenBytesGoBack) {
  MemoryBudget budget(1000);
  {
    Result<Reservation> a = budget.Reserve(MemoryTag::kKv, 300);
    Result<Reservation> b = budget.Reserve(MemoryTag::kActivations, 200);
    ASSERT_TRUE(a && b);
  }
  Result<Reservation> c = budget.Reserve(MemoryTag::kKv, 100);
  ASSERT_TRUE(c);
  const LedgerSnapshot ledger = budget.Snapshot();
  EXPECT_EQ(ledger.limit_bytes, 1000u);
  EXPECT_EQ(ledger.reserved_bytes, 100u);
  EXPECT_EQ(ledger.high_water_bytes, 500u);
  EXPECT_EQ(PartOf(budget, MemoryTag::kKv).reserved_bytes, 100u);
  EXPECT_EQ(PartOf(budget, MemoryTag::kKv).high_water_bytes, 300u);
  EXPECT_EQ(PartOf(budget, MemoryTag::kActivations).reserved_bytes, 0u);
  EXPECT_EQ(PartOf(budget, MemoryTag::kActivations).high_water_bytes, 200u);
}

TEST(MemoryBudget, UsedFollowsTheReservationsThatTouchTheirBytes) {
  MemoryBudget budget(1000);
  Result<Reservation> a = budget.Reserve(MemoryTag::kKv, 300);
  Result<Reservation> b = budget.Reserve(MemoryTag::kServer, 50);
  ASSERT_TRUE(a && b);
  a->SetUsed(200);
  b->SetUsed(50);
  EXPECT_EQ(budget.Snapshot().used_bytes, 250u);
  a->SetUsed(10);
  EXPECT_EQ(a->used_bytes(), 10u);
  EXPECT_EQ(PartOf(budget, MemoryTag::kKv).used_bytes, 10u);
  a->Reset();
  EXPECT_EQ(budget.Snapshot().used_bytes, 50u);
  EXPECT_EQ(budget.reserved_bytes(), 50u);
}

TEST(Reservation, MovesAreNotCopies) {
  MemoryBudget budget(100);
  Reservation first = budget.Reserve(MemoryTag::kKv, 40).value();
  first.SetUsed(30);
  Reservation second = std::move(first);
  EXPECT_EQ(first.bytes(), 0u);  // NOLINT: a moved-from reservation is empty by contract
  EXPECT_EQ(second.bytes(), 40u);
  EXPECT_EQ(second.used_bytes(), 30u);
  second = budget.Reserve(MemoryTag::kServer, 10).value();
  EXPECT_EQ(budget.reserved_bytes(), 10u);
  EXPECT_EQ(budget.Snapshot().used_bytes, 0u);
  Reservation& self = second;
  second = std::move(self);
  EXPECT_EQ(second.bytes(), 10u);
  second.Reset();
  second.Reset();
  EXPECT_EQ(budget.reserved_bytes(), 0u);
}

TEST(MemoryTag, EachHasItsOwnName) {
  EXPECT_EQ(ToString(MemoryTag::kWeights), "weights");
  EXPECT_EQ(ToString(MemoryTag::kKv), "kv");
  EXPECT_EQ(ToString(MemoryTag::kActivations), "activations");
  EXPECT_EQ(ToString(MemoryTag::kTokenizer), "tokenizer");
  EXPECT_EQ(ToString(MemoryTag::kPrefix), "prefix");
  EXPECT_EQ(ToString(MemoryTag::kSnapshot), "snapshot");
  EXPECT_EQ(ToString(MemoryTag::kServer), "server");
  EXPECT_EQ(ToString(MemoryTag::kKernel), "kernel");
  EXPECT_EQ(ToString(MemoryTag::kRuntime), "runtime");
}

// What one thread believes it holds.
struct Worker {
  std::vector<Reservation> held;
  uint64_t held_bytes = 0;
  uint64_t granted = 0;
  uint64_t refused = 0;
};

void Step(MemoryBudget& budget, std::mt19937_64& random, Worker& worker) {
  const uint64_t bytes = random() % 5000;
  const auto tag = static_cast<MemoryTag>(random() % kNumMemoryTags);
  if (random() % 2 == 0) {
    Result<Reservation> got = budget.Reserve(tag, bytes);
    (got ? worker.granted : worker.refused) += 1;
    if (!got) return;
    got->SetUsed(random() % (bytes + 1));
    worker.held_bytes += bytes;
    worker.held.push_back(*std::move(got));
  } else if (!worker.held.empty()) {
    std::swap(worker.held[random() % worker.held.size()], worker.held.back());
    worker.held_bytes -= worker.held.back().bytes();
    worker.held.pop_back();
  }
}

// Threads hold more than they may in sum, so grants and refusals race at the limit all the time.
TEST(MemoryBudget, TheSumNeverPassesTheLimitWhateverThreadsDo) {
  constexpr uint64_t kLimit = 20000;
  constexpr size_t kThreads = 4;
  MemoryBudget budget(kLimit);
  std::vector<Worker> workers(kThreads);
  std::atomic<bool> done{false};
  std::atomic<uint64_t> worst{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random(i + 1);
      for (int step = 0; step < 20000; ++step) {
        Step(budget, random, workers[i]);
        const uint64_t seen = budget.reserved_bytes();
        uint64_t most = worst.load();
        while (seen > most && !worst.compare_exchange_weak(most, seen)) {
        }
      }
    });
  }
  std::thread watcher([&] {
    while (!done.load()) {
      EXPECT_LE(budget.reserved_bytes(), kLimit);
      EXPECT_LE(budget.Snapshot().high_water_bytes, kLimit);
      EXPECT_LE(budget.free_bytes(), kLimit);
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  watcher.join();

  EXPECT_LE(worst.load(), kLimit);
  uint64_t held = 0;
  uint64_t used = 0;
  for (Worker& worker : workers) {
    EXPECT_GT(worker.granted, 0u);
    EXPECT_GT(worker.refused, 0u) << "the limit was never met: the test proves nothing";
    held += worker.held_bytes;
    for (const Reservation& reservation : worker.held) used += reservation.used_bytes();
  }
  LedgerSnapshot ledger = budget.Snapshot();
  EXPECT_EQ(ledger.reserved_bytes, held);
  EXPECT_EQ(ledger.used_bytes, used);
  uint64_t parts = 0;
  for (const LedgerPart& part : ledger.parts) parts += part.reserved_bytes;
  EXPECT_EQ(parts, held);
  workers.clear();
  ledger = budget.Snapshot();
  EXPECT_EQ(ledger.reserved_bytes, 0u);
  EXPECT_EQ(ledger.used_bytes, 0u);
}

// More than half of the limit fits once. A check that is not one step with the addition lets two
// in.
TEST(MemoryBudget, OfManyThreadsOnlyOneHoldsMoreThanHalf) {
  MemoryBudget budget(100);
  std::atomic<int> holders{0};
  std::atomic<int> most{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      // Long enough for threads to meet on a busy machine, too.
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
      for (int step = 0; step % 256 != 0 || std::chrono::steady_clock::now() < end; ++step) {
        const Result<Reservation> got = budget.Reserve(MemoryTag::kKv, 51);
        if (!got) continue;
        const int now = holders.fetch_add(1) + 1;
        if (now > most.load()) most = now;
        holders.fetch_sub(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most.load(), 1);
  EXPECT_EQ(budget.Snapshot().high_water_bytes, 51u);
}

TEST(MemoryBudgetDeathTest, ALeakedReservationIsABug) {
  EXPECT_DEATH(
      {
        Reservation leaked;
        MemoryBudget budget(10);
        leaked = budget.Reserve(MemoryTag::kKv, 1).value();
      },
      "reserved_bytes");
  EXPECT_DEATH(
      {
        MemoryBudget budget(10);
        Reservation held = budget.Reserve(MemoryTag::kKv, 1).value();
        held.SetUsed(2);
      },
      "used <= bytes_");
}

}  // namespace
}  // namespace tael::mem
