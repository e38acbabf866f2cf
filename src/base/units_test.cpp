#include "base/units.h"

#include <gtest/gtest.h>

#include <string>

namespace tael {
namespace {

uint64_t Parsed(std::string_view text) {
  const Result<uint64_t> size = ParseSize(text);
  EXPECT_TRUE(size) << text;
  return size ? *size : 0;
}

TEST(ParseSize, PlainNumbersAreBytes) {
  EXPECT_EQ(Parsed("0"), 0u);
  EXPECT_EQ(Parsed("1073741824"), 1073741824u);
  EXPECT_EQ(Parsed("17B"), 17u);
}

TEST(ParseSize, BareSuffixesArePowersOfAThousand) {
  EXPECT_EQ(Parsed("1K"), 1000u);
  EXPECT_EQ(Parsed("600M"), 600000000u);
  EXPECT_EQ(Parsed("2GB"), 2000000000u);
  EXPECT_EQ(Parsed("5m"), 5000000u);
}

TEST(ParseSize, SuffixesWithAnIArePowersOf1024) {
  EXPECT_EQ(Parsed("64Ki"), 65536u);
  EXPECT_EQ(Parsed("512MiB"), 512u << 20);
  EXPECT_EQ(Parsed("4Gi"), uint64_t{4} << 30);
}

TEST(ParseSize, FractionsAndASpaceAreAllowed) {
  EXPECT_EQ(Parsed("1.8G"), 1800000000u);
  EXPECT_EQ(Parsed("0.5Ki"), 512u);
  EXPECT_EQ(Parsed("1.5 GB"), 1500000000u);
}

TEST(ParseSize, WhatIsNoSizeIsRefusedByItsText) {
  for (const char* text : {"", "G", "-1", "-1G", "1X", "1Gi ", "1 G B", "nan", "inf", "1e30",
                           "1GiBs", "10000000000G", "0x10", " 1", "--"}) {
    const Result<uint64_t> size = ParseSize(text);
    ASSERT_FALSE(size) << "\"" << text << "\" gave " << *size;
    EXPECT_EQ(size.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(size.error().detail.find("\"" + std::string(text) + "\""), std::string::npos);
  }
}

TEST(FormatSize, ShowsThreeDigitsInPowersOfAThousand) {
  EXPECT_EQ(FormatSize(0), "0 B");
  EXPECT_EQ(FormatSize(512), "512 B");
  EXPECT_EQ(FormatSize(1000), "1.0 kB");
  EXPECT_EQ(FormatSize(64000000), "64.0 MB");
  EXPECT_EQ(FormatSize(600000000), "600 MB");
  EXPECT_EQ(FormatSize(1800000000), "1.8 GB");
}

TEST(FormatSize, TheLargestSizeHasAUnit) { EXPECT_EQ(FormatSize(UINT64_MAX), "18446744 TB"); }

}  // namespace
}  // namespace tael
