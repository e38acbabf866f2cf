// Matrix products: bytes of weights per second, where memory is the limit (few tokens), and
// multiply-accumulates per second, where the core is (many).
//
// Names are ISA/matmul/TYPE/ROWSxK/TOKENS; xF32 is the product with f32 activations. Packing the
// activations is not part of the time (pack_act times it).
#include <string>
#include <vector>

#include "bench_case.h"
#include "kernels/kernels.h"

namespace tael::bench {
namespace {

using kernels::ActFormat;
using kernels::WeightType;

struct Named {
  WeightType type;
  const char* name;
};
constexpr Named kQ4_0{WeightType::kQ4_0, "Q4_0"}, kQ4_1{WeightType::kQ4_1, "Q4_1"},
    kQ5_0{WeightType::kQ5_0, "Q5_0"}, kQ8_0{WeightType::kQ8_0, "Q8_0"},
    kQ4_K{WeightType::kQ4_K, "Q4_K"}, kQ6_K{WeightType::kQ6_K, "Q6_K"},
    kF16{WeightType::kF16, "F16"};

struct Case {
  Named type;
  size_t rows, k, tokens;
  bool f32 = false;  // the product with f32 activations
};

// Every type at every number of tokens at which a kernel changes.
constexpr size_t kTokens[] = {1, 4, 8, 16, 128, 256, 512};

struct Matrix {
  Named type;
  size_t rows, k;
};
// Up projections of Qwen2.5-0.5B and, for types of 256 values a block, of something like it.
constexpr Matrix kMatrices[] = {{kQ4_0, 4864, 896}, {kQ4_1, 4864, 896},  {kQ5_0, 4864, 896},
                                {kQ8_0, 4864, 896}, {kQ4_K, 4864, 1024}, {kQ6_K, 4864, 1024},
                                {kF16, 4864, 896}};

// Shapes that are hard in their own way: tiny and long rows, a head, Gemma-3's narrow layers.
constexpr Case kOdd[] = {
    {kQ4_1, 576, 576, 1},          {kQ4_1, 1536, 576, 1},   {kQ4_1, 576, 1536, 1},
    {kQ8_0, 49152, 576, 1},        {kQ4_0, 896, 4864, 1},   {kQ4_0, 896, 4864, 512},
    {kQ5_0, 2048, 640, 1},         {kQ5_0, 2048, 640, 512}, {kQ4_1, 576, 1536, 512},
    {kQ4_0, 8960, 1536, 512},      {kQ6_K, 640, 2048, 1},   {kQ4_1, 1536, 576, 1, true},
    {kQ4_1, 1536, 576, 128, true},
};

void Matmul(benchmark::State& state, Bench& bench, const kernels::MatmulTable& table,
            const Case& c) {
  const auto type = static_cast<size_t>(c.type.type);
  const kernels::BlockShape shape = kernels::kBlockShapes[type];
  const size_t row_bytes = c.k / shape.elements * shape.bytes, bytes = c.rows * row_bytes;
  const size_t copies = kWorkingSetBytes / bytes + 1;
  const AlignedBytes weights(copies * bytes + kernels::kWeightSlackBytes);
  FillBlocks(weights.data(), copies * bytes);

  const std::vector<float> x = NormalValues(c.tokens * c.k);
  const ActFormat format = c.f32 ? ActFormat::kF32Rows : table.act_format(c.type.type, c.tokens);
  const AlignedBytes packed(table.act_bytes(format, c.tokens, c.k));
  table.pack_act(format, {x.data(), c.k, 0, c.tokens, c.tokens, c.k, packed.data()});

  const auto scratch_bytes = c.f32 ? table.scratch_f32_bytes : table.scratch_bytes;
  const size_t scratch_size = (scratch_bytes(c.type.type, c.tokens, c.k) + 63) / 64 * 64;
  const AlignedBytes scratch(kThreads * scratch_size);
  std::vector<float> y(c.tokens * c.rows);
  const kernels::MatmulFn matmul = (c.f32 ? table.matmul_f32 : table.matmul)[type];
  bench.Begin();
  size_t copy = 0;
  for (auto _ : state) {
    bench.team().Run([&](size_t i) {
      const size_t begin = c.rows * i / kThreads, end = c.rows * (i + 1) / kThreads;
      matmul({weights.data() + copy * bytes, row_bytes, c.k, begin, end, packed.data(), c.tokens,
              y.data(), c.rows, scratch.data() + i * scratch_size});
    });
    copy = (copy + 1) % copies;
  }
  bench.End(state, {.bytes = bytes, .macs = c.rows * c.k * c.tokens});
}

void Register(Bench& bench, const kernels::KernelTable& table, const Case& c) {
  const std::string name = std::string(table.isa) + "/matmul/" + c.type.name +
                           (c.f32 ? "xF32/" : "/") + std::to_string(c.rows) + "x" +
                           std::to_string(c.k) + "/" + std::to_string(c.tokens);
  benchmark::RegisterBenchmark(name.c_str(), [&bench, &table, c](benchmark::State& state) {
    Matmul(state, bench, table.matmul, c);
  })->UseRealTime();
}

}  // namespace

void RegisterMatmul(Bench& bench) {
  for (const kernels::KernelTable* table : kernels::Runnable()) {
    for (const Matrix& m : kMatrices) {
      for (const size_t tokens : kTokens) Register(bench, *table, {m.type, m.rows, m.k, tokens});
    }
    for (const Case& c : kOdd) Register(bench, *table, c);
  }
}

}  // namespace tael::bench
