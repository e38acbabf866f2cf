// Notices that the kernel takes weights away while they are needed: every pass then reads them from
// the disk again, a page at a time, and one token takes seconds instead of milliseconds.
//
// It counts what the thread that runs the passes makes the kernel read from the disk. Once the
// weights are in memory that is nothing; the thread that streams layers has its own count.
#pragma once

#include <cstdint>
#include <functional>

namespace tael::exec {

class ThrashGuard {
 public:
  // Passes in a row that have to read weights again: one or two happen when somebody else starts.
  static constexpr int kPasses = 3;

  // Bytes that the calling thread has had read from the disk so far; tests give their own.
  using CountBytes = std::function<uint64_t()>;

  // `weights_bytes` are read by each pass, by `num_threads` threads.
  ThrashGuard(uint64_t weights_bytes, size_t num_threads, CountBytes count = {});

  // Around each pass that needs no weights but those in memory. End() is true when this was the
  // last of kPasses thrashing ones; it then starts to count anew.
  void Begin();
  bool End();

 private:
  const CountBytes count_;
  const uint64_t least_bytes_;  // of a pass that thrashes
  uint64_t at_begin_ = 0;
  int in_a_row_ = 0;
};

}  // namespace tael::exec
