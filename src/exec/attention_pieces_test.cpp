#include "exec/attention_pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace tael::exec {
namespace {

// Keys of each thread.
std::vector<uint64_t> Dealt(const std::vector<uint32_t>& pieces, size_t num_threads) {
  KeyShares shares(std::accumulate(pieces.begin(), pieces.end(), uint64_t{0}), num_threads);
  std::vector<uint64_t> keys(num_threads);
  size_t before = 0;
  for (const uint32_t piece : pieces) {
    const size_t thread = shares.Next(piece);
    EXPECT_GE(thread, before);  // neighbours
    before = thread;
    keys.at(thread) += piece;
  }
  return keys;
}

TEST(KeyShares, AreAsLargeAsTheOthersToAPiece) {
  // Sinks, a tail, and recent keys, for three heads.
  const std::vector<uint32_t> head = {4, 128, 32, 128, 128, 96};
  std::vector<uint32_t> pieces;
  for (int h = 0; h < 3; ++h) pieces.insert(pieces.end(), head.begin(), head.end());
  for (size_t num_threads = 1; num_threads <= 8; ++num_threads) {
    const std::vector<uint64_t> keys = Dealt(pieces, num_threads);
    EXPECT_LE(*std::ranges::max_element(keys), 3 * 516 / num_threads + 128) << num_threads;
    EXPECT_EQ(std::accumulate(keys.begin(), keys.end(), uint64_t{0}), 3 * 516);
  }
}

TEST(KeyShares, EmptyPiecesAreSomebodysToo) {
  EXPECT_EQ(Dealt({0, 1, 0}, 4), (std::vector<uint64_t>{0, 0, 1, 0}));
}

}  // namespace
}  // namespace tael::exec
