#include "mem/system_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace tael::mem {
namespace {

constexpr uint64_t kMb = 1'000'000;

// A folder that stands for the system's root.
class AvailableBytesTest : public testing::Test {
 protected:
  AvailableBytesTest()
      : root_(std::filesystem::path(testing::TempDir()) /
              ("system_memory." + std::to_string(::getpid()))) {
    Write("/proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable:   1000000 kB\n");  // 1,024 MB
  }
  ~AvailableBytesTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = root_.string() + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  void WriteV1(const std::string& group, const std::string& limit, uint64_t usage) {
    const std::string folder = "/sys/fs/cgroup/memory" + group;
    Write(folder + "/memory.limit_in_bytes", limit + "\n");
    Write(folder + "/memory.usage_in_bytes", std::to_string(usage) + "\n");
  }
  void WriteV2(const std::string& group, const std::string& limit, uint64_t usage) {
    Write("/sys/fs/cgroup" + group + "/memory.max", limit + "\n");
    Write("/sys/fs/cgroup" + group + "/memory.current", std::to_string(usage) + "\n");
  }
  uint64_t Available() const { return AvailableBytes(root_.string()); }

  std::filesystem::path root_;
};

TEST_F(AvailableBytesTest, WithoutCgroupsItIsWhatTheSystemHas) {
  EXPECT_EQ(Available(), 1'024'000'000u);
  Write("/proc/self/cgroup", "0::/nowhere\nnonsense\n3:cpu:/x\n");
  EXPECT_EQ(Available(), 1'024'000'000u);
}

TEST_F(AvailableBytesTest, WithoutAnythingToReadItIsZero) {
  EXPECT_EQ(SystemAvailableBytes(root_.string()), 1'024'000'000u);
  std::filesystem::remove_all(root_);
  EXPECT_EQ(Available(), 0u);
  EXPECT_EQ(SystemAvailableBytes(root_.string()), std::nullopt);
}

TEST_F(AvailableBytesTest, TheTightestOfNestedGroupsOfVersion1Counts) {
  Write("/proc/self/cgroup", "4:cpu,memory:/outer/inner\n1:cpuset:/\n");
  WriteV1("/outer/inner", "9223372036854771712", 10 * kMb);
  WriteV1("/outer", std::to_string(300 * kMb), 100 * kMb);
  EXPECT_EQ(Available(), 200 * kMb);
  WriteV1("/outer/inner", std::to_string(120 * kMb), 10 * kMb);
  EXPECT_EQ(Available(), 110 * kMb);
}

TEST_F(AvailableBytesTest, TheTightestOfNestedGroupsOfVersion2Counts) {
  Write("/proc/self/cgroup", "0::/outer/inner\n");
  WriteV2("/outer/inner", "max", 10 * kMb);
  EXPECT_EQ(Available(), 1'024'000'000u);
  WriteV2("/outer", std::to_string(300 * kMb), 350 * kMb);  // usage may pass a limit set later
  EXPECT_EQ(Available(), 0u);
}

TEST_F(AvailableBytesTest, FilePagesThatNobodyHasMappedAreFree) {
  Write("/proc/self/cgroup", "0::/a\n");
  WriteV2("/a", std::to_string(500 * kMb), 450 * kMb);
  EXPECT_EQ(Available(), 50 * kMb);
  Write("/sys/fs/cgroup/a/memory.stat", "anon 100000000\ninactive_file 40000000\n");
  EXPECT_EQ(Available(), 90 * kMb);
  // Read twice, so active; of 300 MB another process uses 120.
  Write("/sys/fs/cgroup/a/memory.stat",
        "inactive_file 40000000\nactive_file 300000000\nfile_mapped 120000000\n");
  EXPECT_EQ(Available(), 270 * kMb);

  Write("/proc/self/cgroup", "4:memory:/b\n");
  WriteV1("/b", std::to_string(500 * kMb), 450 * kMb);
  Write("/sys/fs/cgroup/memory/b/memory.stat",
        "inactive_file 1\nactive_file 2\nmapped_file 0\ntotal_inactive_file 40000000\n"
        "total_active_file 300000000\ntotal_mapped_file 120000000\n");
  EXPECT_EQ(Available(), 270 * kMb);
}

TEST_F(AvailableBytesTest, WhatIsNoFilePageTakesRoomFromFilePages) {
  EXPECT_EQ(FileRoomBytes(root_.string()), std::nullopt);
  Write("/proc/self/cgroup", "0::/outer/a\n");
  WriteV2("/outer/a", "max", 450 * kMb);
  EXPECT_EQ(FileRoomBytes(root_.string()), std::nullopt);
  WriteV2("/outer", std::to_string(500 * kMb), 450 * kMb);
  Write("/sys/fs/cgroup/outer/memory.stat", "inactive_file 40000000\nactive_file 300000000\n");
  EXPECT_EQ(FileRoomBytes(root_.string()), 390 * kMb);
  WriteV2("/outer", std::to_string(100 * kMb), 450 * kMb);
  EXPECT_EQ(FileRoomBytes(root_.string()), 0u);
}

}  // namespace
}  // namespace tael::mem
