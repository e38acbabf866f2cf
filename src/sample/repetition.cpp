#include "sample/repetition.h"

#include <algorithm>
#include <cstddef>

namespace tael::sample {

double Repetition(std::span<const TokenId> tokens) {
  constexpr size_t kGram = 4, kBack = 256;
  if (tokens.size() < kGram) return 0;
  size_t seen = 0;
  for (size_t end = kGram; end <= tokens.size(); ++end) {
    const auto gram = tokens.subspan(end - kGram, kGram);
    const size_t from = end > kBack ? end - kBack : 0;
    const auto before = tokens.subspan(from, end - 1 - from);  // ends one token earlier
    seen += std::search(before.begin(), before.end(), gram.begin(), gram.end()) != before.end();
  }
  return static_cast<double>(seen) / static_cast<double>(tokens.size() - kGram + 1);
}

}  // namespace tael::sample
