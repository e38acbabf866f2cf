// The seam between engine code and per-ISA code: tables of plain functions.
//
// A file in isa/ is compiled with its own -m flags. It includes this header, an intrinsics header,
// the C++ headers that define no inline functions it could emit (<cstddef>, <cstdint>), and private
// headers of its own ISA whose functions are all `static`; nothing else: an inline function of a
// shared header could be emitted with AVX-512 inside and be the copy the linker keeps for the whole
// program. tools/check-isa-objects proves that each object exports only its tables.
//
// Layouts that cross this seam:
//   weights      the rows of the GGUF tensor as they lie in the file: [num_rows, k], row-major
//   activations  packed by pack_act() into a form that is private to the ISA (ActFormat)
//   K tile       [head_dim][16 tokens]   one KV head, one layer, one block: a vector of 16 lanes
//   V tile       [16 tokens][head_dim]   holds one dimension of all 16 keys, so q.K needs no
//                                        horizontal sums (quantised tiles: see KvType)
// All functions may be called from any thread; none allocates or keeps state.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tael::kernels {

// Values are those of the GGUF format, so that a tensor's type is one index into a table.
enum class WeightType : uint8_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
};
inline constexpr size_t kNumWeightTypes = 31;  // size of a table indexed by WeightType

// Elements and bytes of one quantisation block; {0, 0} for ids that are no WeightType.
struct BlockShape {
  uint16_t elements;
  uint16_t bytes;
};
inline constexpr BlockShape kBlockShapes[kNumWeightTypes] = {
    {1, 4},   {1, 2}, {32, 18},  {32, 20},   {0, 0},     {0, 0},     {32, 22},   {32, 24},
    {32, 34}, {0, 0}, {256, 84}, {256, 110}, {256, 144}, {256, 176}, {256, 210}, {0, 0},
    {0, 0},   {0, 0}, {0, 0},    {0, 0},     {32, 18},   {0, 0},     {0, 0},     {256, 136},
    {0, 0},   {0, 0}, {0, 0},    {0, 0},     {0, 0},     {0, 0},     {1, 2},
};

// Vector loads may reach this far past the last row they were given. Callers make sure the bytes
// are readable (mem::Mapping pads the file with a readable page).
inline constexpr size_t kWeightSlackBytes = 64;

// 32 activations of which none is as large pack to zeros: their scale would be subnormal.
inline constexpr float kLeastActivation = 1e-30f;

inline constexpr size_t kBlockTokens = 16;
inline constexpr size_t kCacheLine = 64;

// Opaque: how pack_act() lays activations out. Format 0 is always plain f32 rows [tokens][k],
// which need no packing: the activations themselves are passed.
enum class ActFormat : uint8_t { kF32Rows = 0 };

struct PackCall {
  const float* x;      // [num_tokens][x_stride], k values used of each row
  size_t x_stride;     // in floats
  size_t token_begin;  // tokens to pack in this call: token_begin is a multiple of
  size_t token_end;    //   act_tile_tokens(); token_end too, or it is num_tokens
  size_t num_tokens;   // of the whole matrix
  size_t k;            // multiple of 32
  std::byte* out;      // start of the whole packed matrix, 64-byte aligned
};

struct MatmulCall {
  const std::byte* w;  // row 0 of the matrix
  size_t row_bytes;
  size_t k;  // columns; a multiple of the type's block
  size_t row_begin;
  size_t row_end;
  const std::byte* act;  // packed for (type, num_tokens); f32 rows for kF32Rows
  size_t num_tokens;     // >= 1
  float* y;              // y[token * y_stride + row] = sum_k w[row][k] * x[token][k]
  size_t y_stride;
  std::byte* scratch;  // scratch_bytes(), 64-byte aligned, private to the calling thread
};

using MatmulFn = void (*)(const MatmulCall&);
using DequantizeRowFn = void (*)(const std::byte* row, size_t k, float* out);

