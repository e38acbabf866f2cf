// The parser against bytes it was not told about: every cut and many random changes of real files.
// A file that is accepted must keep every promise of file.h, so each is walked from end to end.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "gguf/file.h"
#include "gguf/writer.h"
#include "mem/mapping.h"

namespace tael::gguf {
namespace {

// Touches the first and last byte of everything that a File hands out. Sanitizers do the judging.
uint64_t Walk(const File& file) {
  uint64_t sum = 0;
  const auto touch = [&](std::span<const std::byte> bytes) {
    if (!bytes.empty()) sum += static_cast<uint64_t>(bytes.front() ^ bytes.back());
  };
  for (const auto& [key, value] : file.metadata()) {
    EXPECT_EQ(file.Find(key), &value);
    touch(value.data);
    sum += file.GetUint(key).has_value() + file.GetFloat(key).has_value() +
           file.GetBool(key).has_value() + file.GetString(key).has_value() +
           file.GetUintArray(key).has_value() + file.GetFloatArray(key).has_value();
    if (value.element_type != ValueType::kString) continue;
    StringCursor cursor(value.data);
    for (uint64_t i = 0; i < value.count; ++i) sum += cursor.Next().size();
  }
  for (const TensorInfo& tensor : file.tensors()) {
    EXPECT_EQ(file.FindTensor(tensor.name), &tensor);
    EXPECT_EQ(tensor.num_rows() * tensor.row_bytes, tensor.bytes);
    EXPECT_EQ(tensor.offset % file.alignment(), 0u);
    touch(file.TensorData(tensor));
  }
  return sum;
}

// A heap copy of exactly these bytes, so that reading past the end is seen.
std::vector<std::byte> Copy(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> SmallFile(uint32_t version) {
  static const std::vector<std::byte> data(96, std::byte{7});
  Writer writer(kDefaultAlignment, version);
  writer.AddString("general.architecture", "tiny");
  writer.AddUint32("tiny.block_count", 2);
  writer.AddStringArray("tokenizer.ggml.tokens", std::vector<std::string>{"a", "bc", ""});
  writer.AddFloatArray("tokenizer.ggml.scores", std::vector<float>{0, -1, -2});
  const uint64_t row[] = {32};
  const uint64_t matrix[] = {4, 6};
  writer.AddTensor("one", TensorType::kQ4_0, row, std::span(data).first(18));
  writer.AddTensor("two", TensorType::kF32, matrix, data);
  auto bytes = writer.Serialize();
  return bytes ? *std::move(bytes) : std::vector<std::byte>();
}

TEST(Robustness, AFileCutAnywhereIsRefused) {
  for (const uint32_t version : {2u, 3u}) {
    const std::vector<std::byte> whole = SmallFile(version);
    ASSERT_FALSE(whole.empty());
    for (size_t size = 0; size < whole.size(); ++size) {
      const std::vector<std::byte> cut = Copy(std::span(whole).first(size));
      const Result<File> file = File::Parse(cut);
      ASSERT_FALSE(file) << "accepted the first " << size << " of " << whole.size() << " bytes";
      ASSERT_EQ(file.error().code, ErrorCode::kMalformed) << file.error().Message();
      ASSERT_FALSE(file.error().detail.empty());
    }
    const Result<File> file = File::Parse(whole);
    ASSERT_TRUE(file) << file.error().Message();
    Walk(*file);
  }
}

// Changes a few bytes of the header, some of them to values that hurt.
void Mutate(std::span<std::byte> header, std::mt19937_64& random) {
  constexpr uint8_t kNasty[] = {0x00, 0x01, 0x7f, 0x80, 0xff, 0x09, 0x08, 0x20};
  const size_t changes = 1 + random() % 4;
  for (size_t i = 0; i < changes; ++i) {
    const size_t at = random() % header.size();
    const size_t run = std::min<size_t>(random() % 2 == 0 ? 1 : 8, header.size() - at);
    const auto value = static_cast<std::byte>(
        random() % 2 == 0 ? kNasty[random() % std::size(kNasty)] : random() & 0xff);
    std::fill_n(header.begin() + static_cast<std::ptrdiff_t>(at), run, value);
  }
}

// Returns how many mutants were accepted.
size_t MutateMany(std::span<const std::byte> original, size_t header_bytes, size_t rounds) {
  std::mt19937_64 random(20251);
  std::vector<std::byte> bytes = Copy(original);
  size_t accepted = 0;
  for (size_t i = 0; i < rounds; ++i) {
    std::copy_n(original.begin(), header_bytes, bytes.begin());
    Mutate(std::span(bytes).first(header_bytes), random);
    const Result<File> file = File::Parse(bytes);
    if (!file) {
      EXPECT_NE(file.error().Message(), "");
      continue;
    }
    Walk(*file);
    ++accepted;
  }
  return accepted;
}

TEST(Robustness, RandomChangesOfASmallFileNeverBreakAPromise) {
  const std::vector<std::byte> whole = SmallFile(3);
  const Result<File> file = File::Parse(whole);
  ASSERT_TRUE(file);
  const size_t accepted = MutateMany(whole, file->data_offset(), 20000);
  // Both kinds must occur, or the test proves nothing.
  EXPECT_GT(accepted, 100u);
  EXPECT_LT(accepted, 19000u);
}

TEST(Robustness, RandomChangesOfARealModelNeverBreakAPromise) {
  const auto mapping =
      mem::FileMapping::Open(std::string(TAEL_TEST_DATA) + "/tiny/qwen2_q256.Q4_0.gguf");
  ASSERT_TRUE(mapping) << mapping.error().Message();
  const Result<File> file = File::Parse(mapping->bytes());
  ASSERT_TRUE(file) << file.error().Message();
  EXPECT_EQ(**file->GetString("general.architecture"), "qwen2");
  EXPECT_EQ(file->tensors().size(), 15u);
  const size_t accepted = MutateMany(mapping->bytes(), file->data_offset(), 3000);
  EXPECT_GT(accepted, 10u);
}

TEST(Robustness, ARealModelCutAtATensorsEdgeNamesThatTensor) {
  const auto mapping =
      mem::FileMapping::Open(std::string(TAEL_TEST_DATA) + "/tiny/qwen2_q256.Q4_0.gguf");
  ASSERT_TRUE(mapping);
  const Result<File> whole = File::Parse(mapping->bytes());
  ASSERT_TRUE(whole);
  for (const TensorInfo& tensor : whole->tensors()) {
    const uint64_t end = tensor.offset + tensor.bytes;
    for (const uint64_t size : {tensor.offset, end - 1}) {
      const Result<File> cut = File::Parse(mapping->bytes().first(size));
      ASSERT_FALSE(cut);
      EXPECT_EQ(
          cut.error().detail.find(Quote(tensor.name) + " ends at byte " + std::to_string(end) +
                                  ", the file has " + std::to_string(size)),
          0u)
          << cut.error().Message();
    }
  }
}

}  // namespace
}  // namespace tael::gguf
