// What lies between the matrix products: packing activations, and RMSNorm. One thread; the data is
// in the cache, as it is when a model runs, so the share of the read loop may be above 1.
#include <string>
#include <vector>

#include "bench_case.h"
#include "kernels/kernels.h"

namespace tael::bench {
namespace {

using kernels::ActFormat;

constexpr size_t kWidths[] = {896, 4864};
constexpr size_t kTokens[] = {1, 16, 512};

void PackAct(benchmark::State& state, Bench& bench, const kernels::MatmulTable& table,
             size_t tokens, size_t width) {
  const std::vector<float> x = NormalValues(tokens * width);
  const ActFormat format = table.act_format(kernels::WeightType::kQ4_0, tokens);
  const AlignedBytes packed(table.act_bytes(format, tokens, width));
  bench.Begin();
  for (auto _ : state) {
    table.pack_act(format, {x.data(), width, 0, tokens, tokens, width, packed.data()});
    benchmark::ClobberMemory();
  }
  bench.End(state, {.bytes = tokens * width * sizeof(float)});
}

void RmsNorm(benchmark::State& state, Bench& bench, const kernels::VectorTable& table,
             size_t width) {
  const std::vector<float> x = NormalValues(width), weight = NormalValues(width);
  std::vector<float> out(width);
  bench.Begin();
  for (auto _ : state) {
    table.rms_norm(x.data(), weight.data(), 1e-6f, width, out.data());
    benchmark::ClobberMemory();
  }
  bench.End(state, {.bytes = 2 * width * sizeof(float)});
}

}  // namespace

void RegisterVector(Bench& bench) {
  for (const kernels::KernelTable* table : kernels::Runnable()) {
    const std::string isa = table->isa;
    for (const size_t width : kWidths) {
      for (const size_t tokens : kTokens) {
        const std::string name =
            isa + "/pack_act/" + std::to_string(width) + "/" + std::to_string(tokens);
        benchmark::RegisterBenchmark(name.c_str(),
                                     [&bench, table, tokens, width](benchmark::State& state) {
                                       PackAct(state, bench, table->matmul, tokens, width);
                                     });
      }
      benchmark::RegisterBenchmark((isa + "/rms_norm/" + std::to_string(width)).c_str(),
                                   [&bench, table, width](benchmark::State& state) {
                                     RmsNorm(state, bench, table->vec, width);
                                   });
    }
  }
}

}  // namespace tael::bench
