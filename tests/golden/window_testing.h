// Helpers of the tests that hold windows against the oracle.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "exec/reference.h"
#include "testing.h"

namespace tael {

using Rows = std::vector<std::vector<float>>;

// What the oracle shows of each layer, from the groups' windows.
inline std::vector<exec::Reference::LayerWindow> LayerWindows(const engine::Engine& engine) {
  const kv::Geometry& geometry = engine.plan().geometry;
  std::vector<exec::Reference::LayerWindow> out;
  for (const kv::LayerPlace& place : geometry.places) {
    const kv::LayerShape& shape = geometry.group(place.group).shape;
    out.push_back({shape.window, shape.sinks});
  }
  return out;
}

// Largest difference of a log probability among the oracle's likeliest tokens.
inline double Distance(std::span<const float> want, std::span<const float> got) {
  const double want_sum = LogSumExp(want), got_sum = LogSumExp(got);
  const float top = *std::max_element(want.begin(), want.end());
  double distance = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i] < top - 8) continue;
    const double difference =
        (static_cast<double>(got[i]) - got_sum) - (static_cast<double>(want[i]) - want_sum);
    distance = std::max(distance, std::isnan(difference) ? INFINITY : std::abs(difference));
  }
  return distance;
}

inline double FeedAndCompare(engine::Session& session, std::span<const TokenId> tokens,
                             size_t chunk, const Rows& want) {
  double worst = 0;
  for (size_t done = 0; done < tokens.size(); done += chunk) {
    const auto some = tokens.subspan(done, std::min(chunk, tokens.size() - done));
    const Status status = session.Feed(some, {.num_logits = static_cast<uint32_t>(some.size())},
                                       [&](size_t i, std::span<float> logits) {
                                         worst = std::max(worst, Distance(want[done + i], logits));
                                       });
    EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().Message());
  }
  return worst;
}

}  // namespace tael
