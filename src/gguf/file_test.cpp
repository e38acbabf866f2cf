#include "gguf/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "gguf/testing.h"

namespace tael::gguf {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RawFile;

// One key of every shape that a look-up has to tell apart.
class FileTest : public ::testing::Test {
 protected:
  FileTest() : raw_(RawFile::WithCounts(0, 18)) {
    raw_.Key("u8", ValueType::kUint8).Put<uint8_t>(200);
    raw_.Key("i8", ValueType::kInt8).Put<int8_t>(-5);
    raw_.Key("u16", ValueType::kUint16).Put<uint16_t>(60000);
    raw_.Key("i16", ValueType::kInt16).Put<int16_t>(300);
    raw_.Key("u32", ValueType::kUint32).Put<uint32_t>(4000000000);
    raw_.Key("i32", ValueType::kInt32).Put<int32_t>(70000);
    raw_.Key("u64", ValueType::kUint64).Put<uint64_t>(UINT64_MAX);
    raw_.Key("i64", ValueType::kInt64).Put<int64_t>(INT64_MIN);
    raw_.Key("f32", ValueType::kFloat32).Put<float>(1.25f);
    raw_.Key("f64", ValueType::kFloat64).Put<double>(1e300);
    raw_.Key("bool", ValueType::kBool).Put<uint8_t>(0);
    raw_.Key("text", ValueType::kString).String("hello");
    raw_.Array("i32s", ValueType::kInt32, 2).Put<int32_t>(1).Put<int32_t>(2);
    raw_.Array("negative", ValueType::kInt32, 2).Put<int32_t>(1).Put<int32_t>(-1);
    raw_.Array("u64s", ValueType::kUint64, 1).Put<uint64_t>(uint64_t{1} << 32);
    raw_.Array("bools", ValueType::kBool, 3).Put<uint8_t>(1).Put<uint8_t>(0).Put<uint8_t>(1);
    raw_.Array("f64s", ValueType::kFloat64, 2).Put<double>(0.5).Put<double>(HUGE_VAL);
    raw_.Array("texts", ValueType::kString, 1).String("x");
    Result<File> file = File::Parse(raw_.bytes());
    if (file) file_ = *std::move(file);
  }

  void SetUp() override { ASSERT_EQ(file_.metadata().size(), 18u); }

  RawFile raw_;
  File file_;
};

TEST_F(FileTest, AnAbsentKeyIsNothingAndNoError) {
  EXPECT_FALSE(file_.GetUint("no")->has_value());
  EXPECT_FALSE(file_.GetFloat("no")->has_value());
  EXPECT_FALSE(file_.GetBool("no")->has_value());
  EXPECT_FALSE(file_.GetString("no")->has_value());
  EXPECT_FALSE(file_.GetUintArray("no")->has_value());
  EXPECT_FALSE(file_.GetFloatArray("no")->has_value());
  EXPECT_EQ(file_.Find(""), nullptr);
}

TEST_F(FileTest, KeysKeepTheOrderOfTheFile) {
  EXPECT_EQ(file_.metadata().front().first, "u8");
  EXPECT_EQ(file_.metadata().back().first, "texts");
}

TEST_F(FileTest, IntegersOfAnyWidthConvertWhenTheValueFits) {
  EXPECT_EQ(**file_.GetUint("u8"), 200u);
  EXPECT_EQ(**file_.GetUint("u16"), 60000u);
  EXPECT_EQ(**file_.GetUint("i16"), 300u);
  EXPECT_EQ(**file_.GetUint("u32"), 4000000000u);
  EXPECT_EQ(**file_.GetUint("i32"), 70000u);
  EXPECT_EQ(**file_.GetUint("u64"), UINT64_MAX);
  for (const char* key : {"i8", "i64"}) {
    const auto number = file_.GetUint(key);
    ASSERT_FALSE(number) << key;
    EXPECT_EQ(number.error().code, ErrorCode::kMalformed);
    EXPECT_THAT(number.error().Message(), HasSubstr("out of range"));
  }
}

TEST_F(FileTest, AFloatMayBeWrittenAsAnyNumber) {
  EXPECT_EQ(**file_.GetFloat("f32"), 1.25);
  EXPECT_EQ(**file_.GetFloat("f64"), 1e300);
  EXPECT_EQ(**file_.GetFloat("i8"), -5);
  EXPECT_EQ(**file_.GetFloat("i16"), 300);
  EXPECT_EQ(**file_.GetFloat("i32"), 70000);
  EXPECT_EQ(**file_.GetFloat("i64"), -std::ldexp(1.0, 63));
  EXPECT_EQ(**file_.GetFloat("u64"), std::ldexp(1.0, 64));
}

TEST_F(FileTest, AWrongTypeNamesTheKeyAndBothTypes) {
  const auto text = file_.GetString("i32s");
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, ErrorCode::kMalformed);
  EXPECT_THAT(text.error().Message(), HasSubstr("\"i32s\" should be string but is array of int32"));
  EXPECT_THAT(file_.GetUint("f32").error().Message(), HasSubstr("an integer but is float32"));
  EXPECT_FALSE(file_.GetUint("bool"));
  EXPECT_FALSE(file_.GetUint("i32s"));
  EXPECT_FALSE(file_.GetFloat("text"));
  EXPECT_FALSE(file_.GetFloat("bool"));
  EXPECT_FALSE(file_.GetBool("u8"));
  EXPECT_FALSE(file_.GetBool("bools"));
  EXPECT_FALSE(file_.GetString("texts"));
  EXPECT_FALSE(file_.GetUintArray("texts"));
  EXPECT_FALSE(file_.GetUintArray("text"));
  EXPECT_FALSE(file_.GetUintArray("f32"));
  EXPECT_FALSE(file_.GetUintArray("bool"));
  EXPECT_FALSE(file_.GetFloatArray("texts"));
  EXPECT_FALSE(file_.GetFloatArray("bools"));
}

TEST_F(FileTest, ArraysConvertElementByElement) {
  EXPECT_THAT(**file_.GetUintArray("i32s"), ElementsAre(1, 2));
  EXPECT_THAT(**file_.GetUintArray("u8"), ElementsAre(200));
  EXPECT_THAT(**file_.GetUintArray("bools"), ElementsAre(1, 0, 1));
  EXPECT_FALSE(file_.GetUintArray("negative"));
  EXPECT_FALSE(file_.GetUintArray("u64s"));
  EXPECT_THAT(**file_.GetFloatArray("negative"), ElementsAre(1, -1));
  EXPECT_THAT(**file_.GetFloatArray("f64s"),
              ElementsAre(0.5f, std::numeric_limits<float>::infinity()));
  EXPECT_THAT(file_.GetFloatArray("f64").error().Message(), HasSubstr("out of range"));
}

TEST_F(FileTest, BoolsAndStringsComeBack) {
  EXPECT_FALSE(**file_.GetBool("bool"));
  EXPECT_EQ(**file_.GetString("text"), "hello");
}

TEST(Quote, ShortensAndEscapes) {
  EXPECT_EQ(Quote("blk.0.attn_q.weight"), "\"blk.0.attn_q.weight\"");
  EXPECT_EQ(Quote(std::string("\0\n\\", 3)), R"("\x00\x0a\x5c")");
  EXPECT_EQ(Quote(std::string(200, 'a')), "\"" + std::string(96, 'a') + "...\"");
}

}  // namespace
}  // namespace tael::gguf
