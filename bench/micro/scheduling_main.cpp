// What the scheduler gives to clients that come together, without a server in front of it. Lines
// for people on stdout.
//
//   tael_scheduling MODEL [--clients 8] [--shared 200] [--own 130] [--new 48] [--long 2000]
//                   [--threads 2] [--budget BYTES] [--chunk N]
//
//   cold   all at once: a common beginning that nobody has computed, an own end, --new tokens each
//   warm   the same beginning again, other ends
//   second two sessions with a beginning of their own, one after the other: the time to the first
//          token of the second one against that of the first, median of nine pairs
//   gap    four answers are being written when a prompt of --long tokens arrives: the longest time
//          between two tokens of theirs, against the time of one pass of the longest chunk
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/scheduler.h"

namespace tael {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string model;
  uint32_t clients = 8, shared = 200, own = 130, fresh = 48, long_prompt = 2000, chunk = 0;
  size_t threads = 2;
  uint64_t budget = 0;
};

double MsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::vector<TokenId> RandomTokens(uint32_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = TokenId{static_cast<int32_t>(1000 + rng() % 20000)};
  return tokens;
}

std::vector<TokenId> Join(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

engine::Request MakeRequest(std::vector<TokenId> prompt, uint32_t max_tokens) {
  engine::Request request{.prompt = std::move(prompt)};
  request.options.max_tokens = max_tokens;
  request.options.ignore_eos = true;
  request.options.sampler.temperature = 0;
  return request;
}

// One client: reads as it comes.
struct Heard {
  double first_ms = 0, end_ms = 0, longest_gap_ms = 0;
  size_t tokens = 0;
};

Heard Listen(engine::Answer& answer, Clock::time_point start) {
  Heard heard;
  std::vector<engine::Piece> pieces;
  Clock::time_point last{};
  while (answer.WaitFor(std::chrono::minutes(5), pieces) == engine::Answer::Next::kPieces) {
    size_t count = 0;
    for (const engine::Piece& piece : pieces) count += piece.tokens.size();
    if (count == 0) continue;
    if (heard.tokens == 0) {
      heard.first_ms = MsSince(start);
    } else {
      heard.longest_gap_ms = std::max(heard.longest_gap_ms, MsSince(last));
    }
    last = Clock::now();
    heard.tokens += count;
  }
  heard.end_ms = MsSince(start);
  return heard;
}

std::vector<Heard> RunAll(engine::Scheduler& scheduler, std::vector<engine::Request> requests) {
  const Clock::time_point start = Clock::now();
  std::vector<Heard> heard(requests.size());
  std::vector<std::thread> clients;
  for (size_t i = 0; i < requests.size(); ++i) {
    clients.emplace_back([&, i] {
      auto answer = scheduler.Submit(std::move(requests[i]));
      if (answer) {
        heard[i] = Listen(**answer, start);
      } else {
        std::fprintf(stderr, "%s\n", answer.error().Message().c_str());
      }
    });
  }
  for (std::thread& client : clients) client.join();
  return heard;
}

void Together(engine::Scheduler& scheduler, const Options& options, const char* name,
              uint32_t seed) {
  std::vector<engine::Request> requests;
  for (uint32_t i = 0; i < options.clients; ++i) {
    requests.push_back(MakeRequest(
        Join(RandomTokens(options.shared, 1), RandomTokens(options.own, seed + i)), options.fresh));
  }
  const uint64_t before = scheduler.Stats().prompt_tokens;
  const std::vector<Heard> heard = RunAll(scheduler, std::move(requests));
  double first = 0, end = 0;
  size_t tokens = 0;
  for (const Heard& one : heard) {
    first += one.first_ms / static_cast<double>(heard.size());
    end = std::max(end, one.end_ms);
    tokens += one.tokens;
  }
  std::printf(
      "%s: %zu tokens in %.0f ms, %.1f tok/s in total, first token after %.0f ms; %llu "
      "prompt tokens computed\n",
      name, tokens, end, static_cast<double>(tokens) / end * 1000, first,
      static_cast<unsigned long long>(scheduler.Stats().prompt_tokens - before));
}

void Second(engine::Scheduler& scheduler, const Options& options) {
  const auto first_ms = [&](std::vector<TokenId> prompt) {
    auto answer = scheduler.Submit(MakeRequest(std::move(prompt), 1));
    const Heard heard = answer ? Listen(**answer, Clock::now()) : Heard{};
    if (heard.tokens == 0) {
      std::fprintf(stderr, "no answer to time\n");
      std::exit(1);
    }
    return heard.first_ms;
  };
  std::vector<double> ratios, cold_ms;
  for (uint32_t i = 0; i < 9; ++i) {
    const std::vector<TokenId> shared = RandomTokens(options.shared, 700 + i);
    cold_ms.push_back(first_ms(Join(shared, RandomTokens(options.own, 800 + 2 * i))));
    const double warm_ms = first_ms(Join(shared, RandomTokens(options.own, 801 + 2 * i)));
    ratios.push_back(warm_ms / cold_ms.back());
  }
  std::ranges::sort(ratios);
  std::ranges::sort(cold_ms);
  std::printf("second: first token after %.3f of a cold one's %.0f ms (%u shared tokens, %u own)\n",
              ratios[4], cold_ms[4], options.shared, options.own);
}

void Gap(engine::Scheduler& scheduler, const Options& options, uint32_t chunk) {
  // The pass to compare with: the long prompt alone.
  auto alone = scheduler.Submit(MakeRequest(RandomTokens(options.long_prompt, 500), 1));
  if (!alone) return;
  Listen(**alone, Clock::now());
  const uint32_t passes = (options.long_prompt + chunk - 1) / chunk;
  const double chunk_ms = (*alone)->timings().prefill_ms / passes;

  std::vector<std::thread> writers;
  std::vector<Heard> heard(4);
  for (uint32_t i = 0; i < 4; ++i) {
    writers.emplace_back([&, i] {
      auto answer = scheduler.Submit(MakeRequest(RandomTokens(50, 600 + i), 200));
      if (answer) heard[i] = Listen(**answer, Clock::now());
    });
  }
  while (scheduler.Stats().running < 4) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  auto late = scheduler.Submit(MakeRequest(RandomTokens(options.long_prompt, 501), 1));
  if (late) Listen(**late, Clock::now());
  for (std::thread& writer : writers) writer.join();
  double gap = 0;
  for (const Heard& one : heard) gap = std::max(gap, one.longest_gap_ms);
  std::printf(
      "gap: a pass of %u prompt tokens takes %.0f ms; longest gap beside one %.0f ms (%.2f)\n",
      chunk, chunk_ms, gap, gap / chunk_ms);
}

Options Parse(int argc, char** argv) {
  Options options;
  const auto refuse = [](const std::string& what) {
    std::fprintf(stderr, "%s\n", what.c_str());
    std::exit(2);
  };
  if (argc < 2) refuse("which model?");
  if (argc % 2 != 0) refuse(std::string("no value for ") + argv[argc - 1]);
  options.model = argv[1];
  for (int i = 2; i < argc; i += 2) {
    const std::string flag = argv[i];
    const auto value = std::strtoull(argv[i + 1], nullptr, 10);
    const auto small = static_cast<uint32_t>(value);
    if (flag == "--clients") {
      options.clients = small;
    } else if (flag == "--shared") {
      options.shared = small;
    } else if (flag == "--own") {
      options.own = small;
    } else if (flag == "--new") {
      options.fresh = small;
    } else if (flag == "--long") {
      options.long_prompt = small;
    } else if (flag == "--threads") {
      options.threads = value;
    } else if (flag == "--budget") {
      options.budget = value;
    } else if (flag == "--chunk") {
      options.chunk = small;
    } else {
      refuse("unknown flag " + flag);
    }
  }
  return options;
}

int Main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  auto engine = engine::Engine::Create({.model_path = options.model,
                                        .budget_bytes = options.budget,
                                        .num_threads = options.threads,
                                        .context_length = 2048,
                                        .max_sessions = std::max(8u, options.clients),
                                        .chunk_tokens = options.chunk});
  if (!engine) {
    std::fprintf(stderr, "%s\n", engine.error().Message().c_str());
    return 1;
  }
  const uint32_t chunk = (*engine)->max_batch_tokens();
  auto scheduler = engine::Scheduler::Create(**engine, {});
  if (!scheduler) return 1;
  Listen(**(*scheduler)->Submit(MakeRequest(RandomTokens(20, 9), 2)),
         Clock::now());  // weights read
  Together(**scheduler, options, "cold", 100);
  Together(**scheduler, options, "warm", 200);
  Second(**scheduler, options);
  Gap(**scheduler, options, chunk);
  return 0;
}

}  // namespace
}  // namespace tael

int main(int argc, char** argv) { return tael::Main(argc, argv); }
