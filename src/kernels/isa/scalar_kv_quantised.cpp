// Quantised keys and values in plain C++: the definition of correct for every ISA. Layouts and
// what the types mean: KvType in kernels.h.
//
// Scales, integers, packed queries and scores have to come out the same to the bit on every ISA.
#include "kernels/isa/exact_scales.h"
#include "kernels/isa/quantised_tiles.h"
#include "kernels/isa/scalar_rows.h"
#include "kernels/kernels.h"

namespace tael::kernels {
namespace {

// The value of an f16 scale.
float HalfAt(const std::byte* p) { return LoadHalf(reinterpret_cast<const uint8_t*>(p)); }

// A NaN is not lost while it comes last; after a rotation a vector holds nothing else.
float MaxAbs(const float* x, size_t n) {
  float most = 0.0f;
  for (size_t i = 0; i < n; ++i) {
    const float magnitude = __builtin_fabsf(x[i]);
    if (!(magnitude <= most)) most = magnitude;
  }
  return most;
}

// x within [least, most]; a NaN becomes `most`.
float Bounded(float x, float least, float most) {
  const float capped = x < most ? x : most;
  return capped > least ? capped : least;
}

// To the nearest whole number, of two the even one. |x| < 2^22.
int Rounded(float x) {
  constexpr float kWhole = 12582912.0f;  // 1.5 * 2^23: from here on floats are whole numbers
  return static_cast<int>((x + kWhole) - kWhole);
}

void PackQ(const float* q, size_t head_dim, float* out) {
  auto* bytes = reinterpret_cast<int8_t*>(out);
  const float most = MaxAbs(q, head_dim);
  const bool any = !(most < kLeastActivation);
  const float factor = any ? 127.0f / most : 0.0f;
  QueryTail tail{any ? most / 127.0f : 0.0f, 0, 0};
  for (size_t d = 0; d < head_dim; ++d) {
    const float scaled = any ? Bounded(q[d] * factor, -127.0f, 127.0f) : 0.0f;
    const int coarse = Rounded(scaled);
    const int fine = Rounded((scaled - static_cast<float>(coarse)) * 128.0f);
    bytes[d] = static_cast<int8_t>(coarse);
    bytes[head_dim + d] = static_cast<int8_t>(fine);
    tail.sum += coarse;
    tail.fine_sum += fine;
  }
  __builtin_memcpy(bytes + 2 * head_dim, &tail, sizeof tail);
}

// Byte of dimension d of a key.
size_t KeyByte(size_t d, size_t slot) { return (d / 4 * kBlockTokens + slot) * 4 + d % 4; }

void StoreQ8K(const float* k, size_t head_dim, size_t slot, std::byte* tile) {
  const F16Scale scale = ScaleAbove(MaxAbs(k, head_dim) / 127.0f);
  for (size_t d = 0; d < head_dim; ++d) {
    const int q = Rounded(Bounded(k[d] * scale.inverse, -127.0f, 127.0f));
    tile[KeyByte(d, slot)] = static_cast<std::byte>(q);
  }
  __builtin_memcpy(tile + kBlockTokens * head_dim + slot * 2, &scale.half, 2);
}

void StoreQ8V(const float* v, size_t head_dim, size_t slot, std::byte* tile) {
  const F16Scale scale = ScaleAbove(MaxAbs(v, head_dim) / 127.0f);
  for (size_t d = 0; d < head_dim; ++d) {
    const int q = Rounded(Bounded(v[d] * scale.inverse, -127.0f, 127.0f));
    tile[kScaleBytes + slot * head_dim + d] = static_cast<std::byte>(q);
  }
  __builtin_memcpy(tile + slot * 2, &scale.half, 2);
}

// The scale takes the value of the largest magnitude to -8, the one number that has no opposite.
void StoreQ4Group(const float* v, std::byte* scale_out, std::byte* out) {
  float most = v[0], least = v[0];
  for (size_t i = 1; i < kQ4Group; ++i) {
    most = v[i] < most ? most : v[i];
    least = v[i] > least ? least : v[i];
  }
  const float high = most, low = 0.0f - least;
  const F16Scale step = ScaleAbove((high >= low ? high : low) / 8.0f);
  const float factor = high >= low ? -step.inverse : step.inverse;
  const auto half = static_cast<uint16_t>(step.half | (high >= low ? 0x8000u : 0u));
  __builtin_memcpy(scale_out, &half, sizeof half);
  for (size_t i = 0; i < kQ4Group / 2; ++i) {
    const int first = Rounded(Bounded(v[i] * factor, -8.0f, 7.0f)) + 8;
    const int second = Rounded(Bounded(v[i + kQ4Group / 2] * factor, -8.0f, 7.0f)) + 8;
    out[i] = static_cast<std::byte>(first | second << 4);
  }
}

void StoreQ4V(const float* v, size_t head_dim, size_t slot, std::byte* tile) {
  const size_t num_groups = head_dim / kQ4Group;
  std::byte* row = tile + num_groups * kScaleBytes + slot * head_dim / 2;
  for (size_t g = 0; g < num_groups; ++g) {
    StoreQ4Group(v + g * kQ4Group, tile + g * kScaleBytes + slot * 2, row + g * kQ4Group / 2);
  }
}

template <bool kExact>
void Scores(const AttendCall& call) {
  const size_t dim = call.head_dim;
  for (size_t t = 0; t < call.num_tokens; ++t) {
    const std::byte* tile = call.blocks[t / kBlockTokens] + call.tile_offset;
    const size_t slot = t % kBlockTokens;
    const float scale = HalfAt(tile + kBlockTokens * dim + slot * 2);
    for (size_t r = 0; r < call.num_rows; ++r) {
      const auto* q = reinterpret_cast<const int8_t*>(call.q + r * call.q_stride);
      int32_t sum = 0;
      for (size_t d = 0; d < dim; ++d) {
        const int whole = kExact ? q[d] * 128 + q[dim + d] : q[d];
        sum += whole * static_cast<int8_t>(tile[KeyByte(d, slot)]);
      }
      QueryTail tail;
      __builtin_memcpy(&tail, q + 2 * dim, sizeof tail);
      const float q_scale = tail.scale * (kExact ? 0x1p-7f : 1.0f);
      call.scores[r * call.score_stride + t] = static_cast<float>(sum) * (scale * q_scale);
    }
  }
}

struct Q8Value {
  static float At(const std::byte* tile, size_t head_dim, size_t slot, size_t d, float weight) {
    const auto q = static_cast<int8_t>(tile[kScaleBytes + slot * head_dim + d]);
    return weight * HalfAt(tile + slot * 2) * static_cast<float>(q);
  }
};

struct Q4Value {
  static float At(const std::byte* tile, size_t head_dim, size_t slot, size_t d, float weight) {
    const size_t group = d / kQ4Group, i = d % kQ4Group;
    const std::byte* row = tile + head_dim / kQ4Group * kScaleBytes + slot * head_dim / 2;
    const auto both = static_cast<unsigned>(row[group * kQ4Group / 2 + i % (kQ4Group / 2)]);
    const unsigned half = i < kQ4Group / 2 ? both & 15u : both >> 4;
    const float scale = HalfAt(tile + group * kScaleBytes + slot * 2);
    return weight * scale * static_cast<float>(static_cast<int>(half) - 8);
  }
};

template <typename Kind>
void Values(const AttendCall& call) {
  for (size_t t = 0; t < call.num_tokens; ++t) {
    const std::byte* tile = call.blocks[t / kBlockTokens] + call.tile_offset;
    for (size_t r = 0; r < call.num_rows; ++r) {
      const float weight = call.scores[r * call.score_stride + t];
      float* out = call.out + r * call.out_stride;
      for (size_t d = 0; d < call.head_dim; ++d) {
        out[d] += Kind::At(tile, call.head_dim, t % kBlockTokens, d, weight);
      }
    }
  }
}

}  // namespace

extern const KvTable kScalarQuantisedKv[kNumQuantisedKvTypes];
const KvTable kScalarQuantisedKv[kNumQuantisedKvTypes] = {{.k_tile_bytes = Q8TileBytes,
                                                           .v_tile_bytes = Q8TileBytes,
                                                           .pack_q = PackQ,
                                                           .store_k = StoreQ8K,
                                                           .store_v = StoreQ8V,
                                                           .scores = Scores<false>,
                                                           .exact_scores = Scores<true>,
                                                           .values = Values<Q8Value>},
                                                          {.k_tile_bytes = nullptr,
                                                           .v_tile_bytes = Q4TileBytes,
                                                           .pack_q = nullptr,
                                                           .store_k = nullptr,
                                                           .store_v = StoreQ4V,
                                                           .scores = nullptr,
                                                           .exact_scores = nullptr,
                                                           .values = Values<Q4Value>}};

}  // namespace tael::kernels
