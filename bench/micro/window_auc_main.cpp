// Does attention tell when a window has become too short? One JSON object on stdout.
//
//   tael_window_auc MODEL TEXT [--tokens 5120] [--window 512] [--sinks 4] [--threads 2]
//
// A window could grow when attention to its oldest quarter rises. That helps only where such tokens
// are those that suffer from what has been dropped. So: a text goes token by token through a
// session that keeps everything and, in step, through one with the window. Of each token from half
// as much again as the window on:
//
//   event    the distance KL(everything || window) of its prediction is in the top tenth
//   signal   what the first session's query gave the oldest quarter of the window, of what it gave
//            the window without its sinks; mean over heads and layers
//
// and the figure is the area under the curve: how often a token with the event has a stronger
// signal than one without (0.5: the signal says nothing). Also for a signal that is smoothed over
// 16 tokens, and for the smoothed one measured in standard deviations of each layer, which is what
// a trigger would look at. The session that keeps everything has eviction by attention in a window
// that is never full, and adds up what each token gets for that; how it sees the text differs from
// the windowed session's view by what is measured anyway.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "sample/divergence.h"
#include "text/prompt.h"
#include "tool.h"

namespace tael {
namespace {

using bench::Fail;
using bench::Must;

struct Options {
  std::string model, text;
  uint32_t tokens = 5120, window = 512, sinks = 4, threads = 2;
};

Options Parse(int argc, char** argv) {
  Options options;
  std::vector<std::string> plain;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    uint32_t* target = nullptr;
    if (arg == "--tokens") target = &options.tokens;
    if (arg == "--window") target = &options.window;
    if (arg == "--sinks") target = &options.sinks;
    if (arg == "--threads") target = &options.threads;
    if (target == nullptr) {
      plain.push_back(arg);
    } else if (++i < argc) {
      *target = static_cast<uint32_t>(std::strtoul(argv[i], nullptr, 10));
    }
  }
  if (plain.size() != 2 || options.window <= 4 * options.sinks ||
      options.tokens < 2 * options.window) {
    Fail(
        "MODEL TEXT [--tokens N] [--window N] [--sinks N] [--threads N], N tokens of text at "
        "least twice the window");
  }
  options.model = plain[0];
  options.text = plain[1];
  return options;
}

std::vector<TokenId> ReadTokens(const engine::Engine& engine, const Options& options) {
  std::ifstream file(options.text, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<TokenId> ids = engine.tokenizer().Encode(text, {});
  text::AddBos(engine.tokenizer(), ids);
  if (ids.size() < options.tokens) Fail("the text has " + std::to_string(ids.size()) + " tokens");
  ids.resize(options.tokens);
  return ids;
}

std::unique_ptr<engine::Engine> Load(const Options& options, kv::WindowPolicy window) {
  window.sinks = options.sinks;
  window.shape = kv::WindowShape::kUniform;
  return Must(engine::Engine::Create({.model_path = options.model,
                                      .num_threads = options.threads,
                                      .context_length = options.tokens,
                                      .kv_type = kernels::KvType::kF16,
                                      .window = window}));
}

// By layer, of the last token that was fed: the oldest quarter's share of the window.
std::vector<double> Shares(const kv::Sequence& sequence, const Options& options) {
  const uint32_t position = sequence.length() - 1;
  const uint32_t first = position - (options.window - options.sinks) + 1;
  std::vector<double> shares;
  for (size_t group = 0; group < sequence.geometry().groups.size(); ++group) {
    for (size_t i = 0; i < sequence.geometry().groups[group].layers.size(); ++i) {
      const auto masses = sequence.Masses(kv::GroupId{static_cast<uint32_t>(group)}, i);
      if (masses.empty()) continue;  // a layer with a window of its own
      const auto seen = masses.subspan(first, position + 1 - first);
      const auto edge = seen.first(options.window / 4);
      const double all = std::accumulate(seen.begin(), seen.end(), 0.0);
      const double old = std::accumulate(edge.begin(), edge.end(), 0.0);
      shares.push_back(old / std::max(all, 1e-6 * kv::TailScores::kUnit));
    }
  }
  return shares;
}

struct Track {
  std::vector<std::vector<double>> shares;  // [token][layer]
  std::vector<double> kl;
};

Track Run(engine::Engine& full, engine::Engine& windowed, const Options& options) {
  const std::vector<TokenId> ids = ReadTokens(full, options);
  engine::Session a = full.NewSession(), b = windowed.NewSession();
  Track track;
  std::vector<float> logits;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto token = std::span(ids).subspan(i, 1);
    Must(a.Feed(token, {},
                [&](size_t, std::span<float> row) { logits.assign(row.begin(), row.end()); }));
    double kl = 0;
    Must(b.Feed(token, {},
                [&](size_t, std::span<float> row) { kl = sample::Diverge(logits, row).kl; }));
    if (i < options.window + options.window / 2) continue;
    track.kl.push_back(kl);
    track.shares.push_back(Shares(a.sequence(), options));
    if (track.shares.back().empty()) Fail("no layer without a window of its own");
  }
  return track;
}

double Mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The smoothed signal: r <- 15/16 r + 1/16 of the new one.
std::vector<std::vector<double>> Smoothed(std::vector<std::vector<double>> rows) {
  for (size_t t = 1; t < rows.size(); ++t) {
    for (size_t l = 0; l < rows[t].size(); ++l) {
      rows[t][l] = rows[t - 1][l] + (rows[t][l] - rows[t - 1][l]) / 16;
    }
  }
  return rows;
}

// Each layer's in its own standard deviations.
std::vector<std::vector<double>> Standardised(std::vector<std::vector<double>> rows) {
  for (size_t l = 0; l < rows[0].size(); ++l) {
    std::vector<double> column;
    for (const auto& row : rows) column.push_back(row[l]);
    const double mean = Mean(column);
    double squares = 0;
    for (const double value : column) squares += (value - mean) * (value - mean);
    const double deviation = std::sqrt(squares / static_cast<double>(column.size()));
    for (auto& row : rows) row[l] = (row[l] - mean) / std::max(deviation, 1e-12);
  }
  return rows;
}

std::vector<double> OverLayers(const std::vector<std::vector<double>>& rows) {
  std::vector<double> means;
  for (const auto& row : rows) means.push_back(Mean(row));
  return means;
}

// Mann and Whitney's statistic; equal signals count half.
double AreaUnderCurve(const std::vector<double>& signal, const std::vector<bool>& event) {
  std::vector<size_t> order(signal.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return signal[i]; });
  double rank_sum = 0, events = 0;
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    while (end < order.size() && signal[order[end]] == signal[order[begin]]) ++end;
    const double rank = static_cast<double>(begin + 1 + end) / 2;
    for (size_t i = begin; i < end; ++i) {
      if (!event[order[i]]) continue;
      rank_sum += rank;
      events += 1;
    }
    begin = end;
  }
  const double others = static_cast<double>(signal.size()) - events;
  return (rank_sum - events * (events + 1) / 2) / (events * others);
}

