#include "kv/slot_merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kv/testing.h"

namespace tael::kv {
namespace {

using kernels::KvType;
using kernels::KvTypes;
using Vector = std::vector<float>;

constexpr size_t kDim = 64;
constexpr size_t kHeads = 2;
constexpr size_t kLayer = 1;  // of three

Vector Normals(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Vector out(kDim);
  for (float& x : out) x = normal(random);
  return out;
}

// The pairs of the first 48 dimensions turn; plain trigonometry.
Rotation SomeRotation(bool pairs) {
  Rotation rotation{.frequencies = {}, .pairs = pairs};
  for (int i = 0; i < 24; ++i) rotation.frequencies.push_back(std::pow(1e4, -i / 24.0));
  return rotation;
}
Vector At(const Rotation& rotation, double position, const Vector& x) {
  Vector out = x;
  const size_t half = rotation.frequencies.size();
  for (size_t i = 0; i < half; ++i) {
    const size_t a = rotation.pairs ? 2 * i : i, b = rotation.pairs ? 2 * i + 1 : i + half;
    const double angle = position * rotation.frequencies[i];
    const double c = std::cos(angle), s = std::sin(angle);
    out[a] = static_cast<float>(x[a] * c - x[b] * s);
    out[b] = static_cast<float>(x[a] * s + x[b] * c);
  }
  return out;
}

// One block, whose slots are stored and read as attention does.
struct Block {
  LayerGroup group;
  std::vector<std::byte> bytes;

