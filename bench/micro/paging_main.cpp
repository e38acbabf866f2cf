// What paging costs attention: the same kernels over the blocks of a well-used pool and over one
// contiguous buffer, in alternating pairs, as one JSON object for bench/compare.
//
//   tael_paging [PAIRS]      default: 600
//
// The KV is that of Qwen2.5-0.5B (24 layers, 2 heads of 64 dimensions, 7 query heads share one) at
// 2,048 tokens, decoding one token; each of two threads takes a KV head. The pool has seen a
// million blocks allocated and freed in random order before the sequence under test gets its own.
// Between two passes other memory is read, as weights are between two steps, so KV comes from
// memory.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/kernels.h"
#include "kv/block_pool.h"
#include "kv/layer_group.h"
#include "kv/sequence.h"
#include "mem/mapping.h"
#include "mem/memory_budget.h"
#include "pinned_team.h"

namespace tael::bench {
namespace {

constexpr uint32_t kLayers = 24, kHeads = 2, kHeadDim = 64, kRows = 7, kContext = 2048;
constexpr uint32_t kPieceTokens = 128;  // as exec::Attend works a context off
constexpr size_t kPieceBlocks = kPieceTokens / kernels::kBlockTokens;
constexpr uint64_t kPoolBytes = uint64_t{256} << 20;
constexpr size_t kEvictBytes = size_t{128} << 20;  // four times the largest L3 in sight
constexpr uint64_t kChurnBlocks = 1'000'000;

double NowMicroseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "paging: %s\n", what);
  std::exit(1);
}

// Sequences of random lengths grow, shrink and end until a million blocks have come and gone. Those
// that are left hold about two thirds of the pool.
std::vector<kv::Sequence> Churn(const kv::Geometry& geometry, kv::BlockPool& pool) {
  std::mt19937 random(5);
  const auto below = [&random](size_t n) { return static_cast<uint32_t>(random() % n); };
  std::vector<kv::Sequence> sequences;
  for (int i = 0; i < 128; ++i) sequences.emplace_back(geometry, pool);
  for (uint64_t blocks = 0; blocks < kChurnBlocks;) {
    kv::Sequence& sequence = sequences[below(sequences.size())];
    const uint32_t before = sequence.length();
    if (below(2) == 0 || before > 1024) {
      sequence.Truncate(before == 0 ? 0 : below(before));
    } else if (const uint32_t tokens = 1 + below(128); sequence.Extend(tokens)) {
      sequence.Commit(tokens);
    }
    const uint32_t rows =
        std::max(before, sequence.length()) / 16 - std::min(before, sequence.length()) / 16;
    blocks += rows * geometry.groups.size();
  }
  return sequences;
}

// The blocks of each layer group, in token order.
using BlockTables = std::vector<std::vector<const std::byte*>>;

BlockTables PagedTables(const kv::Geometry& geometry, const kv::Sequence& sequence) {
  BlockTables tables;
  for (size_t g = 0; g < geometry.groups.size(); ++g) {
    const auto view = sequence.Blocks(static_cast<kv::GroupId>(g));
    tables.emplace_back(view.blocks.begin(), view.blocks.end());
  }
  return tables;
}

// The same bytes in one buffer, the blocks of a group side by side.
BlockTables CopyInto(const kv::Geometry& geometry, const BlockTables& from, std::byte* to) {
  BlockTables tables;
  for (size_t g = 0; g < from.size(); ++g) {
    std::vector<const std::byte*> table;
    for (const std::byte* block : from[g]) {
      std::memcpy(to, block, geometry.groups[g].block_bytes);
      table.push_back(to);
      to += geometry.groups[g].block_bytes;
    }
    tables.push_back(std::move(table));
  }
  return tables;
}

// The attention of one decoded token, all layers.
class Attention {
 public:
  explicit Attention(const kv::Geometry& geometry)
      : geometry_(geometry),
        q_(kRows * kHeadDim, 0.03f),
        scores_(kHeads * kRows * kPieceTokens),
        out_(kHeads * kRows * kHeadDim) {
    for (size_t i = 0; i < q_.size(); ++i) q_[i] *= static_cast<float>(i % 7) - 3.0f;
  }

  double Microseconds(PinnedTeam& team, const BlockTables& tables) {
    std::fill(out_.begin(), out_.end(), 0.0f);
    const double begin = NowMicroseconds();
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      team.Run([&](size_t head) { Head(tables, layer, head); });
    }
    return NowMicroseconds() - begin;
  }

  const std::vector<float>& out() const { return out_; }

 private:
  void Head(const BlockTables& tables, uint32_t layer, size_t head) {
    const kv::LayerPlace place = geometry_.places[layer];
    const kv::LayerGroup& group = geometry_.group(place.group);
    const auto& blocks = tables[static_cast<size_t>(place.group)];
    float* const scores = &scores_[head * kRows * kPieceTokens];
    kernels::AttendCall call{};
    call.num_tokens = kPieceTokens;
    call.head_dim = kHeadDim;
    call.num_rows = kRows;
    call.q = q_.data();
    call.q_stride = call.out_stride = kHeadDim;
    call.scores = scores;
    call.score_stride = kPieceTokens;
    call.out = &out_[head * kRows * kHeadDim];
    for (size_t piece = 0; piece < blocks.size(); piece += kPieceBlocks) {
      call.blocks = &blocks[piece];
      call.tile_offset = place.layer_offset + head * group.head_bytes;
      table_.kv[kF16].scores(call);
      for (size_t row = 0; row < kRows; ++row) {
        float* const x = scores + row * kPieceTokens;
        table_.vec.exp_sum(x, table_.vec.max(x, kPieceTokens), kPieceTokens);
      }
      call.tile_offset += group.k_tile_bytes;
      table_.kv[kF16].values(call);
    }
  }

  static constexpr auto kF16 = static_cast<size_t>(kernels::KvType::kF16);
  const kernels::KernelTable& table_ = kernels::Active();
  const kv::Geometry& geometry_;
  std::vector<float> q_, scores_, out_;
};

