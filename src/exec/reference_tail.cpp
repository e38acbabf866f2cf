// Eviction by attention, of the oracle: which tokens stay, and what stands for the others.
#include <algorithm>
#include <cmath>
#include <utility>

#include "exec/reference.h"

namespace tael::exec {

bool Reference::TailSees(const Tail& tail, uint32_t token) const {
  if (position_ < tail.first_choice || token < tail.sinks) return true;
  if (token + tail.recent >= position_ / 16 * 16) return true;
  return std::ranges::find(tail.kept, token) != tail.kept.end();
}

// What may be in the tail, best first: what was, and the tokens before `end` that join it.
std::vector<Reference::Summary> Reference::Candidates(uint32_t layer, uint32_t end) {
  Tail& tail = tails_[layer];
  const size_t kv_dim =
      size_t{model_.description().layers[layer].num_kv_heads} * model_.description().head_dim;
  const uint32_t behind_sinks = (tail.sinks + 15) / 16 * 16;
  uint32_t next = tail.kept.empty() && tail.summaries.empty() ? behind_sinks : end - 16;
  for (; next < end; ++next) tail.kept.push_back(next);
  std::vector<Summary> candidates = std::exchange(tail.summaries, {});
  for (const uint32_t token : std::exchange(tail.kept, {})) {
    const auto begin = static_cast<ptrdiff_t>(token * kv_dim);
    const auto size = static_cast<ptrdiff_t>(kv_dim);
    const auto key = keys_[layer].begin() + begin, value = values_[layer].begin() + begin;
    candidates.push_back({.key = Vector(key, key + size),
                          .value = Vector(value, value + size),
                          .position = static_cast<double>(token),
                          .score = tail.scores[token]});
  }
  std::erase_if(candidates, [&](const Summary& c) {  // a newer one is there for each of them
    return c.position + tail.reach < position_ && c.position < end - 16;
  });
  std::ranges::sort(candidates, [](const Summary& a, const Summary& b) {
    return a.score > b.score || (a.score == b.score && a.position < b.position);
  });
  return candidates;
}

// Before the query at position_ comes: the tail it will see.
void Reference::Choose(uint32_t layer) {
  Tail& tail = tails_[layer];
  if (position_ < tail.first_choice || position_ % 16 != 0) return;
  std::vector<Summary> candidates = Candidates(layer, position_ - tail.recent);
  const size_t places = tail.merges ? tail.tail - 1 : tail.tail;
  if (candidates.size() > places) {
    const double last = candidates[places - 1].score, loser = candidates[places].score;
    tail.least_margin = std::min(tail.least_margin, (last - loser) / last);
    const auto behind = candidates.begin() + static_cast<ptrdiff_t>(places);
    const std::vector<Summary> losers(behind, candidates.end());
    candidates.resize(places);
    if (tail.merges) candidates.push_back(MeanOf(layer, losers));
  }
  for (Summary& c : candidates) {
    if (c.bias == 0 && c.position == std::floor(c.position)) {
      tail.kept.push_back(static_cast<uint32_t>(c.position));
    } else {
      tail.summaries.push_back(std::move(c));
    }
  }
  std::ranges::sort(tail.kept);
}

// One that attends like all of them, as far as one can: with the weights w_i = A_i / sum A the key
// R(p) sum w_i R(-p_i) k_i at p = sum w_i p_i, the value sum w_i v_i, and of sum n_i exp(q k_i),
// where A_i tells the terms, the logarithm of what is left of it, sum w_i (ln n_i - ln w_i).
Reference::Summary Reference::MeanOf(uint32_t layer, const std::vector<Summary>& parts) const {
  const model::ModelDescription& m = model_.description();
  const int32_t rope = m.layers[layer].rope;
  Summary mean{.key = Vector(parts[0].key.size()), .value = Vector(parts[0].value.size())};
  for (const Summary& part : parts) mean.score += part.score;
  for (const Summary& part : parts) mean.position += part.score / mean.score * part.position;
  for (const Summary& part : parts) {
    const double w = part.score / mean.score;
    if (w == 0) continue;
    mean.bias += w * (part.bias - std::log(w));
    for (size_t i = 0; i < part.key.size(); ++i) {
      mean.value[i] += static_cast<float>(w) * part.value[i];
      const size_t d = i % m.head_dim, half = m.rope_dims / 2;
      double turned = part.key[i];
      if (rope >= 0 && d < m.rope_dims) {
        const bool pairs = m.rope_layout == model::RopeLayout::kPairs;
        const bool second = pairs ? d % 2 == 1 : d >= half;
        const size_t other = pairs ? (second ? i - 1 : i + 1) : (second ? i - half : i + half);
        const double angle =
            (mean.position - part.position) *
            ropes_[static_cast<size_t>(rope)].frequencies[pairs ? d / 2 : (second ? d - half : d)];
        turned =
            part.key[i] * std::cos(angle) + (second ? 1 : -1) * part.key[other] * std::sin(angle);
      }
      mean.key[i] += static_cast<float>(w * turned);
    }
  }
  return mean;
}

}  // namespace tael::exec
