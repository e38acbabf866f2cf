// Watches this process from a thread: the largest anonymous memory (every 10 ms) and PSS (every
// 100 ms, since the kernel walks all pages for it) seen so far.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace tael::cli {

class PeakMemory {
 public:
  PeakMemory();
  ~PeakMemory() { Stop(); }
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;

  // Ends the thread: timed work should not share its CPU. TakeSample() still works.
  void Stop();
  void TakeSample();

  uint64_t rss_anon_bytes() const { return rss_anon_bytes_.load(); }
  uint64_t pss_bytes() const { return pss_bytes_.load(); }

 private:
  void SampleAnon();
  void SamplePss();

  std::atomic<uint64_t> rss_anon_bytes_{0};
  std::atomic<uint64_t> pss_bytes_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tael::cli
