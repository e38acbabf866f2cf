#include "cli/eval_score.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cli/interrupt.h"
#include "sample/divergence.h"
#include "sample/logprobs.h"

namespace tael::cli {
namespace {

using Sink = engine::Session::Sink;

// Feeds `ids` and keeps the most KV that was held meanwhile.
Status Feed(engine::Session& session, std::span<const TokenId> ids, uint32_t num_logits,
            uint64_t& kv_bytes_peak, Sink sink) {
  const engine::FeedOptions options{.num_logits = num_logits, .cancel = &Interrupted()};
  return session.Feed(ids, options, [&](size_t index, std::span<float> logits) {
    kv_bytes_peak = std::max(kv_bytes_peak, session.sequence().bytes_in_use());
    sink(index, logits);
  });
}

class PairedChunk {
 public:
  PairedChunk(engine::Engine& engine, engine::Engine& full, std::span<const TokenId> ids,
              Score& score)
      : session_(engine.NewSession()),
        full_(full.NewSession()),
        ids_(ids),
        vocab_size_(engine.model().description().vocab_size),
        score_(score) {}

  Status Run(uint32_t score_from) {
    const auto rows = engine().plan().workspace.logit_rows;
    const uint64_t bytes = rows * vocab_size_ * sizeof(float);
    TAEL_ASSIGN_OR_RETURN(const auto reservation,
                          engine().budget().ReserveHeap(mem::MemoryTag::kActivations, bytes));
    logits_.resize(rows * vocab_size_);
    const auto skip = [](size_t, std::span<float>) {};
    if (score_from > 0) {
      const auto first = ids_.first(score_from);
      TAEL_RETURN_IF_ERROR(Feed(full_, first, 1, score_.full_kv_bytes_peak, skip));
      TAEL_RETURN_IF_ERROR(Feed(session_, first, 1, score_.kv_bytes_peak, skip));
    }
    for (size_t at = score_from; at + 1 < ids_.size(); at += rows) {
      TAEL_RETURN_IF_ERROR(Step(at, std::min<size_t>(rows, ids_.size() - 1 - at)));
    }
    return {};
  }

 private:
  const engine::Engine& engine() const { return session_.engine(); }
  std::span<float> Row(size_t index) {
    return std::span(logits_).subspan(index * vocab_size_, vocab_size_);
  }

  Status Step(size_t at, size_t count) {
    const auto ids = ids_.subspan(at, count);
    const auto num_logits = static_cast<uint32_t>(count);
    TAEL_RETURN_IF_ERROR(Feed(full_, ids, num_logits, score_.full_kv_bytes_peak,
                              [&](size_t i, std::span<float> logits) {
                                std::copy(logits.begin(), logits.end(), Row(i).begin());
                              }));
    return Feed(session_, ids, num_logits, score_.kv_bytes_peak,
                [&](size_t i, std::span<float> logits) { Compare(at + i, Row(i), logits); });
  }

  void Compare(size_t position, std::span<const float> full, std::span<const float> logits) {
    const TokenId next = ids_[position + 1];
    const sample::Divergence divergence = sample::Diverge(full, logits);
    score_.nll -= static_cast<double>(sample::LogSoftmax(logits, next));
    score_.full_nll -= static_cast<double>(sample::LogSoftmax(full, next));
    score_.kl.push_back(static_cast<float>(divergence.kl));
    score_.num_same_top += divergence.same_top;
    ++score_.count;
  }

  engine::Session session_;
  engine::Session full_;
  const std::span<const TokenId> ids_;
  const size_t vocab_size_;
  Score& score_;
  std::vector<float> logits_;  // of full_, a step's rows
};

}  // namespace

double Score::Perplexity(double sum) const { return std::exp(sum / static_cast<double>(count)); }

double Score::MeanKl() const {
  return std::accumulate(kl.begin(), kl.end(), 0.0) / static_cast<double>(kl.size());
}

double Score::KlQuantile(double share) const {
  std::vector<float> sorted = kl;
  std::sort(sorted.begin(), sorted.end());
  const auto last = static_cast<double>(sorted.size() - 1);
  return static_cast<double>(sorted[static_cast<size_t>(std::ceil(share * last))]);
}

Status ScoreChunk(engine::Engine& engine, engine::Engine* full, std::span<const TokenId> ids,
                  uint32_t score_from, Score& score) {
  if (full != nullptr) return PairedChunk(engine, *full, ids, score).Run(score_from);
  engine::Session session = engine.NewSession();
  const auto fed = ids.first(ids.size() - 1);  // the last id is only predicted
  return Feed(session, fed, static_cast<uint32_t>(fed.size() - score_from), score.kv_bytes_peak,
              [&](size_t position, std::span<float> logits) {
                score.nll -= static_cast<double>(sample::LogSoftmax(logits, ids[position + 1]));
                ++score.count;
              });
}

}  // namespace tael::cli
