#include "sample/repetition.h"

#include <gtest/gtest.h>

#include <vector>

namespace tael::sample {
namespace {

std::vector<TokenId> Ids(std::initializer_list<int> ids) {
  std::vector<TokenId> out;
  for (const int id : ids) out.push_back(TokenId{id});
  return out;
}

std::vector<TokenId> Counting(int count) {
  std::vector<TokenId> out;
  for (int i = 0; i < count; ++i) out.push_back(TokenId{i});
  return out;
}

TEST(Repetition, ATextThatNeverRepeatsHasNone) {
  EXPECT_EQ(Repetition(Counting(500)), 0);
  EXPECT_EQ(Repetition({}), 0);
  EXPECT_EQ(Repetition(Ids({1, 1, 1})), 0);
}

TEST(Repetition, CountsRunsOfFourThatStoodThereBefore) {
  // Of five runs the last: 1 2 3 4.
  EXPECT_DOUBLE_EQ(Repetition(Ids({1, 2, 3, 4, 1, 2, 3, 4})), 1.0 / 5);
  // A run may overlap the one that it repeats: 7 7 7 7 twice in five tokens.
  EXPECT_DOUBLE_EQ(Repetition(Ids({7, 7, 7, 7, 7})), 1.0 / 2);
  EXPECT_EQ(Repetition(Ids({1, 2, 3, 4, 1, 2, 3, 5})), 0);
}

TEST(Repetition, ForgetsWhatIsTooFarBack) {
  // The same four again, so that the run ends `distance` tokens after the first one began.
  const auto repeat_at = [](int distance) {
    std::vector<TokenId> ids = Counting(distance - 4);
    for (int i = 0; i < 4; ++i) ids.push_back(TokenId{i});
    return Repetition(ids);
  };
  EXPECT_GT(repeat_at(256), 0);
  EXPECT_EQ(repeat_at(257), 0);
}

}  // namespace
}  // namespace tael::sample
