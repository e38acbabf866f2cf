// Every kernel beside what the machine can do. Two pinned threads.
//
//   tael_kernels_bench --benchmark_filter='avx512vnni/matmul/Q4_0/.*/1$'
//
// `of_read` and `of_int8` are shares (1 is all) of a read loop and of a loop of int8 dot products
// in registers, measured just before, with the same threads.
#include <benchmark/benchmark.h>

#include "bench_case.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  tael::bench::Bench bench;
  tael::bench::RegisterMatmul(bench);
  tael::bench::RegisterAttention(bench);
  tael::bench::RegisterVector(bench);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
