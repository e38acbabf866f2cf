// Many clients at once that come, go and do not listen, while memory is short and somebody trims:
// whoever stays gets what it would get alone, and nothing is left behind. Freed blocks read as NaN,
// so that a block that is freed while it is used does not go unnoticed.
//
// TAEL_TEST_FULL=1 in the environment: ten thousand requests instead of some hundred.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "engine/scheduler.h"
#include "engine/scheduler_testing.h"

namespace tael::engine {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kClients = 6;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint32_t kRequestsPerClient = 5;  // minutes instead of seconds otherwise
#else
constexpr uint32_t kRequestsPerClient = 20;
#endif

uint32_t RequestsPerClient() {
  const char* full = std::getenv("TAEL_TEST_FULL");
  return full != nullptr && *full == '1' ? 10000 / kClients : kRequestsPerClient;
}

// A fixed set, so that what each should say is computed once.
std::vector<Request> MakeRequests(Dice& dice) {
  std::vector<Request> requests;
  const auto system = RandomTokens(100, 50);
  for (int i = 0; i < 24; ++i) {
    const size_t shared = dice.Below(2) == 0 ? 20 + dice.Below(80) : 0;
    Request request = MakeRequest({system.begin(), system.begin() + static_cast<long>(shared)},
                                  1 + dice.Below(50));
    const auto own = RandomTokens(1 + dice.Below(100), dice.Any());
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    request.options.sampler.temperature = dice.Below(2) == 0 ? 0.0f : 1.0f;
    request.options.sampler.seed = dice.Any();
    request.num_choices = dice.Below(4) == 0 ? 3 : 1;
    request.priority = dice.Below(3) == 0 ? Priority::kBackground : Priority::kInteractive;
    requests.push_back(std::move(request));
  }
  return requests;
}

class Storm {
 public:
  Storm(Scheduler& scheduler, const std::vector<Request>& requests,
        const std::vector<std::vector<Told>>& want)
      : scheduler_(scheduler), requests_(requests), want_(want) {}

  void Client(uint32_t seed) {
    Dice dice(seed);
    for (uint32_t i = 0; i < RequestsPerClient(); ++i) One(dice);
  }

  void Trimmer() {
    Dice dice(77);
    while (!over) {
      scheduler_.Trim(dice.Below(4) == 0 ? TrimLevel::kCritical : TrimLevel::kModerate);
      std::this_thread::sleep_for(std::chrono::microseconds(dice.Below(20000)));
    }
  }

  std::atomic<bool> over{false};
  std::atomic<uint64_t> num_whole{0}, num_cancelled{0};

 private:
  void One(Dice& dice) {
    const size_t which = dice.Below(static_cast<uint32_t>(requests_.size()));
    const Request& request = requests_[which];
    auto submitted = scheduler_.Submit(request);
    if (!submitted) {
      EXPECT_EQ(submitted.error().code, ErrorCode::kBusy) << submitted.error().Message();
      std::this_thread::sleep_for(1ms);
      return;
    }
    Answer& answer = **submitted;
    switch (dice.Below(4)) {
      case 0:  // reads to the end
        break;
      case 1:  // goes away without a word, at a random moment
        std::this_thread::sleep_for(std::chrono::microseconds(dice.Below(8000)));
        answer.Cancel();
        break;
      case 2: {  // reads a little, and goes
        std::vector<Piece> pieces;
        (void)answer.WaitFor(std::chrono::milliseconds(dice.Below(20)), pieces);
        answer.Cancel();
        ++num_cancelled;
        return;
      }
      default:  // does not listen for a while
        std::this_thread::sleep_for(std::chrono::milliseconds(dice.Below(30)));
    }
    Check(Listen(answer, request.num_choices), want_[which]);
    EXPECT_FALSE(answer.error().has_value());
  }

  // The whole answer, or the beginning of it.
  void Check(const std::vector<Told>& told, const std::vector<Told>& want) {
    bool whole = true;
    for (size_t i = 0; i < told.size(); ++i) {
      ASSERT_TRUE(told[i].finish.has_value());
      if (*told[i].finish != FinishReason::kCancelled) {
        EXPECT_EQ(told[i], want[i]);
        continue;
      }
      whole = false;
      ASSERT_LE(told[i].tokens.size(), want[i].tokens.size());
      EXPECT_TRUE(std::equal(told[i].tokens.begin(), told[i].tokens.end(), want[i].tokens.begin()));
    }
    ++(whole ? num_whole : num_cancelled);
  }

  Scheduler& scheduler_;
  const std::vector<Request>& requests_;
  const std::vector<std::vector<Told>>& want_;
};

class SchedulerStress : public testing::TestWithParam<const char*> {};

TEST_P(SchedulerStress, SurvivorsSayWhatTheyWouldAloneAndNothingIsLeft) {
  EngineOptions options = SchedulerEngine(GetParam());
  options.max_sessions = 1;
  const auto engine = CreateEngine(options);
  ASSERT_NE(engine, nullptr);
  Dice dice(5);
  const std::vector<Request> requests = MakeRequests(dice);
  std::vector<std::vector<Told>> want;
  for (const Request& request : requests) want.push_back(Expected(*engine, request));

  const auto scheduler = StartScheduler(*engine, {.max_queued = 4,
                                                  .max_running = 8,
                                                  .reserved_tokens = 16,
                                                  .buffer_tokens = 24,
                                                  .pressure_hold = 3ms});
  Storm storm(*scheduler, requests, want);
  std::vector<std::thread> clients;
  for (uint32_t i = 0; i < kClients; ++i)
    clients.emplace_back([&storm, i] { storm.Client(i + 1); });
  std::thread trimmer([&storm] { storm.Trimmer(); });
  for (std::thread& client : clients) client.join();
  storm.over = true;
  trimmer.join();

  EXPECT_GT(storm.num_whole, 0u);
  EXPECT_GT(storm.num_cancelled, 0u);
  EXPECT_TRUE(Eventually([&] {
    const SchedulerStats stats = scheduler->Stats();
    return stats.finished + stats.cancelled == stats.submitted;
  }));
  const SchedulerStats stats = scheduler->Stats();
  EXPECT_EQ(stats.failed, 0u);
  EXPECT_EQ(stats.running + stats.queued + stats.preempted, 0u);
  EXPECT_GT(stats.preemptions, 0u);
  ExpectNoBlocks(*engine, *scheduler);
  EXPECT_TRUE(engine->pool().CheckInvariants());
}

INSTANTIATE_TEST_SUITE_P(Models, SchedulerStress,
                         testing::Values("llama_gqa", "mistral_swa24", "gemma3"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace tael::engine
