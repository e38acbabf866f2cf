#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

namespace tael {
namespace {

Error Refusal() { return Error{ErrorCode::kOutOfBudget, "no room", "12 bytes"}; }

Result<std::unique_ptr<int>> Make(bool ok) {
  if (!ok) return Refusal();
  return std::make_unique<int>(7);
}

Result<int> Unwrap(bool ok) {
  TAEL_ASSIGN_OR_RETURN(const std::unique_ptr<int> first, Make(true));
  TAEL_ASSIGN_OR_RETURN(const std::unique_ptr<int> second, Make(ok));
  return *first + *second;
}

Status Check(bool ok, int& calls) {
  ++calls;
  if (!ok) return Refusal();
  return {};
}

Status CheckTwice(bool ok, int& calls) {
  TAEL_RETURN_IF_ERROR(Check(ok, calls));
  TAEL_RETURN_IF_ERROR(Check(true, calls));
  return {};
}

TEST(Result, HoldsAValueOrAnError) {
  Result<std::unique_ptr<int>> good = Make(true);
  ASSERT_TRUE(good);
  EXPECT_EQ(**good, 7);
  EXPECT_EQ(*std::move(good).value(), 7);
  const Result<std::unique_ptr<int>> bad = Make(false);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::kOutOfBudget);
}

TEST(Result, MacrosHandTheErrorUp) {
  EXPECT_EQ(*Unwrap(true), 14);
  EXPECT_EQ(Unwrap(false).error().Message(), "no room: 12 bytes");
  int calls = 0;
  EXPECT_TRUE(CheckTwice(true, calls));
  EXPECT_EQ(calls, 2);
  EXPECT_FALSE(CheckTwice(false, calls));
  EXPECT_EQ(calls, 3) << "the first error ends the function";
}

TEST(Status, IsGoodByDefault) {
  const Status good;
  EXPECT_TRUE(good);
  const Status bad = Refusal();
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().detail, "12 bytes");
}

TEST(Error, AMessageIsWhatAndDetail) {
  EXPECT_EQ((Error{ErrorCode::kIo, "what", "detail"}.Message()), "what: detail");
  EXPECT_EQ((Error{ErrorCode::kIo, "what", ""}.Message()), "what");
  EXPECT_EQ((Error{ErrorCode::kIo, "", "detail"}.Message()), "detail");
}

TEST(ErrorCode, EachHasItsOwnStableName) {
  std::set<std::string_view> names;
  for (uint8_t i = 0; i <= static_cast<uint8_t>(ErrorCode::kInternal); ++i) {
    names.insert(ToString(static_cast<ErrorCode>(i)));
  }
  EXPECT_EQ(names.size(), size_t{static_cast<uint8_t>(ErrorCode::kInternal)} + 1);
  EXPECT_EQ(ToString(ErrorCode::kContextExceeded), "context_length_exceeded");
  EXPECT_EQ(ToString(ErrorCode::kOutOfBudget), "out_of_budget");
}

TEST(ResultDeathTest, TakingTheWrongSideIsABug) {
  EXPECT_DEATH(static_cast<void>(Make(false).value()), "has_value");
  EXPECT_DEATH(static_cast<void>(Make(true).error()), "has_value");
  EXPECT_DEATH(static_cast<void>(Status().error()), "ok_");
}

}  // namespace
}  // namespace tael