void Report(const Track& track, const Options& options) {
  std::vector<double> sorted = track.kl;
  std::ranges::sort(sorted);
  const double least = sorted[sorted.size() * 9 / 10];
  std::vector<bool> event;
  for (const double kl : track.kl) event.push_back(kl >= least);
  const auto smoothed = Smoothed(track.shares);
  std::printf(
      "{\"window\": %u, \"sinks\": %u, \"tokens\": %zu, \"layers\": %zu, \"kl_mean\": %.5f, "
      "\"kl_top_decile\": %.5f, \"share_mean\": %.4f, \"auc_share\": %.3f, \"auc_smoothed\": %.3f, "
      "\"auc_standardised\": %.3f}\n",
      options.window, options.sinks, track.kl.size(), track.shares[0].size(), Mean(track.kl), least,
      Mean(OverLayers(track.shares)), AreaUnderCurve(OverLayers(track.shares), event),
      AreaUnderCurve(OverLayers(smoothed), event),
      AreaUnderCurve(OverLayers(Standardised(smoothed)), event));
}

int Main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  // As long as the text: there is never more than it holds.
  const auto full = Load(options, {.tokens = kv::WindowPolicy::kAuto, .evict = kv::Evict::kHeavy});
  const auto windowed = Load(options, {.tokens = options.window});
  Report(Run(*full, *windowed, options), options);
  return 0;
}

}  // namespace
}  // namespace tael

int main(int argc, char** argv) { return tael::Main(argc, argv); }
