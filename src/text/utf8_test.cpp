#include "text/utf8.h"

#include <gtest/gtest.h>

namespace tael::text {
namespace {

TEST(Utf8, ValidTextIsKept) {
  const std::string text = "a\u00e9\u4e24\U0001F600\U0010FFFF";
  EXPECT_TRUE(IsValidUtf8(text));
  EXPECT_EQ(ReplaceInvalidUtf8(text), text);
}

TEST(Utf8, EachByteThatBeginsNothingIsReplaced) {
  EXPECT_EQ(ReplaceInvalidUtf8("a\xFFz"), "a\uFFFDz");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE4\xB8"), "\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE4"
                               "A"),
            "\uFFFDA");
}

TEST(Utf8, OverlongFormsSurrogatesAndLargeValuesAreInvalid) {
  for (const char* text :
       {"\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\x80"}) {
    EXPECT_FALSE(IsValidUtf8(text));
  }
}

}  // namespace
}  // namespace tael::text
