#include "model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <string>

#include "gguf/writer.h"
#include "model/rope.h"

namespace tael::model {
namespace {

using testing::HasSubstr;

std::string Tiny(const std::string& name) {
  return std::string(TAEL_TEST_DATA) + "/tiny/" + name + ".gguf";
}

// A copy of a good model with one thing changed.
struct Change {
  std::function<bool(std::string_view key, gguf::Writer&)> key;  // true: written already
  std::function<bool(const gguf::TensorInfo&, std::span<const std::byte>, gguf::Writer&)> tensor;
  std::function<void(gguf::Writer&)> extra;
};

std::string WriteChanged(const Change& change, const char* original = "llama_gqa") {
  const auto mapping = mem::FileMapping::Open(Tiny(original));
  const auto file = gguf::File::Parse(mapping->bytes());
  gguf::Writer writer;
  for (const auto& [key, value] : file->metadata()) {
    if (!change.key || !change.key(key, writer)) writer.AddValue(key, value);
  }
  for (const gguf::TensorInfo& tensor : file->tensors()) {
    const auto data = file->TensorData(tensor);
    if (change.tensor && change.tensor(tensor, data, writer)) continue;
    writer.AddTensor(tensor.name, tensor.type, {tensor.shape.data(), tensor.num_dims}, data);
  }
  if (change.extra) change.extra(writer);
  std::string path = testing::TempDir() + "changed-" +
                     testing::UnitTest::GetInstance()->current_test_info()->name() + ".gguf";
  EXPECT_TRUE(writer.WriteFile(path).has_value());
  return path;
}

Error OpenError(const Change& change, const char* original = "llama_gqa") {
  const std::string path = WriteChanged(change, original);
  const auto model = Model::Open(path);
  std::remove(path.c_str());
  EXPECT_FALSE(model.has_value());
  return model ? Error{} : model.error();
}

Change ReplaceUint(std::string name, uint32_t value) {
  return {.key =
              [name, value](std::string_view key, gguf::Writer& writer) {
                if (key != name) return false;
                writer.AddUint32(key, value);
                return true;
              },
          .tensor = {},
          .extra = {}};
}

TEST(Model, AnUnchangedCopyOpens) {
  const std::string path = WriteChanged({});
  const auto model = Model::Open(path);
  ASSERT_TRUE(model.has_value()) << model.error().Message();
  EXPECT_EQ((*model)->description().num_layers, 3u);
  EXPECT_EQ((*model)->description().head_dim, 16u);
  EXPECT_FALSE((*model)->weights().tied);
  std::remove(path.c_str());
}

TEST(Model, AnUnknownArchitectureIsNamedWithTheKnownOnes) {
  const Error error = OpenError({.key =
                                     [](std::string_view key, gguf::Writer& writer) {
                                       if (key != "general.architecture") return false;
                                       writer.AddString(key, "mamba9");
                                       return true;
                                     },
                                 .tensor = {},
                                 .extra = {}});
  EXPECT_EQ(error.code, ErrorCode::kUnsupported);
  EXPECT_THAT(error.Message(), HasSubstr("mamba9"));
  EXPECT_THAT(error.Message(), HasSubstr("qwen2"));
}

TEST(Model, AQuantisationTypeThatIsNotSupportedIsNamedWithItsTensor) {
  constexpr auto kQ8_1 = static_cast<gguf::TensorType>(9);
  const Error error = OpenError(
      {.key = {},
       .tensor =
           [](const gguf::TensorInfo& tensor, std::span<const std::byte> data,
              gguf::Writer& writer) {
             if (tensor.name != "blk.1.ffn_up.weight") return false;
             const auto* traits = gguf::FindTypeTraits(kQ8_1);
             const size_t bytes =
                 tensor.shape[0] / traits->block_elements * traits->block_bytes * tensor.shape[1];
             writer.AddTensor(tensor.name, kQ8_1, {tensor.shape.data(), 2}, data.first(bytes));
             return true;
           },
       .extra = {}});
  EXPECT_EQ(error.code, ErrorCode::kUnsupported);
  EXPECT_THAT(error.Message(), HasSubstr("blk.1.ffn_up.weight"));
  EXPECT_THAT(error.Message(), HasSubstr("Q8_1"));
}

TEST(Model, AMissingTensorIsNamed) {
  const Error error =
      OpenError({.key = {},
                 .tensor = [](const gguf::TensorInfo& tensor, std::span<const std::byte>,
                              gguf::Writer&) { return tensor.name == "blk.2.attn_k.weight"; },
                 .extra = {}});
  EXPECT_EQ(error.code, ErrorCode::kMalformed);
  EXPECT_THAT(error.Message(), HasSubstr("missing tensor"));
  EXPECT_THAT(error.Message(), HasSubstr("blk.2.attn_k.weight"));
}

TEST(Model, AMissingBiasIsAMissingTensor) {
  for (const char* missing : {"blk.1.attn_k.bias", "blk.0.attn_q.bias"}) {
    const Error error =
        OpenError({.key = {},
                   .tensor = [missing](const gguf::TensorInfo& tensor, std::span<const std::byte>,
                                       gguf::Writer&) { return tensor.name == missing; },
                   .extra = {}},
                  "qwen2_tied");
    EXPECT_EQ(error.code, ErrorCode::kMalformed);
    EXPECT_THAT(error.Message(), HasSubstr(missing));
  }
}

TEST(Model, ATensorTooManyIsNamed) {
  static const std::byte zeros[64] = {};
  const uint64_t shape[] = {16};
  const Error error = OpenError({.key = {}, .tensor = {}, .extra = [&](gguf::Writer& writer) {
                                   writer.AddTensor("blk.0.attn_sinks.weight",
                                                    gguf::TensorType::kF32, shape, zeros);
                                 }});
  EXPECT_EQ(error.code, ErrorCode::kMalformed);
  EXPECT_THAT(error.Message(), HasSubstr("blk.0.attn_sinks.weight"));
  EXPECT_THAT(error.Message(), HasSubstr("does not have"));
}

TEST(Model, ATensorOfTheWrongShapeIsNamedWithBothShapes) {
  const Error error = OpenError(ReplaceUint("llama.feed_forward_length", 192));
  EXPECT_EQ(error.code, ErrorCode::kMalformed);
  EXPECT_THAT(error.Message(), HasSubstr("ffn_gate.weight"));
  EXPECT_THAT(error.Message(), HasSubstr("[96, 160]"));
  EXPECT_THAT(error.Message(), HasSubstr("[96, 192]"));
}

TEST(Model, NumbersOutsideTheirLimitsNameTheKey) {
  for (const auto& [key, value] : {std::pair{"llama.attention.head_count", 0u},
                                   {"llama.attention.head_count", 1u << 20},
                                   {"llama.block_count", 0u},
                                   {"llama.block_count", 0xffffffffu},
                                   {"llama.embedding_length", 0u},
                                   {"llama.context_length", 0u},
                                   {"llama.attention.head_count_kv", 4u},
                                   {"llama.attention.head_count_kv", 0u},
                                   {"llama.rope.dimension_count", 15u},
                                   {"llama.rope.dimension_count", 1000u}}) {
    const Error error = OpenError(ReplaceUint(key, value));
    EXPECT_EQ(error.code, ErrorCode::kMalformed) << key << " = " << value;
    EXPECT_THAT(error.Message(), HasSubstr(key)) << value;
  }
}

TEST(Description, GemmasLayerPatternsComeFromNoKey) {
  const auto gemma3 = Model::Open(Tiny("gemma3"));
  for (uint32_t i = 0; i < 7; ++i) {
    const LayerDescription& layer = (*gemma3)->description().layers[i];
    EXPECT_EQ(layer.window, i == 5 ? 0u : 24u) << i;
    EXPECT_EQ(layer.rope, i == 5 ? 0 : 1) << i;
  }
  const auto gemma2 = Model::Open(Tiny("gemma2"));
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ((*gemma2)->description().layers[i].window, i % 2 == 0 ? 24u : 0u) << i;
  }
}

TEST(Description, EveryFourthLayerOfSmolLM3DoesNotRotate) {
  const auto model = Model::Open(Tiny("smollm3"));
  for (uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ((*model)->description().layers[i].rope, i == 3 ? -1 : 0) << i;
  }
}

TEST(Rope, LongFactorsServeContextsAboveTheOriginal) {
  const auto model = Model::Open(Tiny("phi3_longrope"));
  const auto& d = (*model)->description();
  const auto& w = (*model)->weights();
  const auto at_most = MakeRopeFrequencies(d, w, 256);
  const auto above = MakeRopeFrequencies(d, w, 257);
  // The last pair's divisors are 1.4 (short) and 7 (long).
  EXPECT_NEAR(at_most[0].frequencies.back() / above[0].frequencies.back(), 7.0 / 1.4, 1e-5);
  EXPECT_FLOAT_EQ(above[0].magnitude, 1.118034f);
}

TEST(Rope, AnglesStayExactFarOut) {
  RopeFrequencies rope{.frequencies = {1.0, 0.1}, .magnitude = 1};
  float cos[2], sin[2];
  FillRope(rope, 1000003, cos, sin);
  EXPECT_NEAR(static_cast<double>(cos[0]), std::cos(1000003.0), 1e-6);
  EXPECT_NEAR(static_cast<double>(sin[1]), std::sin(100000.3), 1e-6);
}

}  // namespace
}  // namespace tael::model
