#include "mem/pressure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

namespace tael::mem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr uint64_t kMb = 1'000'000;

// A folder that stands for the system's root; calm at first.
class Pressure : public testing::Test {
 protected:
  Pressure()
      : root_(std::filesystem::path(testing::TempDir()) /
              ("pressure." + std::to_string(::getpid()))) {
    Available(500);
    Stalls("/proc/pressure/memory", 0, 0);
  }
  ~Pressure() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = root_.string() + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full.string() + ".new") << text;
    std::filesystem::rename(full.string() + ".new", full);  // a reader sees the old or the new one
  }
  void Available(int kilobytes) {
    Write("/proc/meminfo",
          "MemTotal: 1000 kB\nMemAvailable: " + std::to_string(kilobytes) + " kB\n");
  }
  void Stalls(const std::string& path, double some, double full) {
    Write(path, "some avg10=" + std::to_string(some) + " avg60=99.00 avg300=99.00 total=1\n" +
                    "full avg10=" + std::to_string(full) + " avg60=99.00 avg300=99.00 total=1\n");
  }
  PressureReading Read() { return sources().Read(); }
  PressureSources& sources() {
    if (!sources_) sources_.emplace(100 * kMb, root_.string());
    return *sources_;
  }

  std::filesystem::path root_;
  std::optional<PressureSources> sources_;
};

TEST_F(Pressure, WithoutAnythingToReadThereIsNone) {
  std::filesystem::remove_all(root_);
  EXPECT_EQ(Read().level, PressureLevel::kNone);
}

TEST_F(Pressure, LittleAvailableMemoryIsPressure) {
  EXPECT_EQ(Read().level, PressureLevel::kNone);
  Available(149);
  EXPECT_EQ(Read().level, PressureLevel::kModerate);
  Available(59);
  EXPECT_EQ(Read().level, PressureLevel::kCritical);
  EXPECT_THAT(Read().cause, HasSubstr("5.9 %"));
}

TEST_F(Pressure, StallsArePressure) {
  Stalls("/proc/pressure/memory", 15.5, 0.5);
  EXPECT_EQ(Read().level, PressureLevel::kModerate);
  Stalls("/proc/pressure/memory", 15.5, 10.5);
  EXPECT_EQ(Read().level, PressureLevel::kCritical);
}

TEST_F(Pressure, StallsOfTheOwnGroupCountToo) {
  Write("/proc/self/cgroup", "0::/a\n");
  Stalls("/sys/fs/cgroup/a/memory.pressure", 40, 1);
  EXPECT_EQ(Read().level, PressureLevel::kModerate);
}

TEST_F(Pressure, PassingMemoryHighIsCriticalOnce) {
  Write("/proc/self/cgroup", "0::/a\n");
  Write("/sys/fs/cgroup/a/memory.events", "low 0\nhigh 7\nmax 0\n");
  EXPECT_EQ(Read().level, PressureLevel::kNone) << "it happened before we came";
  Write("/sys/fs/cgroup/a/memory.events", "low 0\nhigh 8\nmax 0\n");
  EXPECT_EQ(Read().level, PressureLevel::kCritical);
  EXPECT_EQ(Read().level, PressureLevel::kNone);
}

// A group of 200 MB in which `others` bytes are no file pages; the weights are 100 MB.
TEST_F(Pressure, AFullGroupIsNoneWhileTheWeightsHaveRoom) {
  Write("/proc/self/cgroup", "4:memory:/b\n");
  const std::string folder = "/sys/fs/cgroup/memory/b";
  Write(folder + "/memory.limit_in_bytes", std::to_string(200 * kMb));
  Write(folder + "/memory.usage_in_bytes", std::to_string(200 * kMb));
  Write(folder + "/memory.stat", "total_inactive_file 60000000\ntotal_active_file 50000000\n");
  Write(folder + "/memory.failcnt", "10\n");
  EXPECT_EQ(Read().level, PressureLevel::kNone);
  Write(folder + "/memory.failcnt", "11\n");
  EXPECT_EQ(Read().level, PressureLevel::kNone) << "110 MB of file pages, 100 MB of weights";
  Write(folder + "/memory.stat", "total_inactive_file 10000000\ntotal_active_file 50000000\n");
  EXPECT_EQ(Read().level, PressureLevel::kNone) << "nobody asked for more";
  Write(folder + "/memory.failcnt", "12\n");
  EXPECT_EQ(Read().level, PressureLevel::kCritical);
}

TEST_F(Pressure, AWatcherTellsRisesAtOnceAndFallsAfterAWhile) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<PressureLevel> told;
  auto watcher = PressureWatcher::Create(
      {.file_bytes = 0, .interval = 5ms, .calm = 50ms, .root = root_.string()},
      [&](const PressureReading& reading) {
        const std::lock_guard lock(mutex);
        told.push_back(reading.level);
        changed.notify_all();
      });
  ASSERT_TRUE(watcher.has_value());
  const auto wait_for = [&](size_t count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, 20s, [&] { return told.size() >= count; });
  };
  Available(100);
  ASSERT_TRUE(wait_for(1));
  Available(10);
  ASSERT_TRUE(wait_for(2));
  const auto since = std::chrono::steady_clock::now();
  Available(900);
  ASSERT_TRUE(wait_for(3));
  EXPECT_GE(std::chrono::steady_clock::now() - since, 40ms);
  watcher->reset();
  EXPECT_THAT(
      told, ElementsAre(PressureLevel::kModerate, PressureLevel::kCritical, PressureLevel::kNone));
}

}  // namespace
}  // namespace tael::mem
