#include "tokenizer/nfc.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <chrono>
#include <cstdlib>
#include <random>

#include "base/utf8.h"

namespace tael::tokenizer {
namespace {

TEST(Nfc, ALetterAndItsAccentBecomeOneCharacter) {
  EXPECT_EQ(ToNfc("re\u0301sume\u0301"), "r\u00e9sum\u00e9");
  EXPECT_EQ(ToNfc("\u1112\u1161\u11ab"), "\ud55c");    // Hangul
  EXPECT_EQ(ToNfc("a\u0307\u0323"), "\u1ea1\u0307");   // sorted, then composed
  EXPECT_EQ(ToNfc("\u0344"), "\u0308\u0301");          // never composed again
  EXPECT_EQ(ToNfc("\u212a"), "K");                     // Kelvin is a K
  EXPECT_EQ(ToNfc("\ufb01 \u00b2"), "\ufb01 \u00b2");  // compatibility forms stay
}

TEST(Nfc, OnlyTextWithoutMarksIsTrivial) {
  EXPECT_TRUE(IsTriviallyNfc("plain caf\u00e9 \u02ff"));
  EXPECT_FALSE(IsTriviallyNfc("cafe\u0301"));
  EXPECT_FALSE(IsTriviallyNfc("\u212a"));
}

TEST(Nfc, RandomTextEqualsTheLibrarysOwnNormalisation) {
  std::mt19937 random(1);
  const uint32_t bases[] = {'a',    'e',    0x41,   0x1100, 0x1161, 0x11A8, 0x0300,
                            0x0316, 0x0323, 0x0345, 0x05B0, 0x093C, 0x0915, 0x3099,
                            0x304B, 0xAC00, 0x1EA1, 0x212B, 0xF900};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (auto i = random() % 12; i > 0; --i) {
      AppendUtf8(bases[random() % std::size(bases)] + static_cast<uint32_t>(random() % 4), text);
    }
    auto* expected = reinterpret_cast<char*>(
        utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str())));
    ASSERT_NE(expected, nullptr);
    EXPECT_EQ(ToNfc(text), expected) << text;
    std::free(expected);
  }
}

TEST(Nfc, MarksInTheWorstOrderTakeNoQuadraticTime) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) text += "\u0301\u0323";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(ToNfc(text).substr(0, 5),
            "\u1ea1\u0323");  // the dots below first, one of them composed
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

}  // namespace
}  // namespace tael::tokenizer
