#include "exec/thread_team.h"

#include <gtest/gtest.h>
#include <sched.h>

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
