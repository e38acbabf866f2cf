// A conversation without an end in a window: does memory stay, does speed, does the text? One JSON
// object on stdout, lines for people on stderr.
//
//   tael_endless MODEL [--tokens 20000] [--window 1024] [--block 1000] [--turn 120] [--fresh 8]
//                [--threads 2] [--seed 1] [--plain 0|1]
//
// A model with a chat template is asked one question after the other, as `tael chat` would; with
// --plain 1, or without a template, it goes on by itself and its end-of-text tokens are tokens like
// others. What it says is measured in blocks, from the turn on with which the window is full:
//
//   tokens/s     median over the turns of a block: who shares the machine hits some turns, not most
//   memory       anonymous memory of the process, and the most KV that the sequence held
//   repetition   sample/repetition.h. Small models repeat themselves by and by, whatever they see.
//                So each block begins twice: as the conversation goes on, and in a fresh session
//                that has read its last half window and goes on from there with nothing dropped.
//                Also of --fresh conversations with other seeds, from the start to a full window
//   rule         log-probability of an answer that only the system prompt suggests: at the end, in
//                a fresh conversation, and in one without that prompt
//   bookkeeping  making room for a token and dropping what is no longer seen, in block tables alone
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/generation.h"
#include "kv/sequence.h"
#include "mem/process_memory.h"
#include "sample/repetition.h"
#include "text/prompt.h"
#include "tool.h"

namespace tael {
namespace {

using bench::Fail;
using bench::Median;
using bench::Must;
using Clock = std::chrono::steady_clock;

constexpr const char* kSystem =
    "You are the friendly keeper of a lighthouse. You answer in English.";
constexpr const char* kPlainPrompt = "The keeper of the lighthouse wrote in his book:";
constexpr const char* kQuestions[] = {
    "How did you come to this place?",
    "What do the ships carry that pass by?",
    "Tell me about the worst storm that you remember.",
    "What do you cook in winter?",
    "How does the lamp work, and who repairs it?",
    "Which birds live on the cliffs?",
    "What would you do with a day in the city?",
    "Give me three pieces of advice for young sailors.",
    "Why is the sea salty?",
    "Describe the night sky over the island.",
    "Who was the keeper before you?",
    "What is the most useful tool that you own, and why?",
    "Write a short letter to your sister.",
};
constexpr size_t kWhoAreYou = SIZE_MAX;  // a question that only the system prompt has an answer to
constexpr const char* kWho = "Who are you?";
constexpr const char* kKeeper = "I am the friendly keeper of a lighthouse.";

// What a turn asks for and is answered may take, at most: a fresh conversation ends so much before
// its window is full.
constexpr uint32_t kQuestionTokens = 40;

struct Options {
  std::string model;
  uint32_t tokens = 20000, window = 1024, block = 1000, turn = 120, fresh = 8, plain = 0;
  uint32_t threads = 2, seed = 1;
};

// The ids that the template puts around a conversation's parts.
class Script {
 public:
  Script(const engine::Engine& engine, bool plain) : tokenizer_(engine.tokenizer()) {
    const gguf::File& file = engine.model().file();
    if (plain || !text::HasChatTemplate(file)) return;
    auto chat_template = text::LoadChatTemplate(file, tokenizer_);
    if (chat_template) template_ = *std::move(chat_template);
  }
  bool is_chat() const { return template_ != nullptr; }

  // The question alone.
  std::vector<TokenId> BeginWithout(size_t question) const {
    return text::EncodeChat(tokenizer_, Must(template_->Render({Ask(question)}, true)));
  }
  std::vector<TokenId> Words(const char* text) const { return tokenizer_.Encode(text, {}); }