  explicit Block(KvTypes types) {
    const LayerShape shape{.num_kv_heads = kHeads, .head_dim = kDim, .type = types};
    group = MakeGeometry(std::vector<LayerShape>(3, shape), ScalarKernels(), 1 << 20).groups[0];
    bytes.resize(group.block_bytes);
  }
  std::byte* tile(size_t head) {
    return bytes.data() + kLayer * group.layer_bytes + head * group.head_bytes;
  }
  static Vector Transformed(KvType type, Vector x) {
    if (IsQuantised(type)) ScalarKernels().vec.hadamard(x.data(), kDim);
    return x;
  }
  static const kernels::KvTable& Table(KvType type) {
    return ScalarKernels().kv[static_cast<size_t>(type)];
  }
  void Store(size_t head, size_t slot, const Vector& key, const Vector& value) {
    const auto [k, v] = group.shape.type;
    Table(k).store_k(Transformed(k, key).data(), kDim, slot, tile(head));
    Table(v).store_v(Transformed(v, value).data(), kDim, slot, tile(head) + group.k_tile_bytes);
  }
  SlotPart Part(size_t slot, float weight, double shift) const {
    return {bytes.data(), slot, weight, shift};
  }
  static kernels::AttendCall Call(const std::byte* const& base) {
    kernels::AttendCall call{};
    call.blocks = &base;
    call.num_tokens = 16;
    call.head_dim = kDim;
    call.num_rows = 1;
    return call;
  }
  // q . key of every slot, with the stored keys of 15 bits of query where they are quantised.
  Vector Scores(size_t head, const Vector& query) {
    const KvType type = group.shape.type.k;
    const Vector q = Transformed(type, query);
    Vector packed(kernels::PackedQueryFloats(kDim)), scores(16);
    const std::byte* base = tile(head);
    kernels::AttendCall call = Call(base);
    call.q = q.data();
    call.q_stride = kDim;
    if (IsQuantised(type)) {
      Table(type).pack_q(q.data(), kDim, packed.data());
      call.q = packed.data();
      call.q_stride = packed.size();
    }
    call.scores = scores.data();
    call.score_stride = 16;
    (IsQuantised(type) ? Table(type).exact_scores : Table(type).scores)(call);
    return scores;
  }
  Vector Values(size_t head, Vector weights) {
    const KvType type = group.shape.type.v;
    Vector out(kDim);
    const std::byte* base = tile(head) + group.k_tile_bytes;
    kernels::AttendCall call = Call(base);
    call.scores = weights.data();
    call.score_stride = 16;
    call.out = out.data();
    call.out_stride = kDim;
    Table(type).values(call);
    return Transformed(type, out);
  }
  Vector Value(size_t head, size_t slot) {
    Vector weights(16);
    weights[slot] = 1;
    return Values(head, weights);
  }
};

double Distance(const Vector& a, const Vector& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return most;
}

struct Case {
  KvTypes types;
  double tolerance;  // of a value of size 1, stored once more
};
const Case kCases[] = {{KvType::kF32, 1e-5},
                       {KvType::kF16, 4e-3},
                       {KvType::kQ8, 3e-2},
                       {{KvType::kQ8, KvType::kQ4}, 0.6}};

TEST(SlotMerge, OnePartIsItself) {
  for (const auto& [types, tolerance] : kCases) {
    Block block(types);
    for (size_t head = 0; head < kHeads; ++head) {
      block.Store(head, 3, Normals(1), Normals(2));
    }
    const Vector query = Normals(3);
    const std::vector<std::byte> before = block.bytes;
    const SlotPart part = block.Part(3, 1, 0);
    MergeSlots(block.group, kLayer, SomeRotation(false), {&part, 1}, block.bytes.data(), 9);
    for (size_t head = 0; head < kHeads; ++head) {
      const Vector scores = block.Scores(head, query);
      EXPECT_NEAR(scores[9], scores[3], 8 * tolerance);
      EXPECT_LT(Distance(block.Value(head, 9), block.Value(head, 3)), tolerance);
    }
    // All but slot 9 is as it was: a second merge over slot 3 finds the same.
    Block other(types);
    other.bytes = before;
    EXPECT_EQ(block.Value(0, 3), other.Value(0, 3));
  }
}

// Tokens that had one key, rotated for where they stood: the mean is that key, where they stood on
// average. Averaged as they are, they would have lost half of it.
TEST(SlotMerge, KeysAreTurnedToOnePositionFirst) {
  for (const bool pairs : {false, true}) {
    const Rotation rotation = SomeRotation(pairs);
    for (const auto& [types, tolerance] : kCases) {
      Block block(types);
      const Vector key = Normals(1), query = Normals(2);
      const double positions[] = {1000, 1003, 1100, 1217.25};
      const float weights[] = {0.4f, 0.3f, 0.2f, 0.1f};
      double mean = 0;
      Vector value(kDim);
      for (size_t i = 0; i < 4; ++i) {
        mean += static_cast<double>(weights[i]) * positions[i];
        const Vector one = Normals(static_cast<uint32_t>(10 + i));
        for (size_t d = 0; d < kDim; ++d) value[d] += weights[i] * one[d];
        for (size_t head = 0; head < kHeads; ++head) {
          block.Store(head, 4 * i, At(rotation, positions[i], key), one);
        }
      }
      std::vector<SlotPart> parts;
      for (size_t i = 0; i < 4; ++i) {
        parts.push_back(block.Part(4 * i, weights[i], mean - positions[i]));
      }
      MergeSlots(block.group, kLayer, rotation, parts, block.bytes.data(), 4);  // over one of them
      for (size_t head = 0; head < kHeads; ++head) {
        const Vector want = At(rotation, mean, key);
        double score = 0;
        for (size_t d = 0; d < kDim; ++d) score += static_cast<double>(want[d] * query[d]);
        EXPECT_NEAR(static_cast<double>(block.Scores(head, query)[4]), score, 16 * tolerance);
        EXPECT_LT(Distance(block.Value(head, 4), value), tolerance);
      }
    }
  }
}

// ALGORITHMS 4.1: with keys alike, one that counts as many gives what all of them gave.
TEST(SlotMerge, OfEqualKeysOneWithTheLogarithmOfTheirNumberAttendsAlike) {
  Block block(KvType::kF32);
  const Vector key = Normals(1), query = Normals(2);
  for (size_t slot = 0; slot < 16; ++slot) {
    block.Store(0, slot, slot < 12 ? key : Normals(static_cast<uint32_t>(40 + slot)),
                Normals(static_cast<uint32_t>(20 + slot)));
  }
  const auto attend = [&](const Vector& biases) {
    Vector weights = block.Scores(0, query);
    float sum = 0;
    for (size_t i = 0; i < 16; ++i) sum += weights[i] = std::exp(weights[i] / 8 + biases[i]);
    for (float& weight : weights) weight /= sum;
    return block.Values(0, weights);
  };
  const Vector all = attend(Vector(16));
  std::vector<SlotPart> parts;
  for (size_t slot = 0; slot < 12; ++slot) parts.push_back(block.Part(slot, 1.0f / 12, 0));
  MergeSlots(block.group, kLayer, {}, parts, block.bytes.data(), 7);
  Vector biases(16);
  for (size_t slot = 0; slot < 12; ++slot) biases[slot] = -INFINITY;
  biases[7] = std::log(12.0f);
  EXPECT_LT(Distance(attend(biases), all), 1e-5);
  biases[7] = 0;
  EXPECT_GT(Distance(attend(biases), all), 1e-2);  // counted once it would be seen
}

}  // namespace
}  // namespace tael::kv
