// Ends an answer at the first stop string, and lets no part of one out: text that may still become
// a stop string is held back until the next piece decides.
//
// The stop string that is complete first wins, and of several that end at the same byte the
// longest, as if the text came byte by byte: how it is cut into pieces changes nothing.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tael::engine {

class StopFilter {
 public:
  // Requires: no stop string is empty.
  explicit StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes the next piece and returns what may be shown now; valid until the next call. After a
  // stop string nothing comes out any more.
  std::string_view Push(std::string_view piece);
  // What was held back, now that no more text comes.
  std::string_view Finish();

  bool stopped() const { return stopped_; }

 private:
  struct Match {
    size_t begin = std::string::npos;
    size_t end = std::string::npos;
  };
  Match FindFirst() const;
  size_t HeldBack() const;

  std::vector<std::string> stops_;
  std::string pending_;  // not shown yet, but for its first shown_ bytes
  size_t shown_ = 0;
  bool stopped_ = false;
};

}  // namespace tael::engine