// Matrix products. One unit per ISA: formats, packing and kernels belong together.
// The value of y[token][row] depends neither on row_begin/row_end nor on the other tokens, as long
// as act_format(type, num_tokens) stays the same: results do not depend on the number of threads.
struct MatmulTable {
  ActFormat (*act_format)(WeightType type, size_t num_tokens);
  size_t (*act_tile_tokens)(ActFormat format);  // granule of PackCall ranges
  size_t (*act_bytes)(ActFormat format, size_t num_tokens, size_t k);
  // Symmetric int8, one scale per 32 values: d = max|x| / 127, q = x * (127 / max|x|) rounded to
  // nearest even; zeros where max|x| < kLeastActivation.
  void (*pack_act)(ActFormat format, const PackCall& call);
  size_t (*scratch_bytes)(WeightType type, size_t num_tokens, size_t k);
  MatmulFn matmul[kNumWeightTypes];  // null for ids that are no WeightType
  // The same product with f32 activations (rows [num_tokens][k]) and weights dequantised to f32
  // on the fly: `--compute reference`.
  MatmulFn matmul_f32[kNumWeightTypes];
  size_t (*scratch_f32_bytes)(WeightType type, size_t num_tokens, size_t k);
  DequantizeRowFn dequantize_row[kNumWeightTypes];
};

// How many tokens may share one call and still get, each of them, the bits that it would get alone:
// the most for which act_format() is that of one token, whatever the type. At least 1.
size_t MaxExactTokens(const MatmulTable& table);

// Element-wise work on f32 vectors. n need not be a multiple of anything.
struct VectorTable {
  // out = x / sqrt(mean(x^2) + eps) * weight. `out` may be `x`.
  void (*rms_norm)(const float* x, const float* weight, float eps, size_t n, float* out);
  void (*add)(float* x, const float* y, size_t n);  // x += y
  void (*scale)(float* x, float factor, size_t n);  // x *= factor
  // Rotates the first 2 * half values of one head in place by cos/sin[half].
  void (*rope_halves)(float* x, const float* cos, const float* sin, size_t half);  // (i, i + half)
  void (*rope_pairs)(float* x, const float* cos, const float* sin, size_t half);   // (2i, 2i + 1)
  void (*silu_mul)(const float* gate, const float* up, size_t n, float* out);
  // GELU in its tanh form (Gemma). `out` may be `gate` or `up`.
  void (*gelu_mul)(const float* gate, const float* up, size_t n, float* out);
  void (*softcap)(float* x, float cap, size_t n);  // x = cap * tanh(x / cap)
  float (*max)(const float* x, size_t n);          // n >= 1
  // x = exp(x - max); returns the sum. exp(-inf) is 0.
  float (*exp_sum)(float* x, float max, size_t n);
  // Walsh-Hadamard transform in place of runs of the largest power of two that divides n (n is a
  // multiple of 8), scaled by the root of a run's length: orthonormal, and its own inverse. It
  // spreads one huge value over all of a run, so that a run can share one scale. The same bits on
  // every ISA.
  void (*hadamard)(float* x, size_t n);
};

// How the cache stores keys or values. Tiles of the quantised types (f16 scales; the same bits on
// every ISA; vectors are to be rotated by VectorTable::hadamard before they come and after):
//
//   q8, keys     int8 [head_dim/4][16 tokens][4], then scales [16]
//   q8, values   scales [16], then int8 [16 tokens][head_dim]
//   q4, values   scales [head_dim/32][16], then [16 tokens][head_dim/2] bytes: byte j of the 16 for
//                32 dimensions holds dimension j in its low half and 16 + j in its high one, each
//                as a number from 0 to 15 that stands for (number - 8) times the scale
//
// The scales of keys and those of values meet in the middle, so that both runs of integers begin at
// a cache line.
enum class KvType : uint8_t {
  kF32 = 0,
  kF16 = 1,
  kQ8 = 2,  // one scale per vector: the least f16 that keeps it within +-127
  kQ4 = 3,  // values only; head_dim is a multiple of 32, which share a scale
};
inline constexpr size_t kNumKvTypes = 4;
inline constexpr size_t kNumFloatKvTypes = 2;
inline constexpr size_t kNumQuantisedKvTypes = 2;
inline constexpr size_t kQ4Group = 32;