void FillKeysAndValues(const kv::Geometry& geometry, const kv::Sequence& sequence) {
  const auto& kv = kernels::Active().kv[static_cast<size_t>(kernels::KvType::kF16)];
  std::mt19937 random(9);
  std::vector<float> vector(kHeadDim);
  for (uint32_t token = 0; token < kContext; ++token) {
    for (float& v : vector) v = static_cast<float>(random() % 1000) / 500 - 1;
    for (const kv::LayerPlace& place : geometry.places) {
      const kv::LayerGroup& group = geometry.group(place.group);
      std::byte* const layer = sequence.MutableBlock(place.group, token) + place.layer_offset;
      for (size_t head = 0; head < kHeads; ++head) {
        std::byte* const tile = layer + head * group.head_bytes;
        kv.store_k(vector.data(), kHeadDim, token % kernels::kBlockTokens, tile);
        kv.store_v(vector.data(), kHeadDim, token % kernels::kBlockTokens,
                   tile + group.k_tile_bytes);
      }
    }
  }
}

void PrintList(const char* name, const std::vector<double>& values, const char* end) {
  std::printf("\"%s\": [", name);
  for (size_t i = 0; i < values.size(); ++i) std::printf(i == 0 ? "%.2f" : ", %.2f", values[i]);
  std::printf("]%s", end);
}

// Blocks of the sequence that follow their predecessor in memory.
double ShareOfNeighbours(const kv::Geometry& geometry, const BlockTables& tables) {
  size_t neighbours = 0, all = 0;
  for (size_t g = 0; g < tables.size(); ++g) {
    for (size_t i = 1; i < tables[g].size(); ++i, ++all) {
      neighbours += tables[g][i - 1] + geometry.groups[g].block_bytes == tables[g][i];
    }
  }
  return static_cast<double>(neighbours) / static_cast<double>(all);
}

struct Pairs {
  std::vector<double> paged, contiguous;  // microseconds
};

Pairs Alternate(const kv::Geometry& geometry, const BlockTables& paged,
                const BlockTables& contiguous, size_t num_pairs) {
  PinnedTeam team(kHeads);
  Attention attention(geometry);
  std::vector<uint64_t> weights(kEvictBytes / sizeof(uint64_t), 1);
  const auto timed = [&](const BlockTables& tables) {
    uint64_t sum = 0;
    for (const uint64_t word : weights) sum += word;
    asm volatile("" : "+r"(sum));
    return attention.Microseconds(team, tables);
  };
  timed(paged);
  const std::vector<float> expected = attention.out();
  Pairs pairs;
  for (size_t i = 0; i < num_pairs; ++i) {
    // Which one goes first alternates, too.
    const double first = timed(i % 2 == 0 ? paged : contiguous);
    const double second = timed(i % 2 == 0 ? contiguous : paged);
    pairs.paged.push_back(i % 2 == 0 ? first : second);
    pairs.contiguous.push_back(i % 2 == 0 ? second : first);
    if (attention.out() != expected) Fail("the two give different results");
  }
  return pairs;
}

int Main(size_t num_pairs) {
  const std::vector<kv::LayerShape> layers(kLayers, {.num_kv_heads = kHeads, .head_dim = kHeadDim});
  const kv::Geometry geometry = kv::MakeGeometry(layers, kernels::Active());
  mem::MemoryBudget budget(0);
  kv::PoolOptions options;
  options.capacity_bytes = kPoolBytes;
  for (const kv::LayerGroup& group : geometry.groups) {
    options.block_bytes.push_back(group.block_bytes);
  }
  auto pool = kv::BlockPool::Create(budget, options);
  if (!pool) Fail("no pool");
  const std::vector<kv::Sequence> others = Churn(geometry, **pool);
  const kv::PoolStats stats = (*pool)->Stats();
  kv::Sequence sequence(geometry, **pool);
  if (!sequence.Extend(kContext)) Fail("no room for the sequence");
  sequence.Commit(kContext);
  FillKeysAndValues(geometry, sequence);

  const BlockTables paged = PagedTables(geometry, sequence);
  auto buffer = mem::AnonymousMapping::Create(geometry.RowBytes() * kContext / 16);
  if (!buffer) Fail("no memory");
  const BlockTables contiguous = CopyInto(geometry, paged, buffer->data());
  const Pairs pairs = Alternate(geometry, paged, contiguous, num_pairs);
  std::printf(
      "{\"pool_in_use\": %.3f, \"neighbours\": %.3f, ",
      static_cast<double>(stats.block_bytes_in_use) / static_cast<double>(stats.capacity_bytes),
      ShareOfNeighbours(geometry, paged));
  PrintList("paged_us", pairs.paged, ", ");
  PrintList("contiguous_us", pairs.contiguous, "}\n");
  return 0;
}

}  // namespace
}  // namespace tael::bench

int main(int argc, char** argv) {
  const long pairs = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 600;
  if (pairs < 1) {
    std::fprintf(stderr, "usage: tael_paging [PAIRS]\n");
    return 2;
  }
  return tael::bench::Main(static_cast<size_t>(pairs));
}
