// Memory that creeps: what a process holds after each stage of its life, against a table; after
// thousands of sessions, against what it held after fifty; and after a text of many windows,
// against what one window takes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/generation.h"
#include "engine/prefix_context.h"
#include "engine/testing.h"
#include "golden/testing.h"
#include "kv/prefix_index.h"
#include "kv/snapshot.h"
#include "mem/process_memory.h"

namespace tael::engine {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOwnHeap = false;  // a sanitizer's memory would be measured
#else
constexpr bool kOwnHeap = true;
#endif

// Anonymous and shared memory that is resident now.
uint64_t Resident() {
  const auto memory = mem::ReadProcessMemory();
  return memory ? memory->unbacked_bytes() : 0;
}

// The most of it since the last Take(), looked at every millisecond.
class Peak {
 public:
  uint64_t Take() {
    Look();
    return most_.exchange(Resident());
  }

 private:
  void Look() {
    const uint64_t now = Resident();
    uint64_t most = most_;
    while (now > most && !most_.compare_exchange_weak(most, now)) {
    }
  }

  std::atomic<uint64_t> most_ = 0;
  std::jthread looking_{[this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      Look();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }};
};

// Tokens of a text that the session's length continues.
std::vector<TokenId> TextOf(uint32_t begin, uint32_t count) {
  std::vector<TokenId> tokens(count);
  for (uint32_t i = 0; i < count; ++i)
    tokens[i] = TokenId{static_cast<int>(60 + (begin + i) % 200)};
  return tokens;
}

void FeedTokens(Session& session, uint32_t count, uint32_t at_once) {
  for (uint32_t done = 0; done < count; done += at_once) {
    const std::vector<TokenId> tokens = TextOf(session.length(), at_once);
    ASSERT_TRUE(session.Feed(tokens, {}, [](size_t, std::span<float>) {}).has_value());
  }
}

std::unique_ptr<Engine> Load(const std::string& path, uint32_t context) {
  EngineOptions options;
  options.model_path = path;
  options.budget_bytes = uint64_t{900} << 20;
  options.num_threads = 2;
  options.context_length = context;
  return CreateEngine(options);
}

// A prefix index takes the session's text over, and is written to a file and read back.
void SaveAndRestore(Engine& engine, Session session) {
  const std::string path = testing::TempDir() + "tael_peak_" + std::to_string(::getpid());
  const auto index = kv::PrefixIndex::Create(engine.budget(), engine.plan().geometry, engine.pool(),
                                             {.max_bytes = engine.pool().Stats().capacity_bytes});
  ASSERT_TRUE(index.has_value()) << index.error().Message();
  (*index)->Publish(TextOf(0, session.length()), 0, session.sequence());
  const auto context = MakePrefixContext(engine);
  ASSERT_TRUE(context.has_value());
  {
    const auto snapshot = kv::Snapshot::Collect(**index, *context, engine.budget());
    ASSERT_TRUE(snapshot.has_value());
    ASSERT_TRUE(snapshot->Write(path).has_value());
  }
  (*index)->Clear();
  const uint32_t length = session.length();
  { const Session gone = std::move(session); }
  const auto restored = kv::RestoreSnapshot(path, *context, engine.budget(), **index);
  ASSERT_TRUE(restored.has_value()) << restored.error().Message();
  EXPECT_EQ(restored->rows, length / kernels::kBlockTokens);
  std::remove(path.c_str());
}

// The most above what the process held before, while it loads, reads 1,024 tokens of a prompt,
// decodes 256, saves and restores them, and unloads. A stage may grow by 2 % or 4 MiB, whichever is
// more, without being changed here.
struct Stages {
  const char* model;
  std::array<uint64_t, 5> bytes;
};
constexpr uint64_t kMb = 1'000'000;
constexpr Stages kTable[] = {
    {"smollm2", {3 * kMb, 33 * kMb, 39 * kMb, 39 * kMb, 1 * kMb}},
    {"gemma3", {5 * kMb, 26 * kMb, 28 * kMb, 28 * kMb, 1 * kMb}},
};

std::array<uint64_t, 5> Measure(const std::string& path) {
  std::array<uint64_t, 5> bytes{};
  const uint64_t before = Resident();
  Peak peak;
  const auto note = [&](size_t stage) {
    const uint64_t most = peak.Take();
    bytes[stage] = most - std::min(before, most);
  };
  {
    const auto engine = Load(path, 2048);
    if (engine == nullptr) return bytes;
    note(0);
    Session session = engine->NewSession();
    FeedTokens(session, 1024, 256);
    note(1);
    FeedTokens(session, 256, 1);
    note(2);
    SaveAndRestore(*engine, std::move(session));
    note(3);
  }
  peak.Take();  // of the time before it was gone
  note(4);
  return bytes;
}

TEST(MemoryOverTime, EachStageTakesWhatItTook) {
  if (!kOwnHeap) GTEST_SKIP() << "a sanitizer has memory of its own";
  const std::array<const char*, 5> names = {"load", "1k prefill", "256 decoded", "snapshot",
                                            "unload"};
  size_t measured = 0;
  for (const Stages& stages : kTable) {
    const std::string path = RealModel(stages.model);
    if (path.empty()) continue;
    ++measured;
    const std::array<uint64_t, 5> bytes = Measure(path);
    for (size_t i = 0; i < names.size(); ++i) {
      const uint64_t slack = std::max<uint64_t>(stages.bytes[i] / 50, uint64_t{4} << 20);
      EXPECT_LE(bytes[i], stages.bytes[i] + slack) << stages.model << ", " << names[i];
      std::printf("%s, %s: %.1f MB (table: %.1f)\n", stages.model, names[i],
                  static_cast<double>(bytes[i]) / 1e6, static_cast<double>(stages.bytes[i]) / 1e6);
    }
  }
  if (measured == 0) GTEST_SKIP() << "TAEL_TEST_MODELS names no folder with models";
}

// 1,000 cycles in full (ACCEPTANCE A7): scripts/verify sets TAEL_TEST_FULL.
TEST(MemoryOverTime, SessionsThatComeAndGoLeaveNothing) {
  if (!kOwnHeap) GTEST_SKIP() << "a sanitizer has memory of its own";
  const bool full = std::getenv("TAEL_TEST_FULL") != nullptr;
  const std::string real = full ? RealModel("smollm2") : "";
  const std::string path = real.empty() ? std::string(TAEL_TEST_DATA) + "/tiny/qwen3.gguf" : real;
  const uint64_t before = Resident();
  {
    const auto engine = Load(path, 512);
    ASSERT_NE(engine, nullptr);
    const int cycles = full ? 1000 : 200, settled = 50;
    uint64_t after_settled = 0;
    for (int i = 0; i < cycles; ++i) {
      Session session = engine->NewSession();
      FeedTokens(session, 300, 100);
      FeedTokens(session, 64, 1);
      if (i + 1 == settled) after_settled = Resident();
    }
    EXPECT_EQ(engine->pool().Stats().num_blocks_in_use, 0u);
    const auto growth = static_cast<double>(Resident()) - static_cast<double>(after_settled);
    EXPECT_LT(growth / (cycles - settled), 1024) << "bytes a session";
    std::printf("%d sessions: %.0f bytes more than after %d\n", cycles, growth, settled);
  }
  EXPECT_LT(Resident(), before + (uint64_t{8} << 20)) << "after unloading";
}

// A text of so many turns of 100 tokens in a window of 64, eight times what the model was trained
// for. At full length with a real model, and speed: bench/micro/endless_main.cpp.
class EndlessText {
 public:
  explicit EndlessText(Engine& engine) : session_(engine.NewSession()) {
    options_.max_tokens = 100;
    options_.sampler.temperature = 1;
    options_.sampler.seed = 3;
    options_.ignore_eos = true;
    options_.logprobs = 0;
  }
  // Bytes of the blocks that the sequence held, the most after any turn.
  uint64_t Go(int turns) {
    uint64_t most = 0;
    for (int i = 0; i < turns; ++i) {
      text_.push_back(TokenId{60 + i % 200});
      const auto result = Generate(session_, text_, options_);
      EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().Message());
      if (!result) return 0;
      text_.insert(text_.end(), result->tokens.begin(), result->tokens.end());
      for (const sample::LogProbs& one : result->logprobs) EXPECT_TRUE(std::isfinite(one.logprob));
      most = std::max(most, session_.sequence().bytes_in_use());
    }
    return most;
  }
  const Session& session() const { return session_; }