constexpr bool IsQuantised(KvType type) { return static_cast<size_t>(type) >= kNumFloatKvTypes; }

// Of keys and of values.
struct KvTypes {
  KvType k;
  KvType v;
  constexpr KvTypes(KvType both) : k(both), v(both) {}  // one type is what most code means
  constexpr KvTypes(KvType keys, KvType values) : k(keys), v(values) {}
  bool operator==(const KvTypes&) const = default;
};

// Floats between two queries that pack_q() made.
constexpr size_t PackedQueryFloats(size_t head_dim) { return 2 * head_dim / sizeof(float) + 4; }

struct AttendCall {
  const std::byte* const* blocks;  // base address of each block, in order of tokens
  size_t tile_offset;              // from a block's base to the K (or V) tile of layer and KV head
  size_t num_tokens;               // keys to look at; the last block may be partly filled
  size_t head_dim;                 // multiple of 8
  size_t num_rows;                 // query rows that share these keys (a GQA group, or a tile)
  const float* q;                  // [num_rows][q_stride], already scaled, and packed where the
  size_t q_stride;                 //   type has a pack_q (scores)
  float* scores;  // [num_rows][score_stride], score_stride >= num_tokens rounded up to 16
  size_t score_stride;
  float* out;  // [num_rows][out_stride] (values)
  size_t out_stride;
};

// One table per KV storage type. kQ4 has no functions for keys: they are null.
struct KvTable {
  size_t (*k_tile_bytes)(size_t head_dim);
  size_t (*v_tile_bytes)(size_t head_dim);
  // Null where scores() takes f32 rows. A query becomes symmetric int8 with one scale: q =
  // x * (127 / max|x|) rounded to nearest even, zeros where max|x| < kLeastActivation; and, for
  // exact_scores(), what was rounded off in steps of 1/128. PackedQueryFloats() floats at `out`.
  void (*pack_q)(const float* q, size_t head_dim, float* out);
  // Stores one key or value vector of one head into slot 0..15 of a tile. Scales and f16 saturate.
  void (*store_k)(const float* k, size_t head_dim, size_t slot, std::byte* tile);
  void (*store_v)(const float* v, size_t head_dim, size_t slot, std::byte* tile);
  // scores[r][t] = q[r] . K[t], t < num_tokens; slots past the end get arbitrary finite or
  // non-finite values (they may hold anything) and must not be read.
  void (*scores)(const AttendCall& call);
  // The same with 15 bits of a packed query instead of 8; null where there is no pack_q.
  void (*exact_scores)(const AttendCall& call);
  // out[r] += sum_t scores[r][t] * V[t], t < num_tokens only: a stale slot never enters.
  void (*values)(const AttendCall& call);
};

struct KernelTable {
  const char* isa;
  MatmulTable matmul;
  VectorTable vec;
  KvTable kv[kNumKvTypes];
};

// Best table that this CPU can run. Chosen once, on first use; TAEL_FORCE_ISA=scalar (or avx2, ...)
// overrides the choice so that a bug report can be bisected. A name that is unknown or that this
// CPU cannot run falls back to the best table; ForcedIsaIsMissing() tells.
const KernelTable& Active();
bool ForcedIsaIsMissing();

// Every table that this CPU can run, scalar first, best last. For tests and benchmarks.
struct TableList {
  const KernelTable* const* data;
  size_t size;
  const KernelTable* const* begin() const { return data; }
  const KernelTable* const* end() const { return data + size; }
};
TableList Runnable();

}  // namespace tael::kernels
