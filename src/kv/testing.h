// For tests only: pools of small blocks, and KV whose every token tells which text it belongs to.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "kernels/kernels.h"
#include "kv/block_pool.h"
#include "kv/sequence.h"

namespace tael::kv {

inline constexpr uint32_t kTestTokens = kernels::kBlockTokens;
inline constexpr size_t kTestBlock = 64;  // 4 bytes of KV for each token

// Groups of equal blocks, one for each window (0: sees everything).
inline Geometry TestGeometry(std::span<const uint32_t> windows) {
  Geometry geometry;
  for (const uint32_t window : windows) {
    LayerGroup group;
    group.block_bytes = kTestBlock;
    group.shape.window = window;
    geometry.groups.push_back(group);
  }
  return geometry;
}

// The kernels that every CPU runs: for tests that store and read KV.
inline const kernels::KernelTable& ScalarKernels() { return **kernels::Runnable().begin(); }

// A table that knows nothing but the sizes of tiles, which is all that a geometry asks for.
inline kernels::KernelTable TileSizes() {
  kernels::KernelTable table{};
  auto& f32 = table.kv[static_cast<size_t>(kernels::KvType::kF32)];
  auto& f16 = table.kv[static_cast<size_t>(kernels::KvType::kF16)];
  auto& q8 = table.kv[static_cast<size_t>(kernels::KvType::kQ8)];
  auto& q4 = table.kv[static_cast<size_t>(kernels::KvType::kQ4)];
  f32.k_tile_bytes = f32.v_tile_bytes = [](size_t head_dim) { return head_dim * 16 * 4; };
  f16.k_tile_bytes = f16.v_tile_bytes = [](size_t head_dim) { return head_dim * 16 * 2; };
  q8.k_tile_bytes = q8.v_tile_bytes = [](size_t head_dim) { return head_dim * 16 + 32; };
  q4.v_tile_bytes = [](size_t head_dim) { return head_dim * 9; };
  return table;
}

// Requires: all groups have blocks of one size.
inline std::unique_ptr<BlockPool> TestPool(mem::MemoryBudget& budget, const Geometry& geometry,
                                           size_t num_blocks) {
  PoolOptions options;
  for (const LayerGroup& group : geometry.groups) options.block_bytes.push_back(group.block_bytes);
  options.slab_bytes = 4096;
  options.page_bytes = 4096;
  options.capacity_bytes = num_blocks * geometry.groups[0].block_bytes;
  options.poison_freed = true;  // whoever reads a block after its release does not find its KV
  auto pool = BlockPool::Create(budget, std::move(options));
  EXPECT_TRUE(pool.has_value()) << (pool ? "" : pool.error().Message());
  return *std::move(pool);
}

inline std::vector<TokenId> Ids(std::span<const int> ids) {
  std::vector<TokenId> tokens;
  for (const int id : ids) tokens.push_back(TokenId{id});
  return tokens;
}

// The ids first, first + 1, ...
inline std::vector<TokenId> Text(int first, size_t count) {
  std::vector<int> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return Ids(ids);
}

inline std::vector<TokenId> Join(std::span<const TokenId> first, std::span<const TokenId> second) {
  std::vector<TokenId> out(first.begin(), first.end());
  out.insert(out.end(), second.begin(), second.end());
  return out;
}

// What stands in for the KV of tokens[i]: it depends on the text up to there and on the group, as
// real KV does.
inline std::vector<uint32_t> KvOf(std::span<const TokenId> tokens, size_t group,
                                  uint64_t salt = 0) {
  std::vector<uint32_t> kv;
  uint32_t hash = 2166136261u + static_cast<uint32_t>(group) + static_cast<uint32_t>(salt) * 7919;
  for (const TokenId token : tokens) {
    hash = (hash ^ static_cast<uint32_t>(ToInt(token))) * 16777619u + 1;
    kv.push_back(hash);
  }
  return kv;
}

// Computes tokens[length..end) of a sequence that holds the first `length` of them.
inline Status Feed(Sequence& sequence, std::span<const TokenId> tokens, size_t end,
                   uint64_t salt = 0) {
  const uint32_t begin = sequence.length();
  TAEL_RETURN_IF_ERROR(sequence.Extend(static_cast<uint32_t>(end - begin)));
  for (size_t i = 0; i < sequence.geometry().groups.size(); ++i) {
    const std::vector<uint32_t> kv = KvOf(tokens.first(end), i, salt);
    for (uint32_t t = begin; t < end; ++t) {
      std::byte* block = sequence.MutableBlock(GroupId{static_cast<uint32_t>(i)}, t);
      std::memcpy(block + t % kTestTokens * sizeof(uint32_t), &kv[t], sizeof(uint32_t));
    }
  }
  sequence.Commit(static_cast<uint32_t>(end - begin));
  return {};
}

// Whether all KV that a continuation looks at is there, and that of these tokens: the sinks, and
// what is recent.
inline testing::AssertionResult Holds(const Sequence& sequence, std::span<const TokenId> tokens,
                                      uint64_t salt = 0) {
  const uint32_t length = sequence.length();
  if (tokens.size() < length) return testing::AssertionFailure() << "more tokens than expected";
  for (size_t i = 0; i < sequence.geometry().groups.size(); ++i) {
    const std::vector<uint32_t> kv = KvOf(tokens.first(length), i, salt);
    const GroupId group{static_cast<uint32_t>(i)};
    const Sequence::View view = sequence.Blocks(group);
    if (view.first_token > sequence.FirstVisible(group, length)) {
      return testing::AssertionFailure() << "a window has a hole";
    }
    const auto is_own = [&kv](const std::byte* block, uint32_t t) {
      uint32_t found = 0;
      if (block != nullptr)
        std::memcpy(&found, block + t % kTestTokens * sizeof(found), sizeof(found));
      return block != nullptr && found == kv[t];
    };
    const uint32_t num_sinks = std::min(sequence.window(group).sinks, length);
    for (uint32_t t = 0; t < num_sinks; ++t) {
      if (is_own(view.sinks[t / kTestTokens], t)) continue;
      return testing::AssertionFailure() << "sink " << t << " of group " << i << " is another's";
    }
    for (uint32_t t = view.first_token; t < length; ++t) {
      if (is_own(view.blocks[(t - view.first_token) / kTestTokens], t)) continue;
      return testing::AssertionFailure() << "token " << t << " of group " << i << " is another's";
    }
  }
  return testing::AssertionSuccess();
}

// Bytes of the blocks that any of these holds, each counted once.
inline uint64_t UniqueBytes(std::span<const Sequence* const> sequences) {
  std::vector<std::pair<BlockId, uint64_t>> blocks;
  for (const Sequence* sequence : sequences) {
    const auto& groups = sequence->geometry().groups;
    for (size_t i = 0; i < groups.size(); ++i) {
      for (BlockId id : sequence->table(GroupId{static_cast<uint32_t>(i)})) {
        if (id != kNullBlock) blocks.emplace_back(id, groups[i].block_bytes);
      }
    }
  }
  std::ranges::sort(blocks);
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  uint64_t bytes = 0;
  for (const auto& [id, size] : blocks) bytes += size;
  return bytes;
}

}  // namespace tael::kv
