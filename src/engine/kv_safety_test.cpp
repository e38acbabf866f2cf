#include "engine/kv_safety.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "engine/kv_types.h"
#include "engine/model_identity.h"
#include "engine/testing.h"

namespace tael::engine {
namespace {

constexpr const char* kModel = "qwen3";  // its heads can have values of 4 bits

std::string Identity(const char* name) { return IdentityOf(**model::Model::Open(Tiny(name))); }

struct Chosen {
  std::string types;
  KvReason reason;
  bool operator==(const Chosen&) const = default;
};

Chosen Choose(std::optional<KvSafety> table, EngineOptions options = {}) {
  options.model_path = Tiny(kModel);
  options.budget_bytes = uint64_t{1} << 30;
  options.kv_auto = true;
  options.kv_safety = std::move(table);
  const auto plan = ForecastPlan(options);
  EXPECT_TRUE(plan.has_value());
  return {DescribeKvTypes(plan->geometry), plan->kv_reason};
}

TEST(KvSafety, AutoIsQ8UnlessTheModelWasMeasuredNotToBearIt) {
  const std::string model = Identity(kModel);
  EXPECT_EQ(Choose(std::nullopt), (Chosen{"q8", KvReason::kUsual}));
  EXPECT_EQ(Choose(KvSafety{model, true}), (Chosen{"q8", KvReason::kSafe}));
  EXPECT_EQ(Choose(KvSafety{model, false}), (Chosen{"f16", KvReason::kUnsafe}));
}

TEST(KvSafety, ATableOfAnotherModelSaysNothing) {
  ASSERT_NE(Identity("gemma3"), Identity(kModel));
  EXPECT_EQ(Choose(KvSafety{Identity("gemma3"), false}), (Chosen{"q8", KvReason::kForeign}));
  EXPECT_EQ(Choose(KvSafety{"", false}), (Chosen{"q8", KvReason::kForeign}));
}

TEST(KvSafety, ATypeThatIsAskedForIsGivenAndItsRiskSaid) {
  using kernels::KvType, kernels::KvTypes;
  const auto choose = [](const KvSafety& table, KvTypes types) {
    EngineOptions asked;
    asked.kv_type = types;
    return Choose(table, asked);
  };
  const KvTypes k8v4 = {KvType::kQ8, KvType::kQ4};
  const KvSafety nothing{Identity(kModel), false, false};
  EXPECT_EQ(choose(nothing, KvType::kQ8), (Chosen{"q8", KvReason::kRisky}));
  EXPECT_EQ(choose(nothing, k8v4), (Chosen{"k8v4", KvReason::kRisky}));
  EXPECT_EQ(choose(nothing, KvType::kF16), (Chosen{"f16", KvReason::kAsked}));
  const KvSafety q8_only{Identity(kModel), true, false};
  EXPECT_EQ(choose(q8_only, KvType::kQ8), (Chosen{"q8", KvReason::kAsked}));
  EXPECT_EQ(choose(q8_only, k8v4), (Chosen{"k8v4", KvReason::kRisky}));
  const KvSafety foreign{Identity("gemma3"), false, false};
  EXPECT_EQ(choose(foreign, KvType::kQ8), (Chosen{"q8", KvReason::kAsked}));
}

TEST(KvSafety, OnTheReferencePathAutoIsF32ButForWhoMeasures) {
  EngineOptions reference;
  reference.compute = exec::Compute::kReference;
  EXPECT_EQ(Choose(std::nullopt, reference), (Chosen{"f32", KvReason::kAsked}));
  reference.auto_on_reference = true;
  EXPECT_EQ(Choose(std::nullopt, reference), (Chosen{"q8", KvReason::kUsual}));
}

TEST(KvSafety, EachReasonHasAName) {
  for (const KvReason reason : {KvReason::kAsked, KvReason::kRisky, KvReason::kUsual,
                                KvReason::kSafe, KvReason::kUnsafe, KvReason::kForeign}) {
    EXPECT_THAT(ToString(reason), testing::MatchesRegex("[a-z]+"));
    EXPECT_NE(Describe(reason), "?");
  }
}

}  // namespace
}  // namespace tael::engine