  // The first `system_tokens` are the system prompt.
  std::vector<TokenId> Begin(size_t question, uint32_t& system_tokens) const {
    if (!is_chat()) {
      std::vector<TokenId> ids = tokenizer_.Encode(kPlainPrompt, {});
      text::AddBos(tokenizer_, ids);
      return ids;
    }
    const std::vector<text::ChatMessage> messages = {{"system", kSystem}, Ask(question)};
    const auto system = Must(template_->Render({messages[0]}, false));
    system_tokens = static_cast<uint32_t>(text::EncodeChat(tokenizer_, system).size());
    return text::EncodeChat(tokenizer_, Must(template_->Render(messages, true)));
  }
  // What comes between an answer and the next.
  std::vector<TokenId> Next(size_t question) const {
    if (!is_chat()) return {};
    constexpr std::string_view kAnswer = "@answer@";
    const auto chat = Must(template_->Render(
        {{"system", kSystem}, Ask(0), {"assistant", std::string(kAnswer)}, Ask(question)}, true));
    const size_t at = chat.text.find(kAnswer);
    if (at == std::string::npos) Fail("the template does not show what the assistant said");
    return tokenizer_.Encode(chat.text.substr(at + kAnswer.size()), {.parse_control = true});
  }

 private:
  static text::ChatMessage Ask(size_t question) {
    return {"user", question == kWhoAreYou ? kWho : kQuestions[question % std::size(kQuestions)]};
  }

  const tokenizer::Tokenizer& tokenizer_;
  std::unique_ptr<text::ChatTemplate> template_;
};

struct Turn {
  std::vector<TokenId> tokens;
  double decode_ms = 0;  // of all tokens but the first
};

class Conversation {
 public:
  Conversation(engine::Engine& engine, const Script& script, const Options& options, uint64_t seed)
      : script_(script), options_(options), session_(engine.NewSession()), seed_(seed) {}

  // One that has the system prompt and the last `num_tokens` of this one's text, and no history.
  Conversation Refilled(engine::Engine& engine, uint32_t num_tokens) const {
    Conversation other(engine, script_, options_, seed_ + 500000);
    other.turns_ = turns_;
    other.system_tokens_ = system_tokens_;
    other.session_.PinFirst(system_tokens_);
    other.text_.assign(text_.begin(), text_.begin() + system_tokens_);
    other.text_.insert(other.text_.end(), text_.end() - num_tokens, text_.end());
    return other;
  }

  Turn Go() {
    Ask(turns_);
    engine::GenerateOptions generate;
    generate.max_tokens = options_.turn;
    generate.sampler.temperature = 0.8f;
    generate.sampler.seed = seed_ + turns_++;
    generate.ignore_eos = !script_.is_chat();
    auto result = Must(engine::Generate(session_, text_, generate));
    text_.insert(text_.end(), result.tokens.begin(), result.tokens.end());
    return {std::move(result.tokens), result.timings.decode_ms};
  }
  // Log-probability that it says who it is, a token.
  double Obeys(bool without_system = false) {
    if (without_system) {
      text_ = script_.BeginWithout(kWhoAreYou);
    } else {
      Ask(kWhoAreYou);
    }
    engine::GenerateOptions generate;
    generate.force_tokens = script_.Words(kKeeper);
    generate.logprobs = 0;
    const auto result = Must(engine::Generate(session_, text_, generate));
    text_.insert(text_.end(), result.tokens.begin(), result.tokens.end());
    double sum = 0;
    for (const sample::LogProbs& one : result.logprobs) sum += static_cast<double>(one.logprob);
    return sum / static_cast<double>(result.logprobs.size());
  }
  const engine::Session& session() const { return session_; }
  uint32_t length() const { return static_cast<uint32_t>(text_.size()); }
  uint32_t turns() const { return turns_; }

 private:
  void Ask(size_t question) {
    if (text_.empty()) {
      text_ = script_.Begin(question, system_tokens_);
      session_.PinFirst(system_tokens_);
    } else {
      const auto next = script_.Next(question);
      text_.insert(text_.end(), next.begin(), next.end());
    }
  }

