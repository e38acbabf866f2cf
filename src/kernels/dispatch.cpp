#include <array>
#include <cstdlib>
#include <cstring>

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace tael::kernels {

// Defined in isa/: each file exports nothing else.
extern const MatmulTable kScalarMatmul;
extern const VectorTable kScalarVector;
extern const KvTable kScalarKv[kNumFloatKvTypes];
extern const KvTable kScalarQuantisedKv[kNumQuantisedKvTypes];
#if defined(__x86_64__)
extern const MatmulTable kAvx2Matmul;
extern const VectorTable kAvx2Vector;
extern const KvTable kAvx2Kv[kNumFloatKvTypes];
extern const KvTable kAvx2QuantisedKv[kNumQuantisedKvTypes];
extern const MatmulTable kAvx512Matmul;
extern const VectorTable kAvx512Vector;
extern const KvTable kAvx512Kv[kNumFloatKvTypes];
extern const KvTable kAvx512QuantisedKv[kNumQuantisedKvTypes];
#elif defined(__aarch64__)
extern const MatmulTable kNeonMatmul;
extern const VectorTable kNeonVector;
extern const KvTable kNeonKv[kNumFloatKvTypes];
extern const KvTable kNeonQuantisedKv[kNumQuantisedKvTypes];
extern const MatmulTable kDotprodMatmul;
extern const KvTable kDotprodQuantisedKv[kNumQuantisedKvTypes];
extern const MatmulTable kI8mmMatmul;
#endif

namespace {

constexpr size_t kMaxTables = 4;

#if defined(__x86_64__)
// clang 14 does not know "f16c" in __builtin_cpu_supports. CPUID leaf 1, ECX bit 29; whether the
// system saves the registers is part of the answer for "avx2".
bool HasF16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

struct Runnables {
  std::array<KernelTable, kMaxTables> tables{};
  std::array<const KernelTable*, kMaxTables> list{};
  size_t count = 0;

  Runnables() {
    Add("scalar", true, kScalarMatmul, kScalarVector, kScalarKv, kScalarQuantisedKv);
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
    Add("avx2", avx2, kAvx2Matmul, kAvx2Vector, kAvx2Kv, kAvx2QuantisedKv);
    const bool avx512 =
        avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
    Add("avx512vnni", avx512, kAvx512Matmul, kAvx512Vector, kAvx512Kv, kAvx512QuantisedKv);
#elif defined(__aarch64__)
    Add("neon", true, kNeonMatmul, kNeonVector, kNeonKv, kNeonQuantisedKv);
#if defined(__linux__)
    const bool dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
    Add("dotprod", dotprod, kDotprodMatmul, kNeonVector, kNeonKv, kDotprodQuantisedKv);
    const bool i8mm = dotprod && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
    Add("i8mm", i8mm, kI8mmMatmul, kNeonVector, kNeonKv, kDotprodQuantisedKv);
#endif
#endif
  }

  void Add(const char* isa, bool supported, const MatmulTable& matmul, const VectorTable& vec,
           const KvTable* kv, const KvTable* quantised_kv) {
    if (!supported) return;
    KernelTable& table = tables[count];
    table.isa = isa;
    table.matmul = matmul;
    table.vec = vec;
    for (size_t i = 0; i < kNumFloatKvTypes; ++i) table.kv[i] = kv[i];
    for (size_t i = 0; i < kNumQuantisedKvTypes; ++i)
      table.kv[kNumFloatKvTypes + i] = quantised_kv[i];
    list[count++] = &table;
  }
};

const Runnables& All() {
  static const Runnables all;  // thread-safe by C++11; no work after the first call
  return all;
}

const KernelTable* Forced() {
  const char* wanted = std::getenv("TAEL_FORCE_ISA");
  if (wanted == nullptr) return nullptr;
  for (const KernelTable* table : Runnable()) {
    if (std::strcmp(table->isa, wanted) == 0) return table;
  }
  return nullptr;
}

}  // namespace

TableList Runnable() { return {All().list.data(), All().count}; }

size_t MaxExactTokens(const MatmulTable& table) {
  constexpr size_t kEnough = 64;  // nobody drafts more
  for (size_t n = 2; n <= kEnough; ++n) {
    for (size_t i = 0; i < kNumWeightTypes; ++i) {
      const auto type = static_cast<WeightType>(i);
      if (table.matmul[i] != nullptr && table.act_format(type, n) != table.act_format(type, 1)) {
        return n - 1;
      }
    }
  }
  return kEnough;
}

bool ForcedIsaIsMissing() {
  return std::getenv("TAEL_FORCE_ISA") != nullptr && Forced() == nullptr;
}

const KernelTable& Active() {
  static const KernelTable& chosen = []() -> const KernelTable& {
    const KernelTable* forced = Forced();
    return forced != nullptr ? *forced : *All().list[All().count - 1];
  }();
  return chosen;
}

}  // namespace tael::kernels
