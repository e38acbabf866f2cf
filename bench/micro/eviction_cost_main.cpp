// What a decode step pays for knowing which tokens got attention and for keeping them. One JSON
// object on stdout.
//
//   tael_eviction_cost MODEL [--pairs 150] [--window 512] [--threads 2] [--seed 1]
//
// Two engines on one file, one that drops the oldest tokens (--evict drop) and one that keeps a
// tail (heavy), both in full windows. They take turns, 16 tokens each: so many leave together. A
// pair's cost is heavy / drop - 1 in time. Of the pairs the median and the middle 95 % of its
// bootstrap: two runs, one after the other, differ by more than there is to be seen.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tool.h"

namespace tael {
namespace {

using bench::Fail;
using bench::Must;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string model;
  uint32_t pairs = 150, window = 512, threads = 2, seed = 1;
};

constexpr uint32_t kTurn = kernels::kBlockTokens;

// An engine in whose window nothing more fits.
class Arm {
 public:
  Arm(const Options& options, kv::Evict evict)
      : engine_(Must(engine::Engine::Create({.model_path = options.model,
                                             .num_threads = options.threads,
                                             .context_length = 2 * options.window,
                                             .kv_auto = true,
                                             .window = {.tokens = options.window,
                                                        .shape = kv::WindowShape::kUniform,
                                                        .evict = evict}}))),
        session_(engine_->NewSession()),
        random_(options.seed) {
    Feed(2 * options.window, 2 * options.window);
  }

  // Milliseconds of `count` tokens, so many in a pass.
  double Feed(uint32_t count, uint32_t at_once) {
    std::vector<TokenId> tokens(at_once);
    const Clock::time_point start = Clock::now();
    for (uint32_t done = 0; done < count; done += at_once) {
      for (TokenId& token : tokens) token = static_cast<TokenId>(1000 + random_() % 10000);
      Must(session_.Feed(tokens, {}, [this](size_t, std::span<float> row) { logit_ += row[0]; }));
    }
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  }

 private:
  std::unique_ptr<engine::Engine> engine_;
  engine::Session session_;
  std::mt19937 random_;
  float logit_ = 0;
};

int Main(const Options& options) {
  Arm drop(options, kv::Evict::kDrop), heavy(options, kv::Evict::kHeavy);
  std::vector<double> costs, drop_ms, heavy_ms;
  for (uint32_t pair = 0; pair < options.pairs + 2; ++pair) {
    double d = 0, h = 0;
    if (pair % 2 == 0) d = drop.Feed(kTurn, 1);
    h = heavy.Feed(kTurn, 1);
    if (pair % 2 == 1) d = drop.Feed(kTurn, 1);
    if (pair < 2) continue;  // warming up
    costs.push_back(h / d - 1);
    drop_ms.push_back(d / kTurn);
    heavy_ms.push_back(h / kTurn);
  }
  const bench::Estimate cost = bench::Bootstrap(costs, options.seed);
  std::printf(
      "{\"cost\": %.5f, \"low\": %.5f, \"high\": %.5f, \"pairs\": %u, \"window\": %u, "
      "\"drop_step_ms\": %.4f, \"heavy_step_ms\": %.4f}\n",
      cost.median, cost.low, cost.high, options.pairs, options.window, bench::Median(drop_ms),
      bench::Median(heavy_ms));
  return 0;
}

Options Parse(std::span<char*> args) {
  Options options;
  options.model = bench::ParseModel(args, {{"--pairs", &options.pairs},
                                           {"--window", &options.window},
                                           {"--threads", &options.threads},
                                           {"--seed", &options.seed}});
  if (options.pairs == 0 || options.window == 0) Fail("a number is too small");
  return options;
}

}  // namespace
}  // namespace tael

int main(int argc, char** argv) {
  return tael::Main(tael::Parse({argv, static_cast<size_t>(argc)}));
}
