#include "engine/kv_types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/testing.h"

namespace tael::engine {
namespace {

using kernels::KvType;
using kernels::KvTypes;
using testing::Each;

// Qwen2 7B, as published: first and last layer.
TEST(KvTypes, ABiasThatStandsOutIsFound) {
  std::vector<float> largest(28, 22.0f);
  largest[0] = 605;
  largest[5] = 22.0f * 8;  // large, and not more than that
  largest[27] = 921;
  const std::vector<bool> huge = LayersWithHugeBias(largest);
  EXPECT_TRUE(huge[0] && huge[27]);
  EXPECT_EQ(std::count(huge.begin(), huge.end(), true), 2);
}

TEST(KvTypes, LayersWithoutBiasesAreAllAlike) {
  EXPECT_THAT(LayersWithHugeBias(std::vector<float>(12, 0.0f)), Each(false));
  EXPECT_THAT(LayersWithHugeBias(std::vector<float>(1, 5.0f)), Each(false));
}

TEST(KvTypes, AutoIsQ8AndWhatIsWantedIsEverywhere) {
  const auto model = *model::Model::Open(Tiny("qwen2_hd128"));
  EXPECT_THAT(KvTypesByLayer(*model, std::nullopt), Each(KvTypes{KvType::kQ8}));
  const KvTypes k8v4 = {KvType::kQ8, KvType::kQ4};
  EXPECT_THAT(KvTypesByLayer(*model, k8v4), Each(k8v4));
}

TEST(KvTypes, ValuesOf4BitsNeedWholeGroups) {
  const auto model = *model::Model::Open(Tiny("gemma3"));
  ASSERT_NE(model->description().head_dim % 32, 0u);
  EXPECT_THAT(KvTypesByLayer(*model, KvTypes{KvType::kQ8, KvType::kQ4}),
              Each(KvTypes{KvType::kQ8}));
}

TEST(KvTypes, AreNamedAsTheFlagsDo) {
  EXPECT_EQ(NameOf(KvTypes{KvType::kF16}), "f16");
  EXPECT_EQ(NameOf(KvTypes{KvType::kQ8}), "q8");
  EXPECT_EQ(NameOf(KvTypes{KvType::kQ8, KvType::kQ4}), "k8v4");
  EXPECT_EQ(NameOf(KvTypes{KvType::kF16, KvType::kQ8}), "k f16 v q8");
}

TEST(KvTypes, LayersThatDifferAreTold) {
  std::vector<kv::LayerShape> layers(5, {2, 64, 0, KvType::kQ8});
  layers[0].type = layers[4].type = KvType::kF16;
  const kv::Geometry geometry = kv::MakeGeometry(layers, kernels::Active());
  EXPECT_EQ(DescribeKvTypes(geometry), "q8; f16 in layers 0, 4");
  const auto shares = KvTypeShares(geometry);
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[0].types, KvTypes{KvType::kF16});
  EXPECT_EQ(shares[0].bytes_per_token, 2u * 2 * 2 * 64 * 2);
  EXPECT_EQ(shares[1].num_layers, 3u);
  EXPECT_EQ(shares[1].bytes_per_token, 3u * 2 * 2 * (64 + 2));
}

// A copy of a tiny model whose first layer has a key bias of 100 in the slowest channel of its
// first head.
std::string WithHugeBias(const char* name) {
  const auto model = *model::Model::Open(Tiny(name));
  const gguf::TensorInfo* bias = model->file().FindTensor("blk.0.attn_k.bias");
  const auto bytes = model->file().bytes();
  std::string copy(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t channel = model->description().head_dim / 2 - 1;
  const float huge = 100;
  std::memcpy(copy.data() + bias->offset + channel * sizeof huge, &huge, sizeof huge);
  const std::string path =
      testing::TempDir() + "huge-bias-" + std::to_string(::getpid()) + "-" + name + ".gguf";
  std::ofstream(path, std::ios::binary) << copy;
  return path;
}

TEST(KvTypes, AutoKeepsALayerWithAHugeBiasInF16) {
  const std::string path = WithHugeBias("qwen2_tied");
  const auto model = *model::Model::Open(path);
  std::vector<KvTypes> want(model->description().num_layers, KvType::kQ8);
  want[0] = KvType::kF16;
  EXPECT_EQ(KvTypesByLayer(*model, std::nullopt), want);
  EXPECT_THAT(KvTypesByLayer(*model, KvType::kQ8), Each(KvTypes{KvType::kQ8}));
  const auto forecast = MakeForecast({.model_path = path,
                                      .budget_bytes = uint64_t{1} << 30,
                                      .num_threads = 2,
                                      .context_length = 256,
                                      .kv_auto = true});
  ASSERT_TRUE(forecast);
  const std::string text = DescribeKvTypes(forecast->plan.geometry);
  EXPECT_THAT(text, testing::HasSubstr("f16")) << text;
  EXPECT_THAT(text, testing::HasSubstr("q8")) << text;
  std::filesystem::remove(path);
}

// Even where nothing is kept in f16: the transform spreads the channel.
TEST(KvTypes, Q8KeysSurviveAHugeBias) {
  const std::string path = WithHugeBias("qwen2_tied");
  const std::vector<TokenId> tokens = RandomTokens(200, 9);
  const auto logits = [&](KvTypes types) {
    const auto engine = CreateEngine({.model_path = path,
                                      .budget_bytes = uint64_t{1} << 30,
                                      .num_threads = 2,
                                      .context_length = 256,
                                      .compute = exec::Compute::kReference,
                                      .kv_type = types});
    std::vector<float> out;
    Session session = engine->NewSession();
    const auto keep = [&](size_t, std::span<float> row) {
      out.insert(out.end(), row.begin(), row.end());
    };
    EXPECT_TRUE(session.Feed(tokens, {.num_logits = 200}, keep).has_value());
    return out;
  };
  const auto exact = logits(KvType::kF32), got = logits(KvType::kQ8);
  double squares = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double difference = double{exact[i]} - got[i];
    squares += difference * difference / static_cast<double>(exact.size());
  }
  EXPECT_LE(std::sqrt(squares), 0.15);
  EXPECT_GT(squares, 0.0);
  std::filesystem::remove(path);
}

// Models whose heads are single, in groups, of 128, and behind windows.
constexpr const char* kModels[] = {"llama_gqa", "qwen2_hd128", "gemma3", "mistral_swa24"};

class AnswersThrough : public testing::TestWithParam<KvTypes> {
 protected:
  std::unique_ptr<Engine> Make(const char* model, size_t num_threads) const {
    return CreateEngine({.model_path = Tiny(model),
                         .budget_bytes = uint64_t{1} << 30,
                         .num_threads = num_threads,
                         .oversubscribe = true,
                         .context_length = 256,
                         .chunk_tokens = 32,
                         .logit_rows = 4,
                         .kv_type = GetParam()});
  }

