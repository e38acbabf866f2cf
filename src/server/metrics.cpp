#include "server/metrics.h"

#include <algorithm>

namespace tael::server {
namespace {

// A cached prompt on a fast machine to a long one on a board.
constexpr double kFirstTokenBounds[] = {0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60};
constexpr double kInterTokenBounds[] = {0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2};

}  // namespace

Metrics::Metrics() : time_to_first_token(kFirstTokenBounds), inter_token(kInterTokenBounds) {}

void Metrics::CountResponse(int status) {
  const int index = std::clamp(status, kLeastStatus, kMostStatus) - kLeastStatus;
  responses_[static_cast<size_t>(index)].fetch_add(1, std::memory_order_relaxed);
}

std::vector<std::pair<int, uint64_t>> Metrics::Responses() const {
  std::vector<std::pair<int, uint64_t>> out;
  for (size_t i = 0; i < responses_.size(); ++i) {
    const uint64_t count = responses_[i].load(std::memory_order_relaxed);
    if (count > 0) out.emplace_back(kLeastStatus + static_cast<int>(i), count);
  }
  return out;
}

}  // namespace tael::server
