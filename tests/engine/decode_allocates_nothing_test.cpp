// Decoding a token allocates nothing: every operator new of this program is counted, on every
// thread. A binary of its own, because the counting ones replace everybody's.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "engine/batch.h"
#include "engine/engine.h"
#include "sample/sampler.h"

namespace {

std::atomic<uint64_t> g_num_allocations{0};

void* CountedAllocate(size_t bytes) {
  g_num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  std::abort();
}

void* CountedAllocate(size_t bytes, std::align_val_t alignment) {
  g_num_allocations.fetch_add(1, std::memory_order_relaxed);
  const size_t align = static_cast<size_t>(alignment);
  if (void* memory = std::aligned_alloc(align, (bytes + align - 1) / align * align)) return memory;
  std::abort();
}

}  // namespace

void* operator new(size_t bytes) { return CountedAllocate(bytes); }
void* operator new[](size_t bytes) { return CountedAllocate(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return CountedAllocate(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return CountedAllocate(bytes);
}
void* operator new(size_t bytes, std::align_val_t align) { return CountedAllocate(bytes, align); }
void* operator new[](size_t bytes, std::align_val_t align) { return CountedAllocate(bytes, align); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace tael {
namespace {

class Decoding : public testing::TestWithParam<const char*> {};

// Through the whole context, so that block tables grow and windows move on.
TEST_P(Decoding, AllocatesNothing) {
  auto made = engine::Engine::Create(
      {.model_path = std::string(TAEL_TEST_DATA) + "/tiny/" + GetParam() + ".gguf",
       .budget_bytes = 256u << 20,
       .num_threads = 2,
       .context_length = 256});
  ASSERT_TRUE(made.has_value()) << made.error().Message();
  engine::Engine& engine = **made;
  auto sampler = sample::Sampler::Create({.repeat_penalty = 1.1f, .seed = 1},
                                         engine.model().description().vocab_size);
  ASSERT_TRUE(sampler.has_value());
  engine::Session session = engine.NewSession();
  std::vector<TokenId> history;
  history.reserve(1 + engine.context_length());
  history.push_back(TokenId{3});

  const auto pick = [&](size_t, std::span<float> logits) {
    history.push_back(sampler->Sample(logits, history));
  };
  ASSERT_TRUE(session.Feed(history, {}, pick).has_value());  // warm: the first use of everything
  const uint64_t before = g_num_allocations.load();
  ASSERT_GT(before, 0u);  // the counter counts
  bool ok = true;
  while (ok && session.remaining() > 0) {
    const TokenId last = history.back();
    ok = session.Feed({&last, 1}, {}, pick).has_value();
  }
  EXPECT_EQ(g_num_allocations.load() - before, 0u);
  EXPECT_TRUE(ok);
  EXPECT_EQ(session.length(), engine.context_length());
}

TEST_P(Decoding, OfSeveralSessionsTogetherAllocatesNothing) {
  auto made = engine::Engine::Create(
      {.model_path = std::string(TAEL_TEST_DATA) + "/tiny/" + GetParam() + ".gguf",
       .budget_bytes = 256u << 20,
       .num_threads = 2,
       .context_length = 128,
       .max_sessions = 3});
  ASSERT_TRUE(made.has_value()) << made.error().Message();
  engine::Engine& engine = **made;
  std::vector<engine::Session> sessions;
  for (int i = 0; i < 3; ++i) sessions.push_back(engine.NewSession());
  const std::vector<TokenId> tokens(engine.context_length(), TokenId{5});
  std::vector<engine::BatchItem> items(3);
  float sum = 0;
  const auto feed = [&](size_t count) {
    for (size_t i = 0; i < 3; ++i) {
      items[i] = {.session = &sessions[i], .tokens = std::span(tokens).first(count)};
    }
    return engine::FeedBatch(engine, items,
                             [&](size_t, size_t, std::span<float> logits) { sum += logits[0]; });
  };
  ASSERT_TRUE(feed(2).has_value());
  const uint64_t before = g_num_allocations.load();
  bool ok = true;
  while (ok && sessions[0].remaining() > 0) ok = feed(1).has_value();
  EXPECT_EQ(g_num_allocations.load() - before, 0u);
  EXPECT_TRUE(ok);
}

std::string TestName(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(, Decoding,
                         testing::Values("llama_gqa", "gemma3", "mistral_swa24", "phi3",
                                         "qwen2_q256.Q4_1"),
                         TestName);

}  // namespace
}  // namespace tael
