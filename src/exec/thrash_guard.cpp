#include "exec/thrash_guard.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

namespace tael::exec {
namespace {

// Where the kernel does not count bytes: what it reads ahead for a major fault, if nobody changed
// it.
constexpr uint64_t kReadAheadBytes = 128 * 1024;
// Of the weights, read again in one pass: one part in so many is no accident.
constexpr uint64_t kShare = 20;
constexpr uint64_t kLeastBytes = 512 * 1024;

// What the calling thread has had read, as the kernel counts it. No heap: decoding allocates
// nothing.
std::optional<uint64_t> BytesRead() {
  std::array<char, 512> text;
  const int fd = ::open("/proc/thread-self/io", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  const ssize_t size = ::read(fd, text.data(), text.size());
  ::close(fd);
  constexpr std::string_view kName = "\nread_bytes: ";
  const std::string_view lines(text.data(), size > 0 ? static_cast<size_t>(size) : 0);
  const size_t at = lines.find(kName);
  if (at == std::string_view::npos) return std::nullopt;
  uint64_t bytes = 0;
  const auto [end, error] =
      std::from_chars(lines.data() + at + kName.size(), lines.data() + lines.size(), bytes);
  return error == std::errc{} ? std::optional(bytes) : std::nullopt;
}

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
    bytes_ = BytesRead().value_or(faults * kReadAheadBytes);
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
  return true;
}

}  // namespace tael::exec
