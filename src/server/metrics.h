// What the server counts itself; the engine and the scheduler have counts of their own.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "server/prometheus.h"

namespace tael::server {

// Any thread may call anything.
class Metrics {
 public:
  Metrics();

  void CountResponse(int status);
  std::vector<std::pair<int, uint64_t>> Responses() const;  // by status, those that there were

  Histogram time_to_first_token;
  Histogram inter_token;  // as handed to the client's connection
  std::atomic<uint64_t> clients_gone{0};
  std::atomic<uint64_t> connections{0};

 private:
  static constexpr int kLeastStatus = 100, kMostStatus = 599;
  std::array<std::atomic<uint64_t>, kMostStatus - kLeastStatus + 1> responses_{};
};

}  // namespace tael::server
