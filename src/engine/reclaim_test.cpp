#include "engine/reclaim.h"

#include <gtest/gtest.h>

#include <string>

namespace tael::engine {
namespace {

// So many bytes to be had at each step; a sequence that is preempted leaves idle rows.
struct Memory final : Reclaimable {
  uint64_t idle = 0, windows = 0;
  int sequences = 1;
  std::string steps;

  static uint64_t Take(uint64_t& from, uint64_t bytes) {
    const uint64_t taken = from < bytes ? from : bytes;
    from -= taken;
    return taken;
  }
  uint64_t EvictIdleRows(uint64_t bytes) override {
    steps += 'i';
    return Take(idle, bytes);
  }
  uint64_t ShrinkWindows(uint64_t bytes) override {
    steps += 'w';
    return Take(windows, bytes);
  }
  bool PreemptLast(uint64_t& freed_bytes) override {
    if (sequences == 1) return false;
    steps += 'p';
    --sequences;
    freed_bytes = 1;
    idle += 10;
    return true;
  }
};

TEST(Reclaim, StopsAtTheFirstStepThatGivesEnough) {
  Memory memory;
  memory.idle = 10;
  memory.windows = 10;
  EXPECT_EQ(Reclaim(memory, 10, ReclaimStep::kPreempt), 10u);
  EXPECT_EQ(memory.steps, "i");
  EXPECT_EQ(Reclaim(memory, 5, ReclaimStep::kPreempt), 5u);
  EXPECT_EQ(memory.steps, "iiw");
}

TEST(Reclaim, TakesWhatAPreemptedSequenceLeaves) {
  Memory memory;
  memory.sequences = 3;
  EXPECT_EQ(Reclaim(memory, 5, ReclaimStep::kPreempt), 5u);
  EXPECT_EQ(memory.steps, "iwpi");
  EXPECT_EQ(memory.sequences, 2);
}

TEST(Reclaim, GoesNoFurtherThanItMay) {
  Memory memory;
  memory.idle = memory.windows = 10;
  memory.sequences = 3;
  EXPECT_EQ(Reclaim(memory, 100, ReclaimStep::kIdlePrefixRows), 10u);
  EXPECT_EQ(memory.steps, "i");
  EXPECT_EQ(memory.sequences, 3);
}

TEST(Reclaim, LeavesTheLastSequence) {
  Memory memory;
  memory.sequences = 3;
  EXPECT_EQ(Reclaim(memory, 100, ReclaimStep::kPreempt), 22u);
  EXPECT_EQ(memory.sequences, 1);
}

}  // namespace
}  // namespace tael::engine