  // The logits of the last four of some tokens, which are fed `at_once` at a time after the others.
  static std::vector<std::vector<float>> Logits(Engine& engine, size_t at_once) {
    std::vector<std::vector<float>> rows;
    Session session = engine.NewSession();
    const std::vector<TokenId> tokens = RandomTokens(204, 5);
    const auto keep = [&](size_t, std::span<float> row) {
      rows.emplace_back(row.begin(), row.end());
    };
    const auto prompt = std::span(tokens).first(200);
    EXPECT_TRUE(session.Feed(prompt, {}, [](size_t, std::span<float>) {}).has_value());
    for (size_t done = 200; done < tokens.size(); done += at_once) {
      const auto some = std::span(tokens).subspan(done, at_once);
      const auto count = static_cast<uint32_t>(at_once);
      EXPECT_TRUE(session.Feed(some, {.num_logits = count}, keep).has_value());
    }
    return rows;
  }
};

TEST_P(AnswersThrough, DoNotDependOnTheNumberOfThreads) {
  for (const char* model : kModels) {
    const auto one = Make(model, 1), three = Make(model, 3);
    ASSERT_TRUE(one && three);
    EXPECT_EQ(Logits(*one, 1), Logits(*three, 1)) << model;
    EXPECT_EQ(Logits(*one, 4), Logits(*three, 4)) << model;
  }
}

// Tokens of a draft have to get the bits that they would get alone.
TEST_P(AnswersThrough, DoNotDependOnTheTokensInAPass) {
  if (kernels::MaxExactTokens(kernels::Active().matmul) < 4) GTEST_SKIP() << "no drafts of four";
  for (const char* model : kModels) {
    const auto engine = Make(model, 2);
    ASSERT_TRUE(engine);
    const auto alone = Logits(*engine, 1);
    EXPECT_EQ(alone, Logits(*engine, 2)) << model;
    EXPECT_EQ(alone, Logits(*engine, 4)) << model;
  }
}

// A type that another replaces silently would pass every other test.
TEST_P(AnswersThrough, DifferFromThoseThroughF16) {
  for (const char* model : kModels) {
    const auto engine = Make(model, 2);
    const auto f16 = CreateEngine({.model_path = Tiny(model),
                                   .budget_bytes = uint64_t{1} << 30,
                                   .num_threads = 2,
                                   .context_length = 256,
                                   .chunk_tokens = 32,
                                   .logit_rows = 4});
    ASSERT_TRUE(engine && f16);
    EXPECT_NE(Logits(*engine, 4), Logits(*f16, 4)) << model;
  }
}

INSTANTIATE_TEST_SUITE_P(, AnswersThrough,
                         testing::Values(KvTypes{KvType::kQ8}, KvTypes{KvType::kQ8, KvType::kQ4},
                                         KvTypes{KvType::kF16, KvType::kQ8},
                                         KvTypes{KvType::kQ8, KvType::kF16}),
                         [](const testing::TestParamInfo<KvTypes>& param) {
                           std::string name = NameOf(param.param);
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

}  // namespace
}  // namespace tael::engine
