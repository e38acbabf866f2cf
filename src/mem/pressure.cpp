#include "mem/pressure.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/file_descriptor.h"
#include "base/thread.h"
#include "base/units.h"
#include "mem/cgroups.h"
#include "mem/kernel_file.h"
#include "mem/system_memory.h"

namespace tael::mem {
namespace {

// Shares of the machine's memory, and of the last ten seconds, in per cent.
constexpr double kModerateAvailable = 15;
constexpr double kCriticalAvailable = 6;
constexpr double kModerateStalls = 15;
constexpr double kCriticalStalls = 10;

std::string Percent(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", value);
  return text;
}

// The most serious of the causes is told; of equal ones the first.
void Raise(PressureReading& reading, PressureLevel level, std::string cause) {
  if (level <= reading.level) return;
  reading.level = level;
  reading.cause = std::move(cause);
}

}  // namespace

const char* ToString(PressureLevel level) {
  switch (level) {
    case PressureLevel::kNone:
      return "none";
    case PressureLevel::kModerate:
      return "moderate";
    case PressureLevel::kCritical:
      return "critical";
  }
  return "unknown";
}

PressureSources::PressureSources(uint64_t file_bytes, std::string root)
    : file_bytes_(file_bytes), root_(std::move(root)) {
  Read();  // counters grow from here on
}

PressureReading PressureSources::Read() {
  PressureReading reading;
  ReadMachine(reading);
  ReadStalls(root_ + "/proc/pressure/memory", reading);
  ForEachCgroup(root_, "memory",
                [&](const std::string& folder, bool v2) { ReadGroup(folder, v2, reading); });
  return reading;
}

// Whether a counter is larger than it was at the last reading; false at the first.
bool PressureSources::Grew(const std::string& path, std::string_view key) {
  const std::optional<uint64_t> now = key.empty() ? ReadNumber(path) : ReadField(path, key);
  if (!now) return false;
  const auto [known, is_new] = counters_.try_emplace(path + ":" + std::string(key), *now);
  const bool grew = !is_new && *now > known->second;
  known->second = *now;
  return grew;
}

void PressureSources::ReadMachine(PressureReading& reading) const {
  const std::string meminfo = root_ + "/proc/meminfo";
  const auto total = ReadField(meminfo, "MemTotal:");
  const auto available = ReadField(meminfo, "MemAvailable:");
  if (!total || !available || *total == 0) return;
  const double share = 100.0 * static_cast<double>(*available) / static_cast<double>(*total);
  if (share >= kModerateAvailable) return;
  Raise(reading, share < kCriticalAvailable ? PressureLevel::kCritical : PressureLevel::kModerate,
        Percent(share) + " of the machine's memory is available");
}

void PressureSources::ReadStalls(const std::string& path, PressureReading& reading) const {
  const double full = ReadAssignment(path, "full", "avg10").value_or(0);
  const double some = ReadAssignment(path, "some", "avg10").value_or(0);
  if (full > kCriticalStalls) {
    Raise(reading, PressureLevel::kCritical,
          "everything waited for memory in " + Percent(full) + " of the last 10 s");
  } else if (some > kModerateStalls) {
    Raise(reading, PressureLevel::kModerate,
          "something waited for memory in " + Percent(some) + " of the last 10 s");
  }
}

void PressureSources::ReadGroup(const std::string& folder, bool v2, PressureReading& reading) {
  if (v2) {
    ReadStalls(folder + "/memory.pressure", reading);
    if (Grew(folder + "/memory.events", "high")) {
      Raise(reading, PressureLevel::kCritical, "the control group passed its memory.high");
    }
  }
  const bool hit =
      v2 ? Grew(folder + "/memory.events", "max") : Grew(folder + "/memory.failcnt", "");
  if (!hit) return;
  const std::optional<uint64_t> room = FileRoomIn(folder, v2);
  if (!room || *room >= file_bytes_) return;
  Raise(reading, PressureLevel::kCritical,
        "the control group leaves " + FormatSize(*room) + " for file pages, the weights are " +
            FormatSize(file_bytes_));
}

// The thread sleeps in poll() on two things: the kernel's own alarm for stalls, where it has one
// and lets us set it, and the request to stop.
class PressureWatcher::Impl {
 public:
  Impl(Options options, OnChange on_change)
      : options_(std::move(options)),
        on_change_(std::move(on_change)),
        sources_(options_.file_bytes, options_.root),
        alarm_(OpenAlarm()),
        stop_(::eventfd(0, EFD_CLOEXEC)) {}

  ~Impl() {
    if (!thread_.joinable()) return;
    const uint64_t one = 1;
    if (::write(stop_.get(), &one, sizeof one) != sizeof one) std::abort();  // it cannot block
    thread_.join();
  }

  Status Start() {
    if (!stop_.is_open()) {
      return Error{ErrorCode::kIo, "cannot watch memory", std::strerror(errno)};
    }
    TAEL_ASSIGN_OR_RETURN(
        thread_, StartThread("cannot start the thread that watches memory", [this] { Work(); }));
    return {};
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Stalls of 150 ms in 2 s wake us up; a window that is no multiple of 2 s needs privileges.
  FileDescriptor OpenAlarm() const {
    if (!options_.root.empty()) return {};
    FileDescriptor file(::open("/proc/pressure/memory", O_RDWR | O_NONBLOCK | O_CLOEXEC));
    constexpr std::string_view kTrigger("some 150000 2000000");
    if (file.is_open() && ::write(file.get(), kTrigger.data(), kTrigger.size() + 1) < 0) return {};
    return file;
  }

  bool WaitAgain() const {
    std::array<pollfd, 2> fds = {{{stop_.get(), POLLIN, 0}, {alarm_.get(), POLLPRI, 0}}};
    const int timeout = static_cast<int>(options_.interval.count());
    ::poll(fds.data(), alarm_.is_open() ? 2 : 1, timeout);
    return (fds[0].revents & POLLIN) == 0;
  }

  void Work() {
    do {
      const PressureReading reading = sources_.Read();
      const Clock::time_point now = Clock::now();
      if (reading.level >= told_) last_pressed_ = now;
      const bool rises = reading.level > told_;
      const bool falls = reading.level < told_ && now - last_pressed_ >= options_.calm;
      if (!rises && !falls) continue;
      told_ = reading.level;
      last_pressed_ = now;
      on_change_(reading);
    } while (WaitAgain());
  }

  const Options options_;
  const OnChange on_change_;
  PressureSources sources_;
  const FileDescriptor alarm_;
  const FileDescriptor stop_;  // opened last: errno says why not
  PressureLevel told_ = PressureLevel::kNone;
  Clock::time_point last_pressed_{};
  std::thread thread_;
};

PressureWatcher::PressureWatcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PressureWatcher::~PressureWatcher() = default;

Result<std::unique_ptr<PressureWatcher>> PressureWatcher::Create(Options options,
                                                                 OnChange on_change) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(on_change));
  TAEL_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<PressureWatcher>(new PressureWatcher(std::move(impl)));
}

}  // namespace tael::mem
