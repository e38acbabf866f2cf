#include "gguf/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "mem/mapping.h"

namespace tael::gguf {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WriterTest : public ::testing::Test {
 protected:
  WriterTest() {
    for (size_t i = 0; i < data_.size(); ++i) data_[i] = static_cast<std::byte>(i + 1);
  }

  void Fill(Writer& writer) {
    writer.AddString("general.architecture", "tiny");
    writer.AddUint32("u32", 7);
    writer.AddUint64("u64", uint64_t{1} << 40);
    writer.AddInt32("i32", -3);
    writer.AddFloat("f32", 0.5f);
    writer.AddBool("yes", true);
    writer.AddStringArray("strings", std::vector<std::string>{"a", "", "\xE9\x87\x91"});
    writer.AddFloatArray("floats", std::vector<float>{1.5f, -2});
    writer.AddUintArray("uints", std::vector<uint32_t>{1, 4000000000u});
    writer.AddIntArray("ints", std::vector<int32_t>{});
    const uint64_t matrix[] = {32, 3};
    const uint64_t vector[] = {5};
    writer.AddTensor("m", TensorType::kQ4_0, matrix, std::span(data_).first(54));
    writer.AddTensor("v", TensorType::kF32, vector, std::span(data_).last(20));
  }

  std::vector<std::byte> data_ = std::vector<std::byte>(80);
};

TEST_F(WriterTest, TheParserReadsBackWhatWasWritten) {
  for (const uint32_t version : {2u, 3u}) {
    for (const uint64_t alignment : {8u, 32u, 4096u, 16384u, 65536u}) {
      Writer writer(alignment, version);
      Fill(writer);
      const auto bytes = writer.Serialize();
      ASSERT_TRUE(bytes) << bytes.error().Message();
      const Result<File> file = File::Parse(*bytes);
      ASSERT_TRUE(file) << file.error().Message();
      EXPECT_EQ(file->version(), version);
      EXPECT_EQ(file->alignment(), alignment);
      EXPECT_EQ(file->data_offset() % alignment, 0u);
      EXPECT_EQ(**file->GetString("general.architecture"), "tiny");
      EXPECT_EQ(**file->GetUint("u32"), 7u);
      EXPECT_EQ(**file->GetUint("u64"), uint64_t{1} << 40);
      EXPECT_EQ(**file->GetFloat("i32"), -3);
      EXPECT_EQ(**file->GetFloat("f32"), 0.5);
      EXPECT_TRUE(**file->GetBool("yes"));
      EXPECT_THAT(**file->GetFloatArray("floats"), ElementsAre(1.5f, -2));
      EXPECT_THAT(**file->GetUintArray("uints"), ElementsAre(1, 4000000000u));
      EXPECT_THAT(**file->GetUintArray("ints"), ElementsAre());
      const Value* strings = file->Find("strings");
      ASSERT_EQ(strings->count, 3u);
      StringCursor cursor(strings->data);
      EXPECT_EQ(cursor.Next(), "a");
      EXPECT_EQ(cursor.Next(), "");
      EXPECT_EQ(cursor.Next(), "\xE9\x87\x91");
    }
  }
}

TEST_F(WriterTest, TensorsComeBackWithShapeOffsetAndBytes) {
  Writer writer(64);
  Fill(writer);
  const auto bytes = writer.Serialize();
  ASSERT_TRUE(bytes);
  const Result<File> file = File::Parse(*bytes);
  ASSERT_TRUE(file) << file.error().Message();
  ASSERT_EQ(file->tensors().size(), 2u);
  const TensorInfo& matrix = file->tensors()[0];
  EXPECT_EQ(matrix.name, "m");
  EXPECT_EQ(matrix.type, TensorType::kQ4_0);
  EXPECT_EQ(matrix.num_dims, 2u);
  EXPECT_THAT(matrix.shape, ElementsAre(32, 3, 1, 1));
  EXPECT_EQ(matrix.num_rows(), 3u);
  EXPECT_EQ(matrix.row_bytes, 18u);
  EXPECT_EQ(matrix.bytes, 54u);
  EXPECT_EQ(matrix.offset, file->data_offset());
  const TensorInfo* vector = file->FindTensor("v");
  ASSERT_NE(vector, nullptr);
  EXPECT_EQ(vector->offset, file->data_offset() + 64);
  const auto data = file->TensorData(*vector);
  EXPECT_TRUE(std::equal(data.begin(), data.end(), data_.end() - 20, data_.end()));
  EXPECT_EQ(file->FindTensor("w"), nullptr);
}

TEST_F(WriterTest, ValuesOfAnotherFileAreCopiedAsTheyAre) {
  Writer first;
  Fill(first);
  const auto bytes = first.Serialize();
  const Result<File> file = File::Parse(*bytes);
  ASSERT_TRUE(file);
  Writer second;
  for (const auto& [key, value] : file->metadata()) second.AddValue(key, value);
  for (const TensorInfo& tensor : file->tensors()) {
    second.AddTensor(tensor.name, tensor.type, std::span(tensor.shape).first(tensor.num_dims),
                     file->TensorData(tensor));
  }
  EXPECT_EQ(*second.Serialize(), *bytes);
}

TEST_F(WriterTest, AFileOfMetadataOnlyIsFine) {
  Writer writer;
  writer.AddString("general.architecture", "vocab");
  const auto bytes = writer.Serialize();
  const Result<File> file = File::Parse(*bytes);
  ASSERT_TRUE(file) << file.error().Message();
  EXPECT_TRUE(file->tensors().empty());
}

TEST_F(WriterTest, RefusesWhatNoReaderAccepts) {
  const uint64_t shape[] = {8};
  const auto refusal = [&](auto prepare) {
    Writer writer;
    prepare(writer);
    const auto bytes = writer.Serialize();
    return bytes ? std::string("accepted") : bytes.error().Message();
  };
  EXPECT_THAT(Writer(3).Serialize().error().Message(), HasSubstr("3, not from 8"));
  EXPECT_THAT(Writer(uint64_t{1} << 30).Serialize().error().Message(), HasSubstr("to 65536"));
  EXPECT_THAT(Writer(32, 1).Serialize().error().Message(), HasSubstr("version"));
  EXPECT_THAT(refusal([](Writer& w) {
                w.AddUint32("k", 1);
                w.AddUint32("k", 1);
              }),
              HasSubstr("twice: \"k\""));
  EXPECT_THAT(refusal([](Writer& w) { w.AddUint32("general.alignment", 64); }), HasSubstr("twice"));
  EXPECT_THAT(refusal([&](Writer& w) {
                w.AddTensor("t", TensorType::kF32, shape, std::span(data_).first(31));
              }),
              HasSubstr("\"t\" of type F32, 31 bytes"));
  EXPECT_THAT(refusal([&](Writer& w) {
                w.AddTensor("", TensorType::kF32, shape, std::span(data_).first(32));
              }),
              HasSubstr("empty"));
}

TEST_F(WriterTest, AWrittenFileEqualsTheSerialisedBytes) {
  const std::string path = ::testing::TempDir() + "writer_test.gguf";
  Writer writer;
  Fill(writer);
  const Status written = writer.WriteFile(path);
  ASSERT_TRUE(written) << written.error().Message();
  const auto mapping = mem::FileMapping::Open(path);
  ASSERT_TRUE(mapping);
  const auto bytes = writer.Serialize();
  EXPECT_TRUE(
      std::equal(mapping->bytes().begin(), mapping->bytes().end(), bytes->begin(), bytes->end()));
  std::remove(path.c_str());
}

TEST_F(WriterTest, AFailedWriteLeavesTheOldFileAndNoOther) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "writer_test";
  std::filesystem::create_directory(folder);
  const std::filesystem::path path = folder / "old.gguf";
  std::ofstream(path) << "old";
  Writer refused(3);
  EXPECT_FALSE(refused.WriteFile(path.string()));
  EXPECT_EQ(std::filesystem::file_size(path), 3u);

  Writer writer;
  Fill(writer);
  const std::filesystem::path blocked = folder / "blocked";
  std::filesystem::create_directories(blocked / "sub");  // a directory cannot be replaced
  const Status failed = writer.WriteFile(blocked.string());
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kIo);
  EXPECT_THAT(failed.error().Message(), HasSubstr(blocked.string()));
  const auto entries = std::filesystem::directory_iterator(folder);
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 2);
  const Status nowhere = writer.WriteFile((folder / "no" / "such").string());
  EXPECT_FALSE(nowhere);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tael::gguf
