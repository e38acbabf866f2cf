#include "cli/peak_memory.h"

#include <algorithm>
#include <chrono>

#include "mem/process_memory.h"

namespace tael::cli {
namespace {

constexpr std::chrono::milliseconds kInterval{10};
constexpr int kIntervalsPerPss = 10;

}  // namespace

PeakMemory::PeakMemory()
    : thread_([this] {
        for (int i = 0; !stopping_.load(); ++i) {
          SampleAnon();
          if (i % kIntervalsPerPss == 0) SamplePss();
          std::this_thread::sleep_for(kInterval);
        }
      }) {}

void PeakMemory::Stop() {
  stopping_.store(true);
  if (thread_.joinable()) thread_.join();
}

void PeakMemory::TakeSample() {
  SampleAnon();
  SamplePss();
}

void PeakMemory::SampleAnon() {
  const auto memory = mem::ReadProcessMemory();
  if (!memory) return;
  const uint64_t bytes = memory->unbacked_bytes();
  rss_anon_bytes_.store(std::max(rss_anon_bytes_.load(), bytes));
}

void PeakMemory::SamplePss() {
  const auto bytes = mem::ReadPssBytes();
  if (bytes) pss_bytes_.store(std::max(pss_bytes_.load(), *bytes));
}

}  // namespace tael::cli
