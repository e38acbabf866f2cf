#include "engine/answer.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tael::engine {
namespace {

using namespace std::chrono_literals;

class AnswerTest : public testing::Test {
 protected:
  static Piece Say(uint32_t choice, std::string text, int32_t id) {
    return {.choice = choice, .text = std::move(text), .tokens = {TokenId{id}}};
  }
  static Piece End(uint32_t choice, FinishReason reason = FinishReason::kStop) {
    return {.choice = choice, .finish = reason};
  }

  std::shared_ptr<Doorbell> doorbell = std::make_shared<Doorbell>();
  AnswerSource answer{doorbell, 7, 2};
  std::vector<Piece> pieces;
};

TEST_F(AnswerTest, PiecesOfAChoiceThatNobodyTookBecomeOne) {
  answer.Put(Say(0, "a", 1));
  answer.Put(Say(1, "x", 9));
  answer.Put(Say(0, "b", 2));
  EXPECT_EQ(answer.num_buffered(), 3u);
  ASSERT_EQ(answer.WaitFor(0ms, pieces), Answer::Next::kPieces);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].text, "ab");
  EXPECT_EQ(pieces[0].tokens, (std::vector<TokenId>{TokenId{1}, TokenId{2}}));
  EXPECT_EQ(pieces[1].text, "x");
  EXPECT_EQ(answer.num_buffered(), 0u);
  EXPECT_EQ(answer.WaitFor(0ms, pieces), Answer::Next::kTimeout);
  EXPECT_TRUE(pieces.empty());
  EXPECT_EQ(answer.usage().completion_tokens, 3u);
  EXPECT_EQ(answer.usage().prompt_tokens, 7u);
}

TEST_F(AnswerTest, TheEndComesAfterTheLastPiece) {
  answer.Put(End(0));
  answer.Put(Say(1, "x", 9));
  answer.Put(End(1, FinishReason::kLength));
  ASSERT_EQ(answer.WaitFor(0ms, pieces), Answer::Next::kPieces);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].finish, FinishReason::kStop);
  EXPECT_EQ(pieces[1].finish, FinishReason::kLength);
  EXPECT_EQ(answer.WaitFor(0ms, pieces), Answer::Next::kEnd);
  EXPECT_EQ(answer.WaitFor(0ms, pieces), Answer::Next::kEnd);
}

TEST_F(AnswerTest, AnErrorEndsEveryChoiceAfterWhatHasCome) {
  answer.Put(Say(0, "a", 1));
  answer.Fail({ErrorCode::kIo, "gone", ""});
  EXPECT_EQ(answer.WaitFor(0ms, pieces), Answer::Next::kPieces);
  EXPECT_EQ(answer.WaitFor(0ms, pieces), Answer::Next::kEnd);
  ASSERT_TRUE(answer.error().has_value());
  EXPECT_EQ(answer.error()->code, ErrorCode::kIo);
}

TEST_F(AnswerTest, AReaderWaitsForWhatComesFromAnotherThread) {
  std::thread writer([this] {
    for (int32_t i = 0; i < 500; ++i) answer.Put(Say(static_cast<uint32_t>(i) % 2, "a", i));
    answer.Put(End(0));
    answer.Put(End(1));
  });
  size_t tokens = 0, ends = 0;
  while (answer.WaitFor(10s, pieces) == Answer::Next::kPieces) {
    for (const Piece& piece : pieces) {
      tokens += piece.tokens.size();
      ends += piece.finish.has_value();
    }
  }
  writer.join();
  EXPECT_EQ(tokens, 500u);
  EXPECT_EQ(ends, 2u);
}

TEST_F(AnswerTest, TakingAndCancellingRingTheScheduler) {
  answer.Put(Say(0, "a", 1));
  EXPECT_EQ(answer.WaitFor(0ms, pieces), Answer::Next::kPieces);
  doorbell->Wait(Doorbell::Clock::time_point::max());  // returns
  EXPECT_FALSE(answer.cancelled());
  answer.Cancel();
  EXPECT_TRUE(answer.cancelled());
  doorbell->Wait(Doorbell::Clock::time_point::max());
}

}  // namespace
}  // namespace tael::engine
