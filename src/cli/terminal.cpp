#include "cli/terminal.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "cli/interrupt.h"

namespace tael::cli {
namespace {

constexpr std::chrono::milliseconds kPatience{300};  // work shorter than this shows nothing
constexpr std::chrono::milliseconds kInterval{100};

}  // namespace

Progress::Progress(std::string label)
    : label_(std::move(label)), enabled_(isatty(STDERR_FILENO) != 0) {}

void Progress::Show(uint64_t done, uint64_t total, std::string_view extra) {
  const Clock::time_point now = Clock::now();
  if (!enabled_ || now - start_ < kPatience || now - last_shown_ < kInterval) return;
  last_shown_ = now;
  visible_ = true;
  const uint64_t percent = total == 0 ? 0 : done * 100 / total;
  std::fprintf(stderr, "\r\033[K%s %d %%%.*s", label_.c_str(), static_cast<int>(percent),
               static_cast<int>(extra.size()), extra.data());
  std::fflush(stderr);
}

void Progress::Clear() {
  if (!visible_) return;
  visible_ = false;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
}

void Note(std::string_view text) {
  std::fprintf(stderr, "tael: %.*s\n", static_cast<int>(text.size()), text.data());
}

// A pipe that can be written to takes a line of up to 4 KiB at once (PIPE_BUF).
void PatientLog::Write(std::string_view text) {
  constexpr size_t kMostBytes = 3072;
  const std::lock_guard lock(mutex_);
  pollfd out{STDERR_FILENO, POLLOUT, 0};
  if (poll(&out, 1, 0) != 1 || (out.revents & POLLOUT) == 0) {
    ++num_dropped_;
    return;
  }
  std::string line(text.substr(0, kMostBytes));
  const uint64_t dropped = std::exchange(num_dropped_, 0);
  if (dropped > 0) {
    line += " (" + std::to_string(dropped) + " lines before it were dropped: nobody read them)";
  }
  Note(line);
}

bool Print(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  return std::fflush(stdout) == 0 && written;
}

// A whole line of the buffer; what is left of it when no more comes.
bool LineReader::TakeLine(std::string& line) {
  const size_t newline = buffer_.find('\n');
  if (newline == std::string::npos && (!end_ || buffer_.empty())) return false;
  line = buffer_.substr(0, newline);
  buffer_.erase(0, newline == std::string::npos ? newline : newline + 1);
  return true;
}

void LineReader::Fill() {
  char bytes[4096];
  const ssize_t count = read(STDIN_FILENO, bytes, sizeof bytes);
  if (count > 0) buffer_.append(bytes, static_cast<size_t>(count));
  if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) end_ = true;
}

LineReader::Outcome LineReader::Read(std::string& line) {
  while (!TakeLine(line)) {
    if (end_) return Outcome::kEnd;
    pollfd waiting[2] = {{STDIN_FILENO, POLLIN, 0}, {InterruptDescriptor(), POLLIN, 0}};
    const int ready = poll(waiting, 2, -1);
    if (Interrupted().load()) return Outcome::kInterrupted;
    if (ready < 0 && errno != EINTR) return Outcome::kEnd;
    if (ready > 0 && waiting[0].revents != 0) Fill();
  }
  return Outcome::kLine;
}

}  // namespace tael::cli
