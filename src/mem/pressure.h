// Whether memory is short: what a phone's system tells its apps, read where nobody tells.
//
//   source                                moderate          critical
//   MemAvailable of the machine           below 15 %        below 6 %
//   stalls (PSI), machine and v2 group    some above 15 %   full above 10 %
//   memory.high of a v2 group                               passed since the last reading
//   a group's room for file pages                           below the weights, and its limit hit
//                                                           since the last reading
//
// The last one is this engine's own: a cgroup that is full is no pressure, because file pages that
// nobody needs fill it up in time; one in which the weights have no room any more is.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tael::mem {

enum class PressureLevel : uint8_t { kNone, kModerate, kCritical };
const char* ToString(PressureLevel level);  // "none", "moderate", "critical"

struct PressureReading {
  PressureLevel level = PressureLevel::kNone;
  std::string cause;  // "5.1 % of the memory is available"; empty for kNone
};

// Reads all sources; remembers counters from one reading to the next. One thread at a time.
class PressureSources {
 public:
  // `file_bytes`: file pages that this process needs in memory all the time. `root` is prefixed to
  // /proc and /sys, so that tests can put fixtures there.
  explicit PressureSources(uint64_t file_bytes, std::string root = "");

  PressureReading Read();

 private:
  bool Grew(const std::string& path, std::string_view key);
  void ReadMachine(PressureReading& reading) const;
  void ReadStalls(const std::string& path, PressureReading& reading) const;
  void ReadGroup(const std::string& folder, bool v2, PressureReading& reading);

  const uint64_t file_bytes_;
  const std::string root_;
  std::map<std::string, uint64_t> counters_;  // by file and key, as of the last reading
};

// Tells of changes of the level, from a thread of its own: at once when it rises, and when it has
// stayed lower for `calm`.
class PressureWatcher {
 public:
  struct Options {
    uint64_t file_bytes = 0;
    std::chrono::milliseconds interval{250};
    std::chrono::milliseconds calm{5000};
    std::string root;
  };
  using OnChange = std::function<void(const PressureReading&)>;

  // Fails: kIo if the thread cannot be started.
  static Result<std::unique_ptr<PressureWatcher>> Create(Options options, OnChange on_change);
  ~PressureWatcher();  // waits for a call under way
  PressureWatcher(const PressureWatcher&) = delete;
  PressureWatcher& operator=(const PressureWatcher&) = delete;

 private:
  class Impl;
  explicit PressureWatcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tael::mem
