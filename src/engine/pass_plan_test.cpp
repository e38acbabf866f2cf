#include "engine/pass_plan.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <vector>

#include "engine/scheduler_testing.h"

namespace tael::engine {
namespace {

// Sequences as the scheduler has them, without its thread.
class PassPlanTest : public testing::Test {
 protected:
  PassPlanTest() : engine(CreateEngine(SchedulerEngine("llama_gqa"))) {}

  // A request with so many tokens in its prompt, of which `held` have been computed.
  Choice& Add(size_t prompt, size_t held) {
    const auto answer = std::make_shared<AnswerSource>(std::make_shared<Doorbell>(), 1, 1);
    const auto seed = static_cast<uint32_t>(jobs.size());
    jobs.emplace_back(MakeRequest(RandomTokens(prompt, seed), 20), answer, Job::Clock::now());
    Job& job = jobs.back();
    job.choices.push_back(std::make_unique<Choice>(job, 0, jobs.size()));
    Choice& choice = *job.choices.back();
    auto writer = AnswerWriter::Create(*engine, job.request.prompt, job.request.options, 0,
                                       job.arrival, choice);
    EXPECT_TRUE(writer.has_value());
    choice.writer = *std::move(writer);
    choice.session = engine->NewSession();
    if (held > 0) {
      const auto no_sink = [](size_t, std::span<float>) {};
      const auto some = std::span(job.request.prompt).first(held);
      EXPECT_TRUE(choice.session->Feed(some, {}, no_sink).has_value());
    }
    ready.push_back(&choice);
    return choice;
  }

  std::vector<size_t> Counts() const {
    std::vector<size_t> counts;
    for (const BatchItem& item : plan.items()) counts.push_back(item.tokens.size());
    return counts;
  }

  std::unique_ptr<Engine> engine;
  std::deque<Job> jobs;
  std::vector<Choice*> ready;
  PassPlan plan;
};

TEST_F(PassPlanTest, EveryAnswerGetsItsTokenBeforeAnyPrompt) {
  Add(200, 0);
  Add(20, 19);
  Add(30, 29);
  plan.Make(ready, 32, true);
  EXPECT_EQ(Counts(), (std::vector<size_t>{1, 1, 16}));  // of 30 that there is room for
  EXPECT_EQ(plan.parts()[2].choice, ready[0]);
  EXPECT_FALSE(plan.parts()[2].decodes);
  EXPECT_EQ(plan.items()[2].num_logits, 0u);
  EXPECT_EQ(plan.items()[0].num_logits, 1u);
}

TEST_F(PassPlanTest, ChunksEndWithARowAndShortPromptsFillWhatIsLeft) {
  Add(100, 8);
  plan.Make(ready, 32, true);
  EXPECT_EQ(Counts(), (std::vector<size_t>{24}));
  Add(5, 0);
  Add(50, 0);
  plan.Make(ready, 32, true);
  EXPECT_EQ(Counts(), (std::vector<size_t>{24, 5, 3}));  // less than a row is better than nothing
}

TEST_F(PassPlanTest, TheLastChunkOfAPromptWantsLogits) {
  Add(40, 32);
  plan.Make(ready, 32, true);
  ASSERT_EQ(Counts(), (std::vector<size_t>{8}));
  EXPECT_EQ(plan.items()[0].num_logits, 1u);
}

TEST_F(PassPlanTest, NewRowsCountTheOneThatMayBeCopied) {
  Add(100, 40);  // 2.5 rows; 32 more are 4.5: the half, and two
  plan.Make(ready, 32, true);
  ASSERT_EQ(Counts(), (std::vector<size_t>{24}));
  EXPECT_EQ(plan.CountNewRows(), 2u);
  Add(17, 16);
  plan.Make(ready, 32, true);
  EXPECT_EQ(plan.CountNewRows(), 3u);
}

TEST_F(PassPlanTest, NothingIsReadyNothingIsPlanned) {
  plan.Make({}, 32, true);
  EXPECT_TRUE(plan.items().empty());
  EXPECT_EQ(plan.CountNewRows(), 0u);
}

}  // namespace
}  // namespace tael::engine
