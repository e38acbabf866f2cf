#include "exec/thrash_guard.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "mem/kernel_file.h"

namespace tael::exec {
namespace {

// Where the kernel does not count bytes: what it reads ahead for a major fault, if nobody changed
// it.
constexpr uint64_t kReadAheadBytes = 128 * 1024;
// Of the weights, read again in one pass: one part in so many is no accident.
constexpr uint64_t kShare = 20;
constexpr uint64_t kLeastBytes = 512 * 1024;

// Faults alone say little: one may bring in megabytes, and most of those that wait for them are not
// counted. They are cheap to ask for, though, and there are none where nothing is read.
class BytesOfThisThread {
 public:
  uint64_t operator()() {
    struct rusage usage = {};
    ::getrusage(RUSAGE_THREAD, &usage);
    const auto faults = static_cast<uint64_t>(usage.ru_majflt);
    if (faults == faults_) return bytes_;
    faults_ = faults;
    bytes_ =
        mem::ReadField("/proc/thread-self/io", "read_bytes:").value_or(faults * kReadAheadBytes);
    return bytes_;
  }

 private:
  uint64_t faults_ = 0, bytes_ = 0;
};

}  // namespace

ThrashGuard::ThrashGuard(uint64_t weights_bytes, size_t num_threads, CountBytes count)
    : count_(count ? std::move(count) : CountBytes(BytesOfThisThread())),
      least_bytes_(
          std::max(kLeastBytes, weights_bytes / kShare / std::max<size_t>(1, num_threads))) {}

void ThrashGuard::Begin() { at_begin_ = count_(); }

bool ThrashGuard::End() {
  const uint64_t now = count_();
  const bool thrashes = now > at_begin_ && now - at_begin_ >= least_bytes_;
  in_a_row_ = thrashes ? in_a_row_ + 1 : 0;
  if (in_a_row_ < kPasses) return false;
  in_a_row_ = 0;
  ++num_alarms_;
  return true;
}

}  // namespace tael::exec
