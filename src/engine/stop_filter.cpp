#include "engine/stop_filter.h"

#include <algorithm>

namespace tael::engine {

StopFilter::Match StopFilter::FindFirst() const {
  Match best;
  for (const std::string& stop : stops_) {
    const size_t begin = pending_.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < best.end || (end == best.end && begin < best.begin)) best = {begin, end};
  }
  return best;
}

// Bytes at the end that are the beginning of a stop string.
size_t StopFilter::HeldBack() const {
  size_t held = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, pending_.size()); n > held; --n) {
      if (std::string_view(pending_).ends_with(std::string_view(stop).substr(0, n))) held = n;
    }
  }
  return held;
}

std::string_view StopFilter::Push(std::string_view piece) {
  pending_.erase(0, shown_);
  shown_ = 0;
  if (stopped_) return {};
  pending_ += piece;
  const Match match = FindFirst();
  if (match.end != std::string::npos) {
    stopped_ = true;
    pending_.resize(match.begin);
    shown_ = pending_.size();
  } else {
    shown_ = pending_.size() - HeldBack();
  }
  return std::string_view(pending_).substr(0, shown_);
}

std::string_view StopFilter::Finish() {
  pending_.erase(0, shown_);
  shown_ = pending_.size();
  return pending_;
}

}  // namespace tael::engine
