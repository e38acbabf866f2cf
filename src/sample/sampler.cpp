#include "sample/sampler.h"

#include <cstdio>
#include <string>

namespace tael::sample {
namespace {

constexpr int32_t kMaxTopK = 1 << 20;
constexpr int32_t kMaxLastN = 1 << 20;

Error OutOfRange(const char* option, double value, const char* range) {
  char text[128];
  std::snprintf(text, sizeof(text), "%s %g: %s", option, value, range);
  return Error{ErrorCode::kInvalidArgument, "bad sampling option", text};
}

bool UsesPenalty(const SamplerOptions& options) {
  return options.repeat_penalty != 1.0f && options.repeat_last_n > 0;
}

size_t NumCandidates(const SamplerOptions& options, size_t vocab_size) {
  if (options.temperature == 0) return 1;
  if (options.top_k == 0) return vocab_size;
  return std::min(static_cast<size_t>(options.top_k), vocab_size);
}

double Weight(float logit, float max) { return std::exp(static_cast<double>(logit) - max); }

}  // namespace

Status Validate(const SamplerOptions& o) {
  // Written so that NaN fails each of them.
  if (!(o.temperature >= 0 && o.temperature <= 100)) {
    return OutOfRange("temperature", o.temperature, "0 (greedy) to 100");
  }
  if (o.top_k < 0 || o.top_k > kMaxTopK) return OutOfRange("top-k", o.top_k, "0 (off) to 1048576");
  if (!(o.top_p > 0 && o.top_p <= 1)) return OutOfRange("top-p", o.top_p, "above 0, to 1 (off)");
  if (!(o.min_p >= 0 && o.min_p <= 1)) return OutOfRange("min-p", o.min_p, "0 (off) to 1");
  if (!(o.repeat_penalty > 0 && o.repeat_penalty <= 100)) {
    return OutOfRange("repeat-penalty", o.repeat_penalty, "above 0, to 100; 1 is off");
  }
  if (o.repeat_last_n < 0 || o.repeat_last_n > kMaxLastN) {
    return OutOfRange("repeat-last-n", o.repeat_last_n, "0 (off) to 1048576");
  }
  return {};
}

size_t Sampler::ScratchBytes(const SamplerOptions& options, size_t vocab_size) {
  const size_t last_n = UsesPenalty(options) ? static_cast<size_t>(options.repeat_last_n) : 0;
  return NumCandidates(options, vocab_size) * sizeof(Candidate) + last_n * sizeof(int32_t);
}

Result<Sampler> Sampler::Create(const SamplerOptions& options, size_t vocab_size) {
  TAEL_RETURN_IF_ERROR(Validate(options));
  return Sampler(options, vocab_size);
}

Sampler::Sampler(const SamplerOptions& options, size_t vocab_size)
    : options_(options), random_(options.seed), room_(NumCandidates(options, vocab_size)) {
  if (UsesPenalty(options)) penalized_.reserve(static_cast<size_t>(options.repeat_last_n));
}

TokenId Sampler::Sample(std::span<const float> logits, std::span<const TokenId> history) {
  TAEL_CHECK(!logits.empty() &&
             (options_.top_k != 0 || options_.temperature == 0 || logits.size() <= room_.size()));
  CollectPenalties(history, logits.size());
  if (options_.temperature == 0) {
    const std::span<Candidate> best = Best(logits, 1);
    return best.empty() ? TokenId{0} : TokenId{best[0].id};
  }
  const Pool pool = options_.top_k == 0 ? WholeVocabulary(logits) : TopK(logits);
  // One number per token, also where there is no choice: the n-th token uses the n-th number.
  if (pool.candidates.empty()) {
    random_.Next();
    return TokenId{0};
  }
  return Draw(Cut(pool), pool.max);
}

void Sampler::CollectPenalties(std::span<const TokenId> history, size_t vocab_size) {
  penalized_.clear();
  if (!UsesPenalty(options_)) return;
  const auto last_n = std::min(static_cast<size_t>(options_.repeat_last_n), history.size());
  for (TokenId id : history.last(last_n)) {
    if (ToInt(id) < 0 || static_cast<size_t>(ToInt(id)) >= vocab_size) continue;
    penalized_.push_back(ToInt(id));
  }
  std::ranges::sort(penalized_);
  penalized_.erase(std::unique(penalized_.begin(), penalized_.end()), penalized_.end());
}

float Sampler::Penalized(float logit) const {
  return logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
}

// Calls visit(begin, end, logits) for runs of ids, ascending; a penalised id is a run of its own.
// The logits stay as they are: others may still want the raw ones.
template <class Visit>
void Sampler::VisitAll(std::span<const float> logits, Visit visit) const {
  size_t begin = 0;
  for (int32_t id : penalized_) {
    const auto at = static_cast<size_t>(id);
    for (size_t i = begin; i < at; ++i) visit(static_cast<int32_t>(i), logits[i]);
    visit(id, Penalized(logits[at]));
    begin = at + 1;
  }
  for (size_t i = begin; i < logits.size(); ++i) visit(static_cast<int32_t>(i), logits[i]);
}

std::span<Candidate> Sampler::Best(std::span<const float> logits, size_t k) {
  BestOf best(std::span<Candidate>(room_).first(k));
  VisitAll(logits, [&](int32_t id, float logit) { best.Offer(id, logit); });
  return best.Sorted();
}

Sampler::Pool Sampler::TopK(std::span<const float> logits) {
  Pool pool;
  pool.candidates = Best(logits, room_.size());
  pool.sorted = true;
  if (pool.candidates.empty()) return pool;
  pool.max = pool.candidates[0].logit;
  for (const Candidate& c : pool.candidates) pool.mass += Weight(c.logit, pool.max);
  return pool;
}

// Without top-k everybody has a share in the mass, but only those that pass min-p are kept: min-p
// keeps a head of the sorted list whether it comes before or after top-p.
Sampler::Pool Sampler::WholeVocabulary(std::span<const float> logits) {
  constexpr float kMax = std::numeric_limits<float>::max();
  float max = -std::numeric_limits<float>::infinity();
  VisitAll(logits, [&](int32_t, float logit) { max = logit > max ? logit : max; });
  Pool pool;
  pool.max = std::min(max, kMax);
  size_t size = 0;
  VisitAll(logits, [&](int32_t id, float logit) {
    if (!(logit > -std::numeric_limits<float>::infinity())) return;
    const float finite = std::min(logit, kMax);
    const double weight = Weight(finite, pool.max);
    pool.mass += weight;
    if (weight >= options_.min_p) room_[size++] = {finite, id};
  });
  pool.candidates = std::span<Candidate>(room_).first(size);
  return pool;
}

// Top-p and min-p. Sorts no further than it has to look.
std::span<Candidate> Sampler::Cut(Pool pool) const {
  const std::span<Candidate> all = pool.candidates;
  if (options_.top_p >= 1 && !pool.sorted) return all;  // min-p is done, nobody needs an order
  const double enough = options_.top_p >= 1 ? std::numeric_limits<double>::infinity()
                                            : static_cast<double>(options_.top_p) * pool.mass;
  size_t num_sorted = pool.sorted ? all.size() : 0;
  double sum = 0;
  size_t kept = 0;
  while (kept < all.size() && sum < enough) {
    if (kept == num_sorted) {
      num_sorted = std::min(all.size(), std::max<size_t>(64, num_sorted * 4));
      std::partial_sort(all.begin() + static_cast<std::ptrdiff_t>(kept),
                        all.begin() + static_cast<std::ptrdiff_t>(num_sorted), all.end(), Better);
    }
    const double weight = Weight(all[kept].logit, pool.max);
    if (weight < options_.min_p) break;  // never the first: its weight is 1
    sum += weight;
    ++kept;
  }
  return all.first(kept);
}

TokenId Sampler::Draw(std::span<const Candidate> candidates, float max) {
  const auto weight = [&](const Candidate& c) {
    return std::exp((static_cast<double>(c.logit) - max) / options_.temperature);
  };
  double sum = 0;
  for (const Candidate& c : candidates) sum += weight(c);
  double left = random_.NextUnit() * sum;
  for (const Candidate& c : candidates) {
    left -= weight(c);
    if (left < 0) return TokenId{c.id};
  }
  // Rounding only. The likeliest is first where there is an order, and has weight in any case.
  return TokenId{candidates[0].id};
}

}  // namespace tael::sample
