#include "mem/arena_planner.h"

#include <gtest/gtest.h>

#include <random>

namespace tael::mem {
namespace {

bool Overlap(const ArenaPlan& plan, std::span<const BufferLifetime> buffers, size_t a, size_t b) {
  const bool in_time =
      buffers[a].first_op <= buffers[b].last_op && buffers[b].first_op <= buffers[a].last_op;
  const bool in_space = plan.offsets[a] < plan.offsets[b] + buffers[b].bytes &&
                        plan.offsets[b] < plan.offsets[a] + buffers[a].bytes;
  return in_time && in_space && buffers[a].bytes > 0 && buffers[b].bytes > 0;
}

TEST(ArenaPlanner, ABufferTakesThePlaceOfOneThatWasConsumed) {
  const BufferLifetime buffers[] = {{640, 0, 3}, {128, 0, 1}, {128, 2, 3}};
  const ArenaPlan plan = PlanArena(buffers);
  EXPECT_EQ(plan.total_bytes, 768u);
  EXPECT_EQ(plan.sum_bytes, 896u);
  EXPECT_EQ(plan.offsets[1], plan.offsets[2]);
}

TEST(ArenaPlanner, FreedNeighboursCoalesce) {
  const BufferLifetime buffers[] = {{64, 0, 0}, {64, 0, 0}, {128, 1, 1}};
  EXPECT_EQ(PlanArena(buffers).total_bytes, 128u);
}

// The shape of a layer: in the order of the run the long-lived ones end up between the large ones.
TEST(ArenaPlanner, WhatLivesLongDoesNotCutTheSpaceOfWhatIsLarge) {
  const BufferLifetime buffers[] = {{512, 0, 9}, {64, 0, 1},   {320, 1, 3}, {512, 3, 5},
                                    {128, 2, 4}, {1024, 5, 7}, {512, 6, 8}, {64, 7, 9}};
  const ArenaPlan plan = PlanArena(buffers);
  EXPECT_LE(plan.total_bytes, plan.peak_live_bytes + plan.peak_live_bytes / 20);
}

TEST(ArenaPlanner, LiveBuffersNeverShareBytes) {
  std::mt19937 rng(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<BufferLifetime> buffers(2 + rng() % 20);
    for (BufferLifetime& buffer : buffers) {
      buffer.bytes = rng() % 5000;
      buffer.first_op = static_cast<uint32_t>(rng() % 12);
      buffer.last_op = buffer.first_op + static_cast<uint32_t>(rng() % 6);
    }
    const ArenaPlan plan = PlanArena(buffers);
    EXPECT_GE(plan.total_bytes, plan.peak_live_bytes);
    EXPECT_LE(plan.total_bytes, plan.sum_bytes);
    for (size_t a = 0; a < buffers.size(); ++a) {
      EXPECT_EQ(plan.offsets[a] % 64, 0u);
      for (size_t b = a + 1; b < buffers.size(); ++b) ASSERT_FALSE(Overlap(plan, buffers, a, b));
    }
  }
}

}  // namespace
}  // namespace tael::mem
