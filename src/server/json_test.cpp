#include "server/json.h"

#include <gtest/gtest.h>

namespace tael::server {
namespace {

std::string Nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(ServerJson, DepthIsCountedOutsideOfStringsAlone) {
  EXPECT_EQ(JsonDepth("7"), 0u);
  EXPECT_EQ(JsonDepth(R"({"a": [1, {"b": []}], "c": {}})"), 4u);
  EXPECT_EQ(JsonDepth(R"(["[[[[", "\"[[", "\\", []])"), 2u);
  EXPECT_EQ(JsonDepth("]]]][["), 2u);
}

TEST(ServerJson, IsParsedUpToTheDepthLimit) {
  EXPECT_TRUE(ParseJson(Nested(kMaxJsonDepth)).has_value());
  const auto deeper = ParseJson(Nested(kMaxJsonDepth + 1));
  ASSERT_FALSE(deeper.has_value());
  EXPECT_EQ(deeper.error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(ParseJson(std::string(1'000'000, '[')).has_value());
}

TEST(ServerJson, WhatIsNoJsonIsRefusedAtItsPlace) {
  for (const char* text :
       {"", "{", "{\"a\": }", "nul", "[1, 2,]", "\"\xff\"", "\"\\ud800\"", "{} {}", "[1e999]"}) {
    const auto parsed = ParseJson(text);
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::kMalformed) << text;
  }
  EXPECT_NE(ParseJson("[1, x]").error().Message().find("byte 5"), std::string::npos);
}

TEST(ServerJson, WhatIsWrittenIsUtf8) {
  EXPECT_EQ(Dump(Json{{"b", "\xff"}, {"a", 1}}), "{\"b\":\"\xEF\xBF\xBD\",\"a\":1}");
}

}  // namespace
}  // namespace tael::server