  const Script& script_;
  const Options& options_;
  engine::Session session_;
  const uint64_t seed_;
  std::vector<TokenId> text_;
  uint32_t system_tokens_ = 0;
  uint32_t turns_ = 0;
};

struct Block {
  uint32_t end = 0;  // position
  double tokens_per_second = 0;
  double repetition = 0;
  double begin_repetition = 0;     // of as many tokens at its beginning ...
  double refilled_repetition = 0;  // ... as came from the fresh session
  uint64_t rss_anon_bytes = 0;
  uint64_t kv_bytes = 0;  // the most
};

// What it says until its text is `length` tokens long.
std::vector<TokenId> SaidUntil(Conversation& conversation, uint32_t length) {
  std::vector<TokenId> tokens;
  while (conversation.length() < length) {
    const Turn turn = conversation.Go();
    tokens.insert(tokens.end(), turn.tokens.begin(), turn.tokens.end());
  }
  return tokens;
}

// Where a conversation ends that is to drop nothing.
uint32_t FullLength(const Options& options) {
  return options.window - options.turn - kQuestionTokens;
}

// Turns until at least a block's tokens have been said.
Block Measure(engine::Engine& engine, const Options& options, Conversation& conversation,
              uint32_t& said) {
  Conversation refilled = conversation.Refilled(engine, options.window / 2);
  const std::vector<TokenId> fresh = SaidUntil(refilled, FullLength(options));
  Block block;
  std::vector<TokenId> tokens;
  std::vector<double> per_second;
  for (int turns = 0; tokens.size() < options.block; ++turns) {
    if (turns > 1000) Fail("the model says nothing any more");
    const Turn turn = conversation.Go();
    tokens.insert(tokens.end(), turn.tokens.begin(), turn.tokens.end());
    if (turn.tokens.size() > 8) {
      per_second.push_back(1000.0 * static_cast<double>(turn.tokens.size() - 1) / turn.decode_ms);
    }
    block.kv_bytes = std::max(block.kv_bytes, conversation.session().sequence().bytes_in_use());
  }
  said += static_cast<uint32_t>(tokens.size());
  block.end = conversation.length();
  block.tokens_per_second = per_second.empty() ? 0 : Median(per_second);
  block.repetition = sample::Repetition(tokens);
  const size_t num_both = std::min(fresh.size(), tokens.size());
  block.begin_repetition = sample::Repetition(std::span(tokens).first(num_both));
  block.refilled_repetition = sample::Repetition(std::span(fresh).first(num_both));
  block.rss_anon_bytes = Must(mem::ReadProcessMemory()).rss_anon_bytes;
  std::fprintf(
      stderr, "position %6u: %.1f tokens/s, repetition %.4f, KV %.2f MB, anonymous %.2f MB\n",
      block.end, block.tokens_per_second, block.repetition,
      static_cast<double>(block.kv_bytes) / 1e6, static_cast<double>(block.rss_anon_bytes) / 1e6);
  return block;
}

// Mean over conversations that end before anything is dropped.
double FreshRepetition(engine::Engine& engine, const Script& script, const Options& options) {
  double sum = 0;
  for (uint32_t i = 0; i < options.fresh; ++i) {
    Conversation conversation(engine, script, options, options.seed + 1000 * (i + 1));
    sum += sample::Repetition(SaidUntil(conversation, FullLength(options)));
  }
  return options.fresh > 0 ? sum / options.fresh : 0;
}

// Microseconds for each token of a sequence whose window is full.
double BookkeepingMicros(engine::Engine& engine, const Options& options) {
  constexpr uint32_t kTokens = 20000;
  kv::Sequence sequence(engine.plan().geometry, engine.pool());
  sequence.ReserveTables(2 * options.window + kTokens);
  const auto feed = [&](uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      if (!sequence.Extend(1)) Fail("no block for the bookkeeping");
      sequence.Commit(1);
    }
  };
  feed(2 * options.window);
  std::vector<double> micros;
  for (int round = 0; round < 10; ++round) {
    const Clock::time_point start = Clock::now();
    feed(kTokens / 10);
    const std::chrono::duration<double, std::micro> took = Clock::now() - start;
    micros.push_back(took.count() / (kTokens / 10));
  }
  return Median(micros);
}

double MeanOf(const std::vector<Block>& blocks, double Block::*figure) {
  double sum = 0;
  for (const Block& block : blocks) sum += block.*figure;
  return sum / static_cast<double>(blocks.size());
}

struct Rule {
  double kept = 0, fresh = 0, without = 0;
};

void Report(engine::Engine& engine, const Options& options, bool is_chat, uint32_t said,
            uint32_t turns, const std::vector<Block>& blocks, double fresh, const Rule& rule) {
  const double bookkeeping = BookkeepingMicros(engine, options);
  const Block &first = blocks.front(), &last = blocks.back();
  const double step_us = 1e6 / last.tokens_per_second;
  const double begins = MeanOf(blocks, &Block::begin_repetition);
  const double refilled = MeanOf(blocks, &Block::refilled_repetition);
  const auto bytes = [](const char* name, uint64_t value) {
    std::printf("\"%s\": %llu, ", name, static_cast<unsigned long long>(value));
  };
  std::printf("{\"chat\": %s, \"window\": %u, \"tokens\": %u, \"turns\": %u, \"positions\": %u, ",
              is_chat ? "true" : "false", options.window, said, turns, last.end);
  std::printf("\"rule_kept\": %.4f, \"rule_fresh\": %.4f, \"rule_without\": %.4f, ", rule.kept,
              rule.fresh, rule.without);
  std::printf("\"trained_context\": %u, ", engine.plan().trained_context);
  std::printf("\"first_tps\": %.3f, \"last_tps\": %.3f, \"speed_kept\": %.4f, ",
              first.tokens_per_second, last.tokens_per_second,
              last.tokens_per_second / first.tokens_per_second);
  std::printf(
      "\"repetition\": %.5f, \"repetition_begins\": %.5f, \"repetition_refilled\": %.5f, "
      "\"repetition_ratio\": %.4f, \"repetition_fresh\": %.5f, ",
      MeanOf(blocks, &Block::repetition), begins, refilled, begins / refilled, fresh);
  bytes("kv_bytes_first", first.kv_bytes);
  bytes("kv_bytes_last", last.kv_bytes);
  bytes("rss_anon_bytes_first", first.rss_anon_bytes);
  bytes("rss_anon_bytes_last", last.rss_anon_bytes);
  std::printf("\"bookkeeping_us\": %.4f, \"step_us\": %.1f, \"bookkeeping_share\": %.6f}\n",
              bookkeeping, step_us, bookkeeping / step_us);
}

int Run(const Options& options) {
  auto engine = Must(engine::Engine::Create(
      {.model_path = options.model,
       .num_threads = options.threads,
       .context_length = 2 * options.window,
       .max_sessions = 3,
       .kv_auto = true,
       .window = {.tokens = options.window, .sinks = 4, .shape = kv::WindowShape::kLayered}}));
  const Script script(*engine, options.plain != 0);
  const double fresh = FreshRepetition(*engine, script, options);
  std::vector<Block> blocks;
  uint32_t said = 0, turns = 0;
  Rule rule;
  {
    Conversation conversation(*engine, script, options, options.seed);
    while (conversation.length() < options.window) {
      said += static_cast<uint32_t>(conversation.Go().tokens.size());
    }
    do {
      blocks.push_back(Measure(*engine, options, conversation, said));
    } while (said < options.tokens);
    turns = conversation.turns();
    if (script.is_chat()) {
      rule = {.kept = conversation.Obeys(),
              .fresh = Conversation(*engine, script, options, options.seed).Obeys(),
              .without = Conversation(*engine, script, options, options.seed).Obeys(true)};
    }
  }
  Report(*engine, options, script.is_chat(), said, turns, blocks, fresh, rule);
  return 0;
}

Options Parse(std::span<char*> args) {
  Options options;
  options.model = bench::ParseModel(args, {{"--tokens", &options.tokens},
                                           {"--window", &options.window},
                                           {"--block", &options.block},
                                           {"--turn", &options.turn},
                                           {"--fresh", &options.fresh},
                                           {"--plain", &options.plain},
                                           {"--threads", &options.threads},
                                           {"--seed", &options.seed}});
  // A fresh conversation reads half a window, and has room for a turn in the other half.
  const bool has_room =
      options.window >= 4 * options.turn && options.window / 2 > options.turn + kQuestionTokens;
  if (options.turn == 0 || options.block == 0 || !has_room) Fail("a number is too small");
  return options;
}

}  // namespace
}  // namespace tael

int main(int argc, char** argv) {
  return tael::Run(tael::Parse({argv, static_cast<size_t>(argc)}));
}
