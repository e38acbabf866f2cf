#include "gguf/reader.h"

#include <gtest/gtest.h>

#include <array>

namespace tael::gguf {
namespace {

constexpr std::array<std::byte, 6> kBytes = {std::byte{1}, std::byte{2}, std::byte{3},
                                             std::byte{4}, std::byte{5}, std::byte{6}};

TEST(ByteReader, ReadsLittleEndianNumbersInOrder) {
  ByteReader reader(kBytes);
  EXPECT_EQ(reader.Read<uint8_t>(), 1);
  EXPECT_EQ(reader.Read<uint32_t>(), 0x05040302u);  // at an odd address
  EXPECT_EQ(reader.position(), 5u);
  EXPECT_EQ(reader.remaining(), 1u);
}

TEST(ByteReader, AReadThatDoesNotFitChangesNothing) {
  ByteReader reader(kBytes);
  ASSERT_TRUE(reader.ReadBytes(3));
  EXPECT_FALSE(reader.Read<uint32_t>());
  // The last ones would wrap around to a position inside the bytes.
  for (const uint64_t count : {uint64_t{4}, uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 2}) {
    EXPECT_FALSE(reader.ReadBytes(count)) << count;
  }
  EXPECT_EQ(reader.position(), 3u);
  EXPECT_TRUE(reader.ReadBytes(3));
  EXPECT_TRUE(reader.ReadBytes(0));
  EXPECT_FALSE(reader.Read<uint8_t>());
}

}  // namespace
}  // namespace tael::gguf
