// Files made to break a parser: each is refused, quickly, with a message that names the culprit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <string>

#include "gguf/file.h"
#include "gguf/testing.h"
#include "gguf/writer.h"

namespace tael::gguf {
namespace {

using ::testing::HasSubstr;
using testing::RawFile;

constexpr uint32_t kTypeF32 = 0;
constexpr uint32_t kTypeQ4K = 12;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kMaxParseMs = 1000;
#else
constexpr double kMaxParseMs = 100;
#endif

// Milliseconds of this thread's CPU time: a busy machine must not fail a test.
double CpuMs() {
  timespec now = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

void ExpectRefused(std::span<const std::byte> bytes, ErrorCode code, std::string_view message) {
  const double start = CpuMs();
  const Result<File> file = File::Parse(bytes);
  const double ms = CpuMs() - start;
  ASSERT_FALSE(file) << "expected: " << message;
  EXPECT_EQ(ToString(file.error().code), ToString(code)) << file.error().Message();
  EXPECT_THAT(file.error().Message(), HasSubstr(std::string(message)));
  EXPECT_LT(ms, kMaxParseMs);
  ::testing::Test::RecordProperty("parse_ms", std::to_string(ms));
}

void ExpectMalformed(const RawFile& file, std::string_view message) {
  ExpectRefused(file.bytes(), ErrorCode::kMalformed, message);
}

// A file whose only tensor is "t", with 4 KiB of data.
RawFile OneTensor(std::span<const uint64_t> shape, uint32_t type = kTypeF32, uint64_t offset = 0) {
  RawFile file = RawFile::WithCounts(1, 0);
  file.Tensor("t", shape, type, offset).PadTo(32).Zeros(4096);
  return file;
}

RawFile OneTensor(std::initializer_list<uint64_t> shape, uint32_t type = kTypeF32,
                  uint64_t offset = 0) {
  return OneTensor(std::span(shape.begin(), shape.size()), type, offset);
}

TEST(Parser, RefusesWhatIsNotGguf) {
  ExpectRefused({}, ErrorCode::kMalformed, "not a GGUF file");
  ExpectMalformed(RawFile().Text("ggjt").Zeros(64), "not a GGUF file");
  ExpectMalformed(RawFile().Text("GGU"), "not a GGUF file");
}

TEST(Parser, RefusesOtherVersionsByNumber) {
  for (const uint32_t version : {0u, 1u, 4u, 77u}) {
    ExpectRefused(RawFile().Text("GGUF").Put(version).Zeros(64).bytes(), ErrorCode::kUnsupported,
                  "version: " + std::to_string(version));
  }
}

TEST(Parser, RefusesBigEndian) {
  ExpectRefused(RawFile().Text("GGUF").Put(0x03000000u).Zeros(64).bytes(), ErrorCode::kUnsupported,
                "big-endian");
}

TEST(Parser, RefusesCountsThatTheFileCannotHold) {
  ExpectMalformed(RawFile::WithCounts(0, uint64_t{1} << 60).Zeros(64), "1152921504606846976");
  ExpectMalformed(RawFile::WithCounts(uint64_t{1} << 60, 0).Zeros(64), "more tensors");
  ExpectMalformed(RawFile::WithCounts(UINT64_MAX, UINT64_MAX).Zeros(64), "more metadata keys");
  ExpectMalformed(RawFile::WithCounts(0, 3).Zeros(2 * 13), "3 of at most 2");
  ExpectMalformed(RawFile::WithCounts(0, kMaxMetadataKeys + 1).Zeros(1 << 20), "of at most 4096");
  ExpectMalformed(RawFile::WithCounts(kMaxTensors + 1, 0).Zeros(4 << 20), "of at most 32768");
}

TEST(Parser, RefusesATensorListThatMetadataLeavesNoRoomFor) {
  RawFile file = RawFile::WithCounts(4, 1);
  file.Key("text", ValueType::kString).String(std::string(200, 'x')).Zeros(64);
  ExpectMalformed(file, "the list of 4 tensors");
}

TEST(Parser, RefusesStringsLongerThanTheFile) {
  for (const uint64_t length : {uint64_t{65}, uint64_t{1} << 30, uint64_t{1} << 63, UINT64_MAX}) {
    RawFile value = RawFile::WithCounts(0, 1);
    value.Key("general.name", ValueType::kString).Put(length).Zeros(64);
    ExpectMalformed(value, "\"general.name\"");
    ExpectMalformed(RawFile::WithCounts(0, 1).Put(length).Zeros(64), "name of metadata key 0");
    ExpectMalformed(RawFile::WithCounts(1, 0).Put(length).Zeros(64), "name of tensor 0");
    RawFile array = RawFile::WithCounts(0, 1);
    array.Array("tokens", ValueType::kString, 2).String("a").Put(length).Zeros(64);
    ExpectMalformed(array, "\"tokens\", string 1");
  }
}

TEST(Parser, RefusesArraysLongerThanTheFile) {
  for (const auto type : {ValueType::kUint8, ValueType::kFloat64, ValueType::kString}) {
    for (const uint64_t count : {uint64_t{65}, uint64_t{1} << 60, UINT64_MAX}) {
      RawFile file = RawFile::WithCounts(0, 1);
      file.Array("scores", type, count).Zeros(64);
      ExpectMalformed(file, "\"scores\"");
    }
  }
}

TEST(Parser, RefusesMoreStringsThanItIsWillingToVisit) {
  RawFile file = RawFile::WithCounts(0, 2);
  file.Array("a", ValueType::kString, kMaxArrayStrings).Zeros(8 * kMaxArrayStrings);
  file.Array("b", ValueType::kString, 1).Zeros(8);
  ExpectMalformed(file, "\"b\", 4194305 of at most 4194304");
}

TEST(Parser, RefusesNestedArraysAndUnknownValueTypes) {
  RawFile nested = RawFile::WithCounts(0, 1);
  nested.Array("deep", ValueType::kArray, 1).Zeros(64);
  ExpectMalformed(nested, "an array of arrays: key \"deep\"");
  RawFile scalar = RawFile::WithCounts(0, 1);
  scalar.Key("odd", ValueType{13}).Zeros(64);
  ExpectMalformed(scalar, "key \"odd\", type 13");
  RawFile element = RawFile::WithCounts(0, 1);
  element.Array("odd", ValueType{0xffffffff}, 1).Zeros(64);
  ExpectMalformed(element, "key \"odd\", type 4294967295");
}

TEST(Parser, RefusesDuplicateKeys) {
  RawFile file = RawFile::WithCounts(0, 3);
  file.Key("a", ValueType::kUint8).Put<uint8_t>(1);
  file.Key("b", ValueType::kUint8).Put<uint8_t>(1);
  file.Key("a", ValueType::kUint8).Put<uint8_t>(2);
  ExpectMalformed(file, "a metadata key appears twice: \"a\"");
}

TEST(Parser, RefusesDuplicateTensorNames) {
  RawFile file = RawFile::WithCounts(2, 0);
  const uint64_t shape[] = {8};
  file.Tensor("w", shape, kTypeF32, 0).Tensor("w", shape, kTypeF32, 32).PadTo(32).Zeros(64);
  ExpectMalformed(file, "a tensor name appears twice: \"w\"");
}

TEST(Parser, RefusesNamelessThings) {
  RawFile key = RawFile::WithCounts(0, 1);
  key.Key("", ValueType::kUint8).Zeros(64);
  ExpectMalformed(key, "key 0");
  RawFile tensor = RawFile::WithCounts(1, 0);
  const uint64_t shape[] = {8};
  tensor.Tensor("", shape, kTypeF32, 0).PadTo(32).Zeros(64);
  ExpectMalformed(tensor, "tensor 0");
}

TEST(Parser, RefusesAlignmentsThatAreNoPowerOfTwoInRange) {
  for (const uint32_t alignment : {0u, 1u, 3u, 4u, 48u, 1u << 17, 1u << 30, UINT32_MAX}) {
    RawFile file = RawFile::WithCounts(0, 1);
    file.Key("general.alignment", ValueType::kUint32).Put(alignment).Zeros(64);
    ExpectMalformed(file, "\"general.alignment\" is " + std::to_string(alignment) + ",");
  }
  RawFile negative = RawFile::WithCounts(0, 1);
  negative.Key("general.alignment", ValueType::kInt32).Put<int32_t>(-32).Zeros(64);
  ExpectMalformed(negative, "general.alignment");
  RawFile text = RawFile::WithCounts(0, 1);
  text.Key("general.alignment", ValueType::kString).String("32");
  ExpectMalformed(text, "should be an integer but is string");
}

TEST(Parser, RefusesImpossibleDimensions) {
  ExpectMalformed(OneTensor({}), "\"t\" has 0");
  ExpectMalformed(OneTensor({1, 1, 1, 1, 1}), "\"t\" has 5");
  ExpectMalformed(OneTensor({0}), "tensor \"t\", dimension 0");
  ExpectMalformed(OneTensor({8, 4, 0}), "tensor \"t\", dimension 2");
  ExpectMalformed(OneTensor({(uint64_t{1} << 42) + 1}), "\"t\" ends at byte 17592186044484");
  ExpectMalformed(OneTensor({uint64_t{1} << 63}), "a tensor's size overflows: \"t\"");
  ExpectMalformed(OneTensor({UINT64_MAX}), "a tensor's size overflows: \"t\"");
  const uint64_t big = uint64_t{1} << 32;
  ExpectMalformed(OneTensor({big, big}), "a tensor's size overflows: \"t\"");
  // Wraps to a small product without a check.
  ExpectMalformed(OneTensor({8, big, big}), "a tensor's size overflows: \"t\"");
  ExpectMalformed(OneTensor({1, big + 1, big - 1, 2}), "a tensor's size overflows: \"t\"");
}

TEST(Parser, RefusesRowsThatAreNoWholeNumberOfBlocks) {
  ExpectMalformed(OneTensor({255}, kTypeQ4K), "rows of 255 values, Q4_K has blocks of 256");
}

TEST(Parser, RefusesTensorTypesItCannotSize) {
  for (const uint32_t type : {4u, 5u, 31u, 43u, 99u, UINT32_MAX}) {
    ExpectRefused(OneTensor({256}, type).bytes(), ErrorCode::kUnsupported,
                  "\"t\" has type " + std::to_string(type));
  }
}

TEST(Parser, RefusesMisplacedData) {
  ExpectMalformed(OneTensor({8}, kTypeF32, 4), "\"t\" at offset 4, alignment 32");
  ExpectMalformed(OneTensor({8}, kTypeF32, 4096), "\"t\" ends at byte");
  ExpectMalformed(OneTensor({8}, kTypeF32, UINT64_MAX - 31), "offset overflows");
  // The start still fits 64 bits, the end does not.
  ExpectMalformed(OneTensor({uint64_t{1} << 20}, kTypeF32, UINT64_MAX - 4095), "offset overflows");
}

TEST(Parser, RefusesOverlappingData) {
  const uint64_t shape[] = {16};
  for (const uint64_t other : {0, 32}) {
    RawFile file = RawFile::WithCounts(3, 0);
    file.Tensor("far", shape, kTypeF32, 128);
    file.Tensor("b", shape, kTypeF32, other);
    file.Tensor("a", shape, kTypeF32, 0);
    file.PadTo(32).Zeros(256);
    ExpectMalformed(file, "two tensors overlap");
  }
}

TEST(Parser, AcceptsTouchingTensorsInAnyOrder) {
  const uint64_t shape[] = {16};
  RawFile file = RawFile::WithCounts(2, 0);
  file.Tensor("b", shape, kTypeF32, 64).Tensor("a", shape, kTypeF32, 0).PadTo(32).Zeros(128);
  const Result<File> parsed = File::Parse(file.bytes());
  ASSERT_TRUE(parsed) << parsed.error().Message();
  EXPECT_EQ(parsed->FindTensor("b")->offset, parsed->data_offset() + 64);
}

TEST(Parser, NamesTheTensorTheNeededEndAndTheFileSizeOfAShortFile) {
  const std::vector<std::byte> data(64);
  const uint64_t shape[] = {16};
  Writer writer;
  for (const char* name : {"first", "second", "third"}) {
    writer.AddTensor(name, TensorType::kF32, shape, data);
  }
  const auto bytes = writer.Serialize();
  ASSERT_TRUE(bytes);
  const uint64_t data_offset = bytes->size() - 3 * 64;
  const char* const names[] = {"first", "second", "third"};
  for (size_t i = 0; i < 3; ++i) {
    const uint64_t end = data_offset + 64 * (i + 1);
    for (const uint64_t size : {end - 64, end - 1}) {
      ExpectRefused(std::span(*bytes).first(size), ErrorCode::kMalformed,
                    "\"" + std::string(names[i]) + "\" ends at byte " + std::to_string(end) +
                        ", the file has " + std::to_string(size));
    }
  }
}

TEST(Parser, ShowsControlCharactersOfANameEscaped) {
  RawFile file = RawFile::WithCounts(1, 0);
  const uint64_t shape[] = {0};
  file.Tensor("a\x1b[31m\"\xff", shape, kTypeF32, 0).Zeros(64);
  ExpectMalformed(file, R"("a\x1b[31m\x22\xff")");
}

// Nothing may grow faster than the file, also where every limit is exhausted at once: all names
// equal but for their ends is the worst case for sorting.
TEST(Parser, TheLargestListsAreReadInTime) {
  RawFile file = RawFile::WithCounts(kMaxTensors, kMaxMetadataKeys);
  const std::string key_stem(kMaxKeyBytes - 8, 'k');
  for (uint32_t i = 0; i < kMaxMetadataKeys; ++i) {
    file.Key(key_stem + std::to_string(10000000 + i), ValueType::kUint8).Put<uint8_t>(0);
  }
  const std::string stem(kMaxTensorNameBytes - 8, 't');
  const uint64_t shape[] = {8};
  for (uint32_t i = 0; i < kMaxTensors; ++i) {
    // A permutation, so that sorting has work to do; the last name appears twice.
    const uint32_t id = std::min<uint32_t>(i * 40503u % kMaxTensors, kMaxTensors - 2);
    file.Tensor(stem + std::to_string(10000000 + id), shape, kTypeF32, uint64_t{32} * i);
  }
  file.PadTo(32).Zeros(size_t{32} * kMaxTensors);
  ExpectMalformed(file, "a tensor name appears twice");
}

}  // namespace
}  // namespace tael::gguf
