// The leanest program on llama.cpp's library, for bench/compare: ids in, ids and log-probabilities
// out. It has no sampler chain, no templates and no warm-up, so it is also the quickest way from
// the start of a process to a first token that llama.cpp offers.
//
//   tael-llama-probe MODEL THREADS REPACK text TEXT N       the likeliest N tokens, each as soon as
//   known tael-llama-probe MODEL THREADS REPACK ids TEXT N        the same as ids, one line
//   tael-llama-probe MODEL THREADS REPACK force IDS FORCED  log-probability of each forced id
//
// IDS and FORCED are ids with commas between. REPACK 1 lets llama.cpp repack weights into its own
// layout when it loads, which is its default.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "llama.h"

namespace {

using Ids = std::vector<llama_token>;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "llama-probe: %s\n", what);
  std::exit(1);
}

Ids ParseIds(const char* text) {
  Ids ids;
  for (char* end = nullptr; *text != '\0'; text = *end == ',' ? end + 1 : end) {
    ids.push_back(static_cast<llama_token>(std::strtol(text, &end, 10)));
    if (end == text) Fail("ids are numbers with commas between");
  }
  return ids;
}

class Probe {
 public:
  Probe(const char* path, int threads, bool repack) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    llama_model_params params = llama_model_default_params();
    params.use_extra_bufts = repack;
    model_ = llama_model_load_from_file(path, params);
    if (model_ == nullptr) Fail("the model could not be loaded");
    vocab_ = llama_model_get_vocab(model_);
    llama_context_params context = llama_context_default_params();
    context.n_ctx = 512;
    context.n_threads = context.n_threads_batch = threads;
    context_ = llama_init_from_model(model_, context);
    if (context_ == nullptr) Fail("no context");
  }

  Ids Tokenize(const std::string& text) const {
    Ids ids(text.size() + 8);
    const int n = llama_tokenize(vocab_, text.data(), static_cast<int>(text.size()), ids.data(),
                                 static_cast<int>(ids.size()), /*add_special=*/true,
                                 /*parse_special=*/true);
    if (n < 0) Fail("the text could not be tokenized");
    ids.resize(static_cast<size_t>(n));
    return ids;
  }

  // Logits of the last of these ids.
  const float* Feed(Ids ids) {
    if (llama_decode(context_, llama_batch_get_one(ids.data(), static_cast<int>(ids.size())))) {
      Fail("llama_decode failed");
    }
    return llama_get_logits_ith(context_, -1);
  }

  llama_token Best(const float* logits) const {
    llama_token best = 0;
    for (llama_token id = 1; id < num_tokens(); ++id) {
      if (logits[id] > logits[best]) best = id;
    }
    return best;
  }

  double LogProb(const float* logits, llama_token id) const {
    const double top = logits[Best(logits)];
    double sum = 0;
    for (llama_token i = 0; i < num_tokens(); ++i) sum += std::exp(logits[i] - top);
    return logits[id] - top - std::log(sum);
  }

  std::string Piece(llama_token id) const {
    char text[256];
    const int n = llama_token_to_piece(vocab_, id, text, sizeof text, 0, /*special=*/true);
    return std::string(text, n > 0 ? static_cast<size_t>(n) : 0);
  }

 private:
  llama_token num_tokens() const { return llama_vocab_n_tokens(vocab_); }

  llama_model* model_ = nullptr;
  const llama_vocab* vocab_ = nullptr;
  llama_context* context_ = nullptr;
};

void Greedy(Probe& probe, const Ids& prompt, int count, bool as_text) {
  Ids next = prompt;
  for (int i = 0; i < count; ++i) {
    next = {probe.Best(probe.Feed(next))};
    if (as_text) {
      std::fputs(probe.Piece(next[0]).c_str(), stdout);
    } else {
      std::printf(i == 0 ? "%d" : " %d", next[0]);
    }
    std::fflush(stdout);
  }
  std::puts("");
}

void Force(Probe& probe, const Ids& prompt, const Ids& forced) {
  Ids next = prompt;
  for (const llama_token id : forced) {
    std::printf("%.6f\n", probe.LogProb(probe.Feed(next), id));
    next = {id};
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) Fail("usage: MODEL THREADS REPACK text|ids|force PROMPT N|FORCED");
  Probe probe(argv[1], std::atoi(argv[2]), std::atoi(argv[3]) != 0);
  const std::string mode = argv[4];
  if (mode == "text") {
    Greedy(probe, probe.Tokenize(argv[5]), std::atoi(argv[6]), true);
  } else if (mode == "ids") {
    Greedy(probe, probe.Tokenize(argv[5]), std::atoi(argv[6]), false);
  } else if (mode == "force") {
    Force(probe, ParseIds(argv[5]), ParseIds(argv[6]));
  } else {
    Fail("the mode is text, ids or force");
  }
  std::fflush(stdout);
  std::_Exit(0);  // freeing a model that the process takes with it costs time only
}