 private:
  Session session_;
  GenerateOptions options_;
  std::vector<TokenId> text_;
};

TEST(MemoryOverTime, ATextWithoutAnEndHoldsWhatItsWindowHolds) {
  constexpr uint32_t kWindow = 64;
  for (const kernels::KvType type : {kernels::KvType::kF16, kernels::KvType::kQ8}) {
    EngineOptions options;
    options.model_path = std::string(TAEL_TEST_DATA) + "/tiny/qwen3.gguf";
    options.budget_bytes = uint64_t{200} << 20;
    options.num_threads = 2;
    options.context_length = 128;
    options.kv_type = type;
    options.window = {.tokens = kWindow, .sinks = 4, .shape = kv::WindowShape::kUniform};
    const auto engine = CreateEngine(options);
    ASSERT_NE(engine, nullptr);
    EndlessText text(*engine);
    // 16 turns of 101 tokens end at every place in a block.
    const uint64_t first = text.Go(16);
    const uint64_t resident = Resident();
    text.Go(16);
    const uint64_t last = text.Go(16);
    EXPECT_GT(text.session().length(), 9 * engine->plan().trained_context);
    EXPECT_EQ(text.session().dropped_tokens(), text.session().length() - kWindow);
    EXPECT_EQ(last, first);
    EXPECT_EQ(engine->pool().Stats().block_bytes_in_use, text.session().sequence().bytes_in_use());
    // The ids, and 12 bytes of tables for each group and 16 tokens.
    if (kOwnHeap) {
      EXPECT_LT(Resident(), resident + (uint64_t{512} << 10));
    }
  }
}

}  // namespace
}  // namespace tael::engine
