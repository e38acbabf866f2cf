// Attention over paged blocks at decode: scores and values, one KV head per thread.
//
// Names are ISA/attention/PART/TYPE/HEAD_DIMxROWS/CONTEXT/ORDER. A run walks over many layers, so
// keys and values come from memory. ORDER is how the blocks of a sequence lie: in a row, or
// anywhere.
#include <algorithm>
#include <string>
#include <vector>

#include "bench_case.h"
#include "kernels/kernels.h"

namespace tael::bench {
namespace {

using kernels::kBlockTokens;

struct Case {
  bool values;  // else scores
  size_t head_dim, rows, context;
  bool scattered;
};

struct Type {
  kernels::KvType type;
  const char* name;
};
constexpr Type kTypes[] = {
    {kernels::KvType::kF16, "f16"}, {kernels::KvType::kQ8, "q8"}, {kernels::KvType::kQ4, "q4"}};

// Qwen2.5-0.5B (64 dimensions, 7 query heads share a KV head) and 1.5B (128, 6); a tile of a
// prompt has more rows.
constexpr Case kCases[] = {
    {false, 64, 7, 2048, false},  {false, 64, 7, 2048, true},  {true, 64, 7, 2048, false},
    {true, 64, 7, 2048, true},    {false, 128, 6, 2048, true}, {true, 128, 6, 2048, true},
    {false, 64, 112, 2048, true}, {true, 64, 112, 2048, true},
};

// Blocks of many layers for each thread's head, K tile and V tile one after the other. (A type of
// values alone lies behind keys of q8.)
class Blocks {
 public:
  Blocks(const kernels::KernelTable& kernels, kernels::KvType type, const Case& c)
      : k_bytes_(Keys(kernels, type).k_tile_bytes(c.head_dim)),
        v_bytes_(kernels.kv[static_cast<size_t>(type)].v_tile_bytes(c.head_dim)),
        block_bytes_((k_bytes_ + v_bytes_ + 63) / 64 * 64),
        num_per_layer_(c.context / kBlockTokens),
        num_layers_(kWorkingSetBytes / (kThreads * num_per_layer_ * block_bytes_) + 1),
        bytes_(num_layers_ * kThreads * num_per_layer_ * block_bytes_) {
    FillBlocks(bytes_.data(), num_layers_ * kThreads * num_per_layer_ * block_bytes_);
    for (size_t i = 0; i < num_layers_ * kThreads * num_per_layer_; ++i) {
      table_.push_back(bytes_.data() + i * block_bytes_);
    }
    if (c.scattered) std::shuffle(table_.begin(), table_.end(), std::mt19937(3));
  }

  const std::byte* const* Of(size_t layer, size_t thread) const {
    return &table_[(layer * kThreads + thread) * num_per_layer_];
  }
  size_t num_layers() const { return num_layers_; }
  size_t k_bytes() const { return k_bytes_; }
  size_t TileBytes(bool values) const { return values ? v_bytes_ : k_bytes_; }
  size_t num_per_layer() const { return num_per_layer_; }

 private:
  static const kernels::KvTable& Keys(const kernels::KernelTable& kernels, kernels::KvType type) {
    const bool has_keys = type != kernels::KvType::kQ4;
    return kernels.kv[static_cast<size_t>(has_keys ? type : kernels::KvType::kQ8)];
  }

  size_t k_bytes_, v_bytes_, block_bytes_, num_per_layer_, num_layers_;
  AlignedBytes bytes_;
  std::vector<const std::byte*> table_;
};

void Attention(benchmark::State& state, Bench& bench, const kernels::KernelTable& kernels,
               kernels::KvType type, const Case& c) {
  const kernels::KvTable& table = kernels.kv[static_cast<size_t>(type)];
  const Blocks blocks(kernels, type, c);
  std::vector<float> q = NormalValues(c.rows * c.head_dim);
  for (size_t r = 0; r < c.rows && table.pack_q != nullptr; ++r) {
    const std::vector<float> row(q.begin() + static_cast<std::ptrdiff_t>(r * c.head_dim),
                                 q.begin() + static_cast<std::ptrdiff_t>((r + 1) * c.head_dim));
    table.pack_q(row.data(), c.head_dim, &q[r * c.head_dim]);
  }
  const size_t row_floats = (c.context + 15) / 16 * 16;
  std::vector<float> scores(kThreads * c.rows * row_floats, 1.0f / static_cast<float>(c.context));
  std::vector<float> out(kThreads * c.rows * c.head_dim);
  const auto attend = c.values ? table.values : table.scores;
  bench.Begin();
  size_t layer = 0;
  for (auto _ : state) {
    bench.team().Run([&](size_t i) {
      kernels::AttendCall call{};
      call.blocks = blocks.Of(layer, i);
      call.tile_offset = c.values ? blocks.k_bytes() : 0;
      call.num_tokens = c.context;
      call.head_dim = c.head_dim;
      call.num_rows = c.rows;
      call.q = q.data();
      call.q_stride = c.head_dim;
      call.scores = &scores[i * c.rows * row_floats];
      call.score_stride = row_floats;
      call.out = &out[i * c.rows * c.head_dim];
      call.out_stride = c.head_dim;
      attend(call);
    });
    layer = (layer + 1) % blocks.num_layers();
  }
  bench.End(state, {.bytes = kThreads * blocks.num_per_layer() * blocks.TileBytes(c.values),
                    .macs = kThreads * c.context * c.rows * c.head_dim});
}

}  // namespace

void RegisterAttention(Bench& bench) {
  for (const kernels::KernelTable* table : kernels::Runnable()) {
    for (const Type& type : kTypes) {
      for (const Case& c : kCases) {
        if (!c.values && type.type == kernels::KvType::kQ4) continue;
        const std::string name =
            std::string(table->isa) + "/attention/" + (c.values ? "values/" : "scores/") +
            type.name + "/" + std::to_string(c.head_dim) + "x" + std::to_string(c.rows) + "/" +
            std::to_string(c.context) + (c.scattered ? "/scattered" : "/in_a_row");
        const auto run = [&bench, table, &type, &c](benchmark::State& state) {
          Attention(state, bench, *table, type.type, c);
        };
        benchmark::RegisterBenchmark(name.c_str(), run)->UseRealTime();
      }
    }
  }
}

}  // namespace tael::bench
