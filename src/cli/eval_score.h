// Teacher-forced scores of a text: perplexity, and beside a second engine that keeps all KV in f16,
// how far the first one's distributions are from those.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "engine/engine.h"

namespace tael::cli {

struct Score {
  double nll = 0;  // sum of -ln p
  uint64_t count = 0;
  uint64_t kv_bytes_peak = 0;
  // Against the other engine, if there is one.
  double full_nll = 0;
  uint64_t full_kv_bytes_peak = 0;
  uint64_t num_same_top = 0;
  std::vector<float> kl;  // by scored token

  double perplexity() const { return Perplexity(nll); }
  double full_perplexity() const { return Perplexity(full_nll); }
  double MeanKl() const;
  // The value that a share of the tokens stays below or at.
  double KlQuantile(double share) const;
  double top1_agreement() const {
    return static_cast<double>(num_same_top) / static_cast<double>(kl.size());
  }

 private:
  double Perplexity(double sum) const;
};

// Feeds one chunk of ids to a session of its own and scores the predictions of ids[score_from + 1]
// and later ones. With `full` both engines go in step, a few tokens at a time, as tokens come in
// production: what a policy drops is dropped before the next ones are computed.
Status ScoreChunk(engine::Engine& engine, engine::Engine* full, std::span<const TokenId> ids,
                  uint32_t score_from, Score& score);

}  // namespace tael::cli
