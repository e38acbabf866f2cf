#include "exec/cpu_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace tael::exec {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A tree of files in place of /proc and /sys.
struct CpuSetTest : testing::Test {
  std::filesystem::path root = std::filesystem::path(testing::TempDir()) /
                               testing::UnitTest::GetInstance()->current_test_info()->name();

  void SetUp() override { std::filesystem::remove_all(root); }
  void TearDown() override { std::filesystem::remove_all(root); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text << "\n";
  }
  void WriteCpu(int id, const std::string& siblings, int capacity = 0) {
    const std::string folder = "sys/devices/system/cpu/cpu" + std::to_string(id);
    Write(folder + "/topology/thread_siblings_list", siblings);
    if (capacity != 0) Write(folder + "/cpu_capacity", std::to_string(capacity));
  }
  CpuTopology Read(const std::vector<int>& affinity) {
    return ReadCpuTopology(affinity, root.string());
  }
};

TEST_F(CpuSetTest, EveryCpuIsUsedWhereTheSystemSaysNothing) {
  const CpuChoice choice = ChooseCpus(Read({0, 1}), 0);
  EXPECT_EQ(choice.num_threads, 2u);
  EXPECT_THAT(choice.cpus, ElementsAre(0, 1));
  EXPECT_EQ(choice.why, "2 threads: every usable CPU");
  EXPECT_THAT(choice.note, IsEmpty());
}

TEST_F(CpuSetTest, AProcessThatMayRunNowhereStillGetsOneThread) {
  EXPECT_EQ(ChooseCpus(Read({}), 0).num_threads, 1u);
}

TEST_F(CpuSetTest, OnlyCpusOfTheAffinityCount) {
  for (int id = 0; id < 4; ++id) WriteCpu(id, std::to_string(id));
  const CpuChoice choice = ChooseCpus(Read({1, 3}), 0);
  EXPECT_EQ(choice.num_threads, 2u);
  EXPECT_THAT(choice.cpus, ElementsAre(1, 3));
}

TEST_F(CpuSetTest, OneThreadForEachCoreOfHyperThreads) {
  for (int id = 0; id < 4; ++id) {  // 0 and 2 are one core, 1 and 3 the other
    WriteCpu(id, std::to_string(id % 2) + "," + std::to_string(id % 2 + 2));
  }
  const CpuTopology topology = Read({0, 1, 2, 3});
  const CpuChoice choice = ChooseCpus(topology, 0);
  EXPECT_EQ(choice.num_threads, 2u);
  EXPECT_THAT(choice.cpus, ElementsAre(0, 1, 2, 3));  // a core each first
  EXPECT_THAT(choice.why, HasSubstr("hyper-thread"));
  EXPECT_EQ(ChooseCpus(topology, 4).num_threads, 4u);  // who asks gets them
}

TEST_F(CpuSetTest, NeighbouringHyperThreadsAreTwoCoresFirst) {
  for (int id = 0; id < 4; ++id) WriteCpu(id, id < 2 ? "0-1" : "2-3");
  const CpuChoice choice = ChooseCpus(Read({0, 1, 2, 3}), 2);
  EXPECT_THAT(choice.cpus, ElementsAre(0, 2, 1, 3));
}

TEST_F(CpuSetTest, LittleCoresAreLeftOut) {
  for (int id = 0; id < 8; ++id)
    WriteCpu(id, std::to_string(id), id < 4 ? 414 : id < 6 ? 1010 : 1024);
  const CpuTopology topology = Read({0, 1, 2, 3, 4, 5, 6, 7});
  const CpuChoice choice = ChooseCpus(topology, 0);
  EXPECT_EQ(choice.num_threads, 4u);
  EXPECT_THAT(choice.cpus, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(choice.why, "4 threads: one for each big core");
  EXPECT_THAT(ChooseCpus(topology, 3).cpus, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(ChooseCpus(topology, 6).num_threads, 6u);  // who asks gets the little ones, too
  EXPECT_EQ(ChooseCpus(topology, 6).cpus.size(), 8u);
}

TEST_F(CpuSetTest, AThreadTooManyIsNotStartedAndTheUserIsTold) {
  const CpuChoice choice = ChooseCpus(Read({0, 1}), 3);
  EXPECT_EQ(choice.num_threads, 2u);
  EXPECT_THAT(choice.note, HasSubstr("using 2 threads instead of 3: 2 usable CPUs"));
}

TEST_F(CpuSetTest, AQuotaOfTheFirstKindOfControlGroupsLimitsTheThreads) {
  Write("proc/self/cgroup", "3:cpuset:/x\n2:cpu,cpuacct:/a/b\n1:memory:/");
  Write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "150000");
  Write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000");
  Write("sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1");
  Write("sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000");
  const CpuTopology topology = Read({0, 1, 2, 3});
  EXPECT_DOUBLE_EQ(topology.quota_cpus, 1.5);
  EXPECT_EQ(ChooseCpus(topology, 0).num_threads, 2u);
  EXPECT_THAT(ChooseCpus(topology, 0).why, HasSubstr("quota of 1.5 CPUs"));
  EXPECT_EQ(ChooseCpus(topology, 4).num_threads, 2u);
  EXPECT_THAT(ChooseCpus(topology, 4).note, HasSubstr("quota"));
  EXPECT_EQ(ChooseCpus(topology, 1).num_threads, 1u);
}

TEST_F(CpuSetTest, AQuotaOfTheSecondKindOfControlGroupsLimitsTheThreads) {
  Write("proc/self/cgroup", "0::/user/app");
  Write("sys/fs/cgroup/user/cpu.max", "50000 100000");
  Write("sys/fs/cgroup/user/app/cpu.max", "max 100000");
  const CpuTopology topology = Read({0, 1, 2, 3});
  EXPECT_DOUBLE_EQ(topology.quota_cpus, 0.5);
  EXPECT_EQ(ChooseCpus(topology, 0).num_threads, 1u);
}

TEST_F(CpuSetTest, NonsenseInTheFilesIsNoLimit) {
  Write("proc/self/cgroup", "nonsense\n0::\n0::relative\n0::/x");
  Write("sys/fs/cgroup/x/cpu.max", "100000 0");
  WriteCpu(0, "x", -5);
  WriteCpu(1, "7");
  const CpuTopology topology = Read({0, 1});
  EXPECT_EQ(topology.quota_cpus, 0);
  EXPECT_EQ(ChooseCpus(topology, 0).num_threads, 2u);
}

TEST_F(CpuSetTest, ACpuIsSpareWhereNoThreadNeedsItAndTheQuotaPaysForIt) {
  EXPECT_FALSE(ChooseCpus(Read({0, 1}), 0).has_spare);
  EXPECT_TRUE(ChooseCpus(Read({0, 1}), 1).has_spare);
  CpuTopology paid_for_one = Read({0, 1});
  paid_for_one.quota_cpus = 1;
  EXPECT_FALSE(ChooseCpus(paid_for_one, 1).has_spare);
}

TEST_F(CpuSetTest, ThisMachineGivesAtLeastOneThread) {
  const CpuChoice choice = ChooseCpus(ReadCpuTopology(AffinityCpus()), 0);
  EXPECT_GE(choice.num_threads, 1u);
  EXPECT_GE(choice.cpus.size(), choice.num_threads);
}

}  // namespace
}  // namespace tael::exec
