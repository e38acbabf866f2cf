#include "server/fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tael::server {
namespace {

using testing::HasSubstr;

TEST(Fields, AbsentAndNullAreTheSame) {
  const ClientJson object = ClientJson::parse(R"({"a": null})");
  std::optional<ApiError> error;
  Fields fields(object, "", error);
  EXPECT_FALSE(fields.Bool("a").has_value());
  EXPECT_FALSE(fields.Number("b", 0, 1).has_value());
  EXPECT_EQ(fields.String("a"), nullptr);
  EXPECT_FALSE(error.has_value());
}

TEST(Fields, TheFirstErrorStays) {
  const ClientJson object = ClientJson::parse(R"({"a": 5, "b": "x"})");
  std::optional<ApiError> error;
  Fields fields(object, "outer.", error);
  EXPECT_FALSE(fields.Number("a", 0, 1).has_value());
  EXPECT_FALSE(fields.Bool("b").has_value());
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->param, "outer.a");
  EXPECT_THAT(error->message, HasSubstr("from 0 to 1, not 5"));
}

TEST(Fields, BoundsAreInclusive) {
  const ClientJson object = ClientJson::parse(R"({"a": 3, "b": -2, "c": 4.0})");
  std::optional<ApiError> error;
  Fields fields(object, "", error);
  EXPECT_EQ(fields.Integer("a", 3, 3), 3);
  EXPECT_EQ(fields.Integer("b", -2, 0), -2);
  EXPECT_EQ(fields.Integer("c", 0, 4), 4);
  EXPECT_EQ(fields.Number("a", 0, 3), 3.0);
  EXPECT_FALSE(error.has_value());
  EXPECT_FALSE(fields.Integer("a", 4, 9).has_value());
  EXPECT_TRUE(error.has_value());
}

TEST(Fields, OnlyWhatAsksForNothingPassesWhereNothingIsBuilt) {
  for (const char* nothing : {"null", "false", "0", "0.0", "\"\"", "[]", "{}"}) {
    const ClientJson object = ClientJson::parse("{\"x\": " + std::string(nothing) + "}");
    std::optional<ApiError> error;
    Fields(object, "", error).RefuseUnlessEmpty({"x"}, "is not built");
    EXPECT_FALSE(error.has_value()) << nothing;
  }
  for (const char* something : {"true", "1", "\"a\"", "[0]", "{\"a\": null}", "-0.5"}) {
    const ClientJson object = ClientJson::parse("{\"x\": " + std::string(something) + "}");
    std::optional<ApiError> error;
    Fields(object, "", error).RefuseUnlessEmpty({"x"}, "is not built");
    EXPECT_TRUE(error.has_value()) << something;
  }
}

TEST(Fields, WhatNobodyAskedForIsRefused) {
  const ClientJson object = ClientJson::parse(R"({"a": 1, "b": 2, "c": 3})");
  std::optional<ApiError> error;
  Fields fields(object, "", error);
  fields.Integer("a", 0, 9);
  fields.Ignore({"c"});
  fields.RefuseOthers();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->param, "b");
}

TEST(Fields, ALongOrOddValueIsCutInTheMessage) {
  const ClientJson object = {{"a", std::string(10'000, 'x')}};
  std::optional<ApiError> error;
  Fields(object, "", error).Bool("a");
  ASSERT_TRUE(error.has_value());
  EXPECT_LT(error->message.size(), 120u);
}

}  // namespace
}  // namespace tael::server
