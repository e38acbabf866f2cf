#include "server/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tael::server {
namespace {

using testing::HasSubstr;

ApiKeys Parsed(std::string_view text) {
  auto keys = ApiKeys::Parse(text, "keys.txt");
  EXPECT_TRUE(keys.has_value());
  return keys ? *std::move(keys) : ApiKeys();
}

TEST(ApiKeys, WithoutAFileEverybodyIsOneTenant) {
  const ApiKeys keys;
  EXPECT_FALSE(keys.are_required());
  EXPECT_EQ(keys.Check(""), 0u);
  EXPECT_EQ(keys.Check("Bearer whatever"), 0u);
}

TEST(ApiKeys, OneALineWithCommentsAndSpaces) {
  const ApiKeys keys = Parsed("# people\nabc\r\n\n  def  \n#ghi\nlast");
  EXPECT_EQ(keys.Salts().size(), 3u);
  for (const char* key : {"abc", "def", "last"}) {
    EXPECT_EQ(keys.Check("Bearer " + std::string(key)), SaltOf(key)) << key;
  }
  EXPECT_TRUE(keys.Check("bearer abc").has_value());
  EXPECT_TRUE(keys.Check("Bearer  abc ").has_value());
}

TEST(ApiKeys, WhatIsNotExactlyAKeyIsRefused) {
  const ApiKeys keys = Parsed("abcabc\nx");
  for (const char* shown :
       {"", "Bearer", "Bearer ", "abcabc", "Basic abcabc", "Bearer abc", "Bearer abcabcabc",
        "Bearer ABCABC", "Bearer #", "Bearer xx", "Bearerx abcabc", "Bearer abcabc x"}) {
    EXPECT_FALSE(keys.Check(shown).has_value()) << shown;
  }
}

TEST(ApiKeys, TenantsHaveSaltsOfTheirOwn) {
  EXPECT_NE(SaltOf("a"), SaltOf("b"));
  EXPECT_NE(SaltOf("ab"), SaltOf("ba"));
  EXPECT_NE(SaltOf("a"), 0u);
}

TEST(ApiKeys, BadFilesAreRefusedAtTheirPlace) {
  const auto message = [](std::string_view text) {
    const auto keys = ApiKeys::Parse(text, "keys.txt");
    EXPECT_FALSE(keys.has_value());
    return keys ? std::string() : keys.error().Message();
  };
  EXPECT_THAT(message(""), HasSubstr("no key"));
  EXPECT_THAT(message("# only this\n"), HasSubstr("no key"));
  EXPECT_THAT(message("good\ntwo words\n"), HasSubstr("keys.txt: line 2"));
  EXPECT_THAT(message("k\xC3\xA9y"), HasSubstr("line 1"));
  EXPECT_THAT(message(std::string(1025, 'k')), HasSubstr("line 1"));
}

}  // namespace
}  // namespace tael::server
