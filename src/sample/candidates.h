// The best few of a vocabulary in one pass over the logits, without sorting it and without heap.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace tael::sample {

struct Candidate {
  float logit = 0;
  int32_t id = 0;
};

// The order of candidates: larger logits first, lower ids first among equals.
inline bool Better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Keeps the best of what it is offered in the caller's memory. Offers come with ascending ids. NaN
// and -inf are never kept; +inf counts as the largest float, so that differences stay finite.
class BestOf {
 public:
  // Requires: room is not empty.
  explicit BestOf(std::span<Candidate> room) : room_(room) {}

  void Offer(int32_t id, float logit) {
    logit = std::min(logit, std::numeric_limits<float>::max());
    if (logit > worst_) Keep({logit, id});  // false for NaN
  }
  void Offer(std::span<const float> logits, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) Offer(static_cast<int32_t>(i), logits[i]);
  }

  // What was kept, best first. Ends the use of this object.
  std::span<Candidate> Sorted() {
    std::sort(room_.begin(), room_.begin() + static_cast<std::ptrdiff_t>(size_), Better);
    return room_.first(size_);
  }

 private:
  // A heap with the worst candidate on top, once the room is full.
  void Keep(const Candidate& candidate) {
    if (size_ < room_.size()) {
      room_[size_++] = candidate;
      if (size_ < room_.size()) return;
      std::make_heap(room_.begin(), room_.end(), Better);
    } else {
      std::pop_heap(room_.begin(), room_.end(), Better);
      room_.back() = candidate;
      std::push_heap(room_.begin(), room_.end(), Better);
    }
    worst_ = room_.front().logit;
  }

  std::span<Candidate> room_;
  size_t size_ = 0;
  float worst_ = -std::numeric_limits<float>::infinity();
};

}  // namespace tael::sample
