// Helpers of the tests that hold windows against the oracle.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/testing.h"
#include "exec/reference.h"
#include "testing.h"

namespace tael {

using Rows = std::vector<std::vector<float>>;

struct Case {
  std::string model;
  kv::WindowPolicy policy;
};

inline std::string TestName(const testing::TestParamInfo<Case>& info) {
  const kv::WindowPolicy& policy = info.param.policy;
  const bool layered = policy.shape == kv::WindowShape::kLayered;
  return info.param.model + "_" + std::to_string(policy.tokens) + "_" +
         std::to_string(policy.sinks) + (layered ? "_layered" : "_uniform") +
         (policy.evict == kv::Evict::kMerge ? "_merge" : "");
}

inline constexpr double kTolerance = 2e-3;  // of log probabilities; both sides are f32
// Of policies that choose by attention: scores that are nearer to each other than this may fall
// either way; the texts of the tests have none.
inline constexpr double kLeastMargin = 1e-5;

// For such a policy: f32, passes as long as 320 tokens, freed blocks that read as NaN.
inline engine::EngineOptions ChoosingEngine(const std::string& model, uint32_t sessions,
                                            uint32_t threads) {
  return {.model_path = engine::Tiny(model),
          .budget_bytes = 1u << 30,
          .num_threads = threads,
          .oversubscribe = true,
          .context_length = 512,
          .max_sessions = sessions,
          .chunk_tokens = 320,
          .logit_rows = 16,
          .compute = exec::Compute::kReference,
          .kv_type = kernels::KvType::kF32,
          .poison_freed = true};
}

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

// Sessions take turns in passes of any mixture, until each has all of its tokens. Returns the
// largest distance. next(i, left): how many tokens come of session i's `left`, and how many of
// those stay; none: not this time.
struct Turn {
  size_t count = 0;
  size_t kept = 0;
};
template <class Next>
double FeedInTurns(engine::Engine& engine, std::vector<engine::Session>& sessions,
                   const std::vector<std::vector<TokenId>>& tokens, const std::vector<Rows>& want,
                   const Next& next) {
  double worst = 0;
  bool done = false;
  while (!done) {
    std::vector<engine::BatchItem> items;
    std::vector<size_t> who;
    std::vector<uint32_t> keep(sessions.size());
    done = true;
    for (size_t i = 0; i < sessions.size(); ++i) {
      const size_t left = tokens[i].size() - sessions[i].length();
      if (left == 0) continue;
      done = false;
      const Turn turn = next(i, left);
      if (turn.count == 0) continue;
      keep[i] = static_cast<uint32_t>(turn.kept);
      items.push_back({.session = &sessions[i],
                       .tokens = std::span(tokens[i]).subspan(sessions[i].length(), turn.count),
                       .num_logits = static_cast<uint32_t>(turn.count),
                       .keep = &keep[i]});
      who.push_back(i);
    }
    if (items.empty()) continue;
    const Status status =
        engine::FeedBatch(engine, items, [&](size_t item, size_t index, std::span<float> logits) {
          const size_t i = who[item];
          worst = std::max(worst, Distance(want[i][sessions[i].length() + index], logits));
        });
    EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().Message());
    if (!status) return INFINITY;
  }
  return worst;
}

}  // namespace tael
