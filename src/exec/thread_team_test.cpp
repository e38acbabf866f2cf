#include "exec/thread_team.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <time.h>

#include <atomic>
#include <numeric>
#include <vector>

namespace tael::exec {
namespace {

class Team : public testing::TestWithParam<size_t> {};

TEST_P(Team, EveryThreadRunsTheBodyOnce) {
  auto team = ThreadTeam::Create(GetParam());
  ASSERT_TRUE(team.has_value());
  std::vector<std::atomic<int>> runs(GetParam());
  for (int round = 0; round < 200; ++round) {
    (*team)->Run([&](size_t thread) { runs[thread].fetch_add(1); });
  }
  for (const auto& count : runs) EXPECT_EQ(count.load(), 200);
}

TEST_P(Team, NobodyPassesABarrierBeforeAllHaveArrived) {
  auto team = ThreadTeam::Create(GetParam());
  ASSERT_TRUE(team.has_value());
  std::vector<int> step(GetParam());  // plain ints: ThreadSanitizer proves the barrier orders them
  std::atomic<int> early{0};
  (*team)->Run([&](size_t thread) {
    for (int round = 1; round <= 300; ++round) {
      step[thread] = round;
      (*team)->Barrier();
      for (int other : step) early.fetch_add(other != round ? 1 : 0);
      (*team)->Barrier();
    }
  });
  EXPECT_EQ(early.load(), 0);
}

TEST_P(Team, TheCallersAffinityIsAsBefore) {
  auto team = ThreadTeam::Create(GetParam());
  cpu_set_t before, after;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  (*team)->Run([](size_t) {});
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

// The CPUs that this process may use.
std::vector<int> Usable() {
  cpu_set_t set;
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) cpus.push_back(cpu);
  }
  return cpus;
}

TEST_P(Team, EveryThreadStaysOnTheTeamsCpus) {
  const std::vector<int> cpus = {Usable().back()};
  auto team = ThreadTeam::Create(GetParam(), cpus);
  ASSERT_TRUE(team.has_value());
  std::atomic<int> elsewhere{0};
  for (int round = 0; round < 20; ++round) {
    (*team)->Run([&](size_t) { elsewhere.fetch_add(sched_getcpu() != cpus[0] ? 1 : 0); });
  }
  EXPECT_EQ(elsewhere.load(), 0);
  EXPECT_EQ(Usable().size() > 1, Usable() != cpus);  // the caller is free again
}

// All on one CPU: whoever spins keeps the others from arriving. With full spins of 20 microseconds
// 20,000 barriers of a team of two take more than 0.4 s of spinning; measured 0.1 s.
TEST(ThreadTeam, SharingACoreCostsNoSpinningInTheEnd) {
  auto team = ThreadTeam::Create(2, {Usable().back()});
  ASSERT_TRUE(team.has_value());
  const auto cpu_seconds = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double before = cpu_seconds();
  (*team)->Run([&](size_t) {
    for (int i = 0; i < 20000; ++i) (*team)->Barrier();
  });
  const double spent = cpu_seconds() - before;
  RecordProperty("cpu_ms", static_cast<int>(spent * 1000));
  EXPECT_LT(spent, 0.3);
}

INSTANTIATE_TEST_SUITE_P(, Team, testing::Values(1, 2, 3, 7));

TEST(ThreadTeam, AbsurdSizesAreRefused) {
  EXPECT_EQ(ThreadTeam::Create(0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ThreadTeam::Create(100000).error().code, ErrorCode::kInvalidArgument);
}

TEST(SplitRange, PartsCoverEverythingOnceAndStartAtGranules) {
  for (size_t total : {0u, 1u, 15u, 16u, 17u, 192u, 1000u}) {
    for (size_t granule : {1u, 16u, 32u}) {
      for (size_t threads : {1u, 2u, 3u, 8u}) {
        size_t next = 0;
        for (size_t t = 0; t < threads; ++t) {
          const Range range = SplitRange(total, granule, t, threads);
          EXPECT_EQ(range.begin, next);
          EXPECT_TRUE(range.begin % granule == 0 || range.begin == total);
          next = range.end;
        }
        EXPECT_EQ(next, total);
      }
    }
  }
}

}  // namespace
}  // namespace tael::exec
