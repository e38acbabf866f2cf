#include "base/utf8.h"

#include <gtest/gtest.h>

namespace tael {
namespace {

TEST(Utf8, EveryScalarValueSurvivesARoundTrip) {
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(c, text);
    const Utf8Char decoded = DecodeUtf8(text);
    ASSERT_EQ(decoded.status, Utf8Status::kValid) << c;
    ASSERT_EQ(decoded.length, text.size()) << c;
    ASSERT_EQ(decoded.code_point, c);
  }
}

TEST(Utf8, OverlongFormsSurrogatesAndTooLargeValuesAreInvalid) {
  for (const char* bytes : {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80",
                            "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    const Utf8Char decoded = DecodeUtf8(bytes);
    EXPECT_EQ(decoded.status, Utf8Status::kInvalid) << bytes;
    EXPECT_EQ(decoded.length, 1) << bytes;
  }
}

TEST(Utf8, ABrokenCharacterIsOneErrorUpToTheByteThatBreaksIt) {
  const Utf8Char decoded = DecodeUtf8("\xF0\x9F\x98x");
  EXPECT_EQ(decoded.status, Utf8Status::kInvalid);
  EXPECT_EQ(decoded.length, 3);
}

TEST(Utf8, ACharacterCutByTheEndIsIncompleteNotInvalid) {
  const std::string_view emoji = "\xF0\x9F\x98\x80";
  for (size_t n = 1; n < emoji.size(); ++n) {
    const Utf8Char decoded = DecodeUtf8(emoji.substr(0, n));
    EXPECT_EQ(decoded.status, Utf8Status::kIncomplete);
    EXPECT_EQ(decoded.length, n);
  }
}

TEST(Utf8, TheValidPrefixEndsBeforeTheFirstError) {
  EXPECT_EQ(ValidUtf8Prefix(""), 0u);
  EXPECT_EQ(ValidUtf8Prefix("sixteen ascii by"), 16u);
  EXPECT_EQ(ValidUtf8Prefix("eight by\xFF"), 8u);
  EXPECT_EQ(ValidUtf8Prefix("nine byte\xFF"), 9u);
  EXPECT_EQ(ValidUtf8Prefix("\xC3\xA9\xC3"), 2u);
  EXPECT_EQ(ValidUtf8Prefix("0123456\xC3\xA9 tail of text"), 22u);
}

}  // namespace
}  // namespace tael
