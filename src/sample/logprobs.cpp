#include "sample/logprobs.h"

#include "sample/candidates.h"

namespace tael::sample {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float Finite(float logit) { return std::min(logit, std::numeric_limits<float>::max()); }

// log(sum(exp(logit))); -infinity when no logit is a number.
double LogSumExp(std::span<const float> logits) {
  float max = -kInfinity;
  for (float logit : logits) {
    if (logit > max) max = logit;
  }
  if (max == -kInfinity) return -kInfinity;
  max = Finite(max);
  double sum = 0;
  for (float logit : logits) {
    if (logit > -kInfinity) sum += std::exp(static_cast<double>(Finite(logit)) - max);
  }
  return max + std::log(sum);
}

float LogProb(std::span<const float> logits, TokenId id, double log_sum) {
  const auto index = static_cast<size_t>(ToInt(id));
  if (ToInt(id) < 0 || index >= logits.size() || !(logits[index] > -kInfinity)) return -kInfinity;
  return static_cast<float>(Finite(logits[index]) - log_sum);
}

}  // namespace

float LogSoftmax(std::span<const float> logits, TokenId id) {
  return LogProb(logits, id, LogSumExp(logits));
}

LogProbs LogSoftmaxTop(std::span<const float> logits, TokenId id, size_t k) {
  const double log_sum = LogSumExp(logits);
  LogProbs out;
  out.logprob = LogProb(logits, id, log_sum);
  k = std::min(k, logits.size());
  if (k == 0) return out;
  std::vector<Candidate> room(k);
  BestOf best(room);
  best.Offer(logits, 0, logits.size());
  for (const Candidate& candidate : best.Sorted()) {
    out.top.push_back({TokenId{candidate.id}, static_cast<float>(candidate.logit - log_sum)});
  }
  return out;
}

}  // namespace tael::sample
