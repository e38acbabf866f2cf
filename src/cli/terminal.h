// The terminal: progress that comes and goes on stderr, notes, and lines of input that Ctrl-C can
// interrupt.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace tael::cli {

// One line on stderr that is overwritten and finally removed. Silent where stderr is no terminal,
// and while everything is over in a moment.
class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Show(uint64_t done, uint64_t total, std::string_view extra = {});
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;
  const std::string label_;
  const bool enabled_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_shown_{};
  bool visible_ = false;
};

// "tael: TEXT" on stderr.
void Note(std::string_view text);

// "tael: TEXT" lines on stderr from any thread, for what goes on for long. Never waits: a line that
// the reader of a full pipe does not take is dropped, and the next one that is taken says how many.
class PatientLog {
 public:
  void Write(std::string_view text);

 private:
  std::mutex mutex_;
  uint64_t num_dropped_ = 0;
};

// Writes to stdout now. False when stdout does not take it.
bool Print(std::string_view text);

class LineReader {
 public:
  enum class Outcome { kLine, kEnd, kInterrupted };
  // Waits for a line of standard input, given back without its end.
  Outcome Read(std::string& line);

 private:
  bool TakeLine(std::string& line);
  void Fill();

  std::string buffer_;
  bool end_ = false;
};

}  // namespace tael::cli
