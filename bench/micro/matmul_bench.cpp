// Matrix products on two pinned threads: bytes of weights per second for one token, where memory
// is the limit, and multiply-accumulates per second for many.
//
//   tael_matmul_bench --benchmark_filter='avx512vnni/Q4_1/.*/1$'
//
// Names are ISA / weight type / rows x k / tokens. A run walks over as many copies of the matrix
// as make a working set that no cache holds. Packing the activations is not part of the time
// (PackAct/... times it).
#include <benchmark/benchmark.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/kernels.h"

namespace tael::kernels {
namespace {

constexpr size_t kWorkingSetBytes = size_t{192} << 20;
constexpr size_t kThreads = 2;

void PinTo(size_t cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
}

// A worker beside the calling thread. Both spin, so a job starts within a microsecond.
class Pair {
 public:
  Pair() : worker_([this] { Work(); }) { PinTo(0); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  ~Pair() {
    stop_ = true;
    worker_.join();
  }

  // Calls job(0) here and job(1) on the worker.
  template <typename Job>
  void Run(const Job& job) {
    context_ = &job;
    call_ = [](const void* context, size_t i) { (*static_cast<const Job*>(context))(i); };
    const uint64_t ticket = ++started_;
    job(0);
    while (finished_.load(std::memory_order_acquire) != ticket) {
    }
  }

 private:
  void Work() {
    PinTo(1);
    for (uint64_t seen = 0; !stop_;) {
      if (started_.load(std::memory_order_acquire) == seen) continue;
      call_(context_, 1);
      finished_.store(++seen, std::memory_order_release);
    }
  }

  const void* context_ = nullptr;
  void (*call_)(const void*, size_t) = nullptr;
  std::atomic<uint64_t> started_{0}, finished_{0};
  std::atomic<bool> stop_{false};
  std::thread worker_;
};

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

// SmolLM2-135M, Gemma-3-270M and Qwen2.5-0.5B layers and heads.
constexpr Case kCases[] = {
    {kQ4_1, 576, 576, 1},     {kQ4_1, 1536, 576, 1},       {kQ4_1, 576, 1536, 1},
    {kQ8_0, 49152, 576, 1},   {kQ8_0, 4864, 896, 1},       {kQ4_0, 4864, 896, 1},
    {kQ4_0, 896, 4864, 1},    {kQ5_0, 2048, 640, 1},       {kQ4_K, 1024, 2048, 1},
    {kQ6_K, 640, 2048, 1},    {kQ4_1, 1536, 576, 4},       {kQ4_1, 1536, 576, 8},
    {kQ4_1, 1536, 576, 16},   {kQ4_1, 1536, 576, 128},     {kQ4_1, 1536, 576, 512},
    {kQ4_1, 576, 1536, 128},  {kQ4_1, 576, 1536, 512},     {kQ8_0, 4864, 896, 8},
    {kQ8_0, 4864, 896, 128},  {kQ8_0, 4864, 896, 512},     {kQ4_0, 4864, 896, 8},
    {kQ4_0, 4864, 896, 128},  {kQ4_0, 4864, 896, 512},     {kQ5_0, 2048, 640, 512},
    {kQ4_K, 1024, 2048, 512}, {kQ6_K, 640, 2048, 512},     {kF16, 1536, 576, 1},
    {kF16, 1536, 576, 128},   {kQ4_1, 1536, 576, 1, true}, {kQ4_1, 1536, 576, 128, true},
};

struct AlignedBytes {
  explicit AlignedBytes(size_t n)
      : data(static_cast<std::byte*>(std::aligned_alloc(64, (n + 127) / 64 * 64))) {}
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  ~AlignedBytes() { std::free(data); }
  std::byte* data;
};

// Any bytes are valid blocks; the top bits of each 16-bit word are kept from forming f16
// infinities, whose arithmetic could be slower.
void FillBlocks(std::byte* p, size_t n) {
  std::mt19937_64 rng(1);
  for (size_t i = 0; i + 8 <= n; i += 8) {
    const uint64_t word = rng() & 0xbfffbfffbfffbfffu;
    __builtin_memcpy(p + i, &word, sizeof word);
  }
}

std::vector<float> Activations(size_t n) {
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

void MatmulBench(benchmark::State& state, const KernelTable& kernels, const Case& c) {
  const MatmulTable& table = kernels.matmul;
  const auto type = static_cast<size_t>(c.type.type);
  const BlockShape shape = kBlockShapes[type];
  const size_t row_bytes = c.k / shape.elements * shape.bytes, bytes = c.rows * row_bytes;
  const size_t copies = kWorkingSetBytes / bytes + 1;
  const AlignedBytes weights(copies * bytes + kWeightSlackBytes);
  FillBlocks(weights.data, copies * bytes);

  const std::vector<float> x = Activations(c.tokens * c.k);
  const ActFormat format = c.f32 ? ActFormat::kF32Rows : table.act_format(c.type.type, c.tokens);
  const AlignedBytes packed(table.act_bytes(format, c.tokens, c.k));
  table.pack_act(format, {x.data(), c.k, 0, c.tokens, c.tokens, c.k, packed.data});

  const auto scratch_bytes = c.f32 ? table.scratch_f32_bytes : table.scratch_bytes;
  const size_t scratch_size = scratch_bytes(c.type.type, c.tokens, c.k);
  const AlignedBytes scratch0(scratch_size), scratch1(scratch_size);
  std::vector<float> y(c.tokens * c.rows);
  const MatmulFn matmul = (c.f32 ? table.matmul_f32 : table.matmul)[type];
  Pair pair;
  size_t copy = 0;
  for (auto _ : state) {
    pair.Run([&](size_t i) {
      const size_t begin = c.rows * i / kThreads, end = c.rows * (i + 1) / kThreads;
      matmul({weights.data + copy * bytes, row_bytes, c.k, begin, end, packed.data, c.tokens,
              y.data(), c.rows, i == 0 ? scratch0.data : scratch1.data});
    });
    copy = (copy + 1) % copies;
  }
  const auto runs = static_cast<double>(state.iterations());
  state.counters["weights"] =
      benchmark::Counter(runs * static_cast<double>(bytes), benchmark::Counter::kIsRate);
  state.counters["mac"] = benchmark::Counter(runs * static_cast<double>(c.rows * c.k * c.tokens),
                                             benchmark::Counter::kIsRate);
}

// One thread, 512 tokens.
void PackBench(benchmark::State& state, const KernelTable& kernels, size_t tokens) {
  const MatmulTable& table = kernels.matmul;
  constexpr size_t kWidth = 896;
  const std::vector<float> x = Activations(tokens * kWidth);
  const ActFormat format = table.act_format(WeightType::kQ4_0, tokens);
  const AlignedBytes packed(table.act_bytes(format, tokens, kWidth));
  for (auto _ : state) {
    table.pack_act(format, {x.data(), kWidth, 0, tokens, tokens, kWidth, packed.data});
    benchmark::ClobberMemory();
  }
  state.counters["values"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * static_cast<double>(tokens * kWidth),
      benchmark::Counter::kIsRate);
}

// All that memory gives: what the one-token figures are to be compared with.
void ReadBench(benchmark::State& state) {
  const size_t words = kWorkingSetBytes / sizeof(uint64_t);
  const std::vector<uint64_t> data(words, 1);
  Pair pair;
  for (auto _ : state) {
    pair.Run([&](size_t i) {
      uint64_t sum[16] = {};
      for (size_t w = words * i / kThreads; w < words * (i + 1) / kThreads; w += 16) {
        for (size_t j = 0; j < 16; ++j) sum[j] += data[w + j];
      }
      for (uint64_t s : sum) benchmark::DoNotOptimize(s);
    });
  }
  state.counters["bytes"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * static_cast<double>(kWorkingSetBytes),
      benchmark::Counter::kIsRate);
}

void RegisterAll() {
  benchmark::RegisterBenchmark("read", ReadBench)->UseRealTime();
  for (const KernelTable* table : Runnable()) {
    for (const size_t tokens : {size_t{1}, size_t{512}}) {
      const std::string name = std::string("PackAct/") + table->isa + "/" + std::to_string(tokens);
      benchmark::RegisterBenchmark(name.c_str(), [table, tokens](benchmark::State& state) {
        PackBench(state, *table, tokens);
      });
    }
    for (const Case& c : kCases) {
      const std::string name = std::string(table->isa) + "/" + c.type.name +
                               (c.f32 ? "xF32/" : "/") + std::to_string(c.rows) + "x" +
                               std::to_string(c.k) + "/" + std::to_string(c.tokens);
      benchmark::RegisterBenchmark(name.c_str(), [table, &c](benchmark::State& state) {
        MatmulBench(state, *table, c);
      })->UseRealTime();
    }
  }
}

}  // namespace
}  // namespace tael::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  tael::kernels::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
