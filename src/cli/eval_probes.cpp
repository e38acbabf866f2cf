#include "cli/eval_probes.h"

#include <algorithm>
#include <array>
#include <memory>
#include <random>

#include "cli/interrupt.h"
#include "cli/prompt.h"
#include "cli/terminal.h"
#include "engine/generation.h"
#include "sample/repetition.h"

namespace tael::cli {
namespace {

constexpr std::array<uint32_t, 5> kDepths = {10, 30, 50, 70, 90};

// The prompts of one run.
class Haystacks {
 public:
  Haystacks(const engine::Engine& engine, const NeedleOptions& options)
      : engine_(engine), options_(options) {}

  Status Init() {
    if (HasChatTemplate(engine_)) {
      TAEL_ASSIGN_OR_RETURN(template_, LoadChatTemplate(engine_));
    }
    const size_t tokens = engine_.tokenizer().Encode(options_.text, {}).size();
    bytes_per_token_ = static_cast<double>(options_.text.size()) /
                       static_cast<double>(std::max<size_t>(1, tokens));
    if (tokens >= options_.prompt_tokens) return {};
    return Error{
        ErrorCode::kInvalidArgument, "the text is shorter than one needle prompt",
        std::to_string(tokens) + " tokens, a prompt has " + std::to_string(options_.prompt_tokens)};
  }

  // The longest prompt that is not longer than asked for.
  Result<std::vector<TokenId>> Make(uint32_t index, uint32_t depth, const std::string& key) const {
    auto length = static_cast<size_t>(options_.prompt_tokens * bytes_per_token_);
    for (;;) {
      TAEL_ASSIGN_OR_RETURN(std::vector<TokenId> ids, Encode(Text(index, depth, key, length)));
      if (ids.size() <= options_.prompt_tokens) return ids;
      const size_t excess = ids.size() - options_.prompt_tokens;
      const size_t less = static_cast<size_t>(static_cast<double>(excess) * bytes_per_token_) + 8;
      if (less >= length) {
        return Error{ErrorCode::kInvalidArgument, "the context is too short for a needle prompt",
                     std::to_string(options_.prompt_tokens) + " tokens: --ctx makes room"};
      }
      length -= less;
    }
  }

 private:
  // `length` bytes of the prose, from a place of its own for each index, with the key inside.
  std::string Text(uint32_t index, uint32_t depth, const std::string& key, size_t length) const {
    const std::string_view prose = options_.text;
    length = std::min(length, prose.size());
    const size_t begin = (prose.size() - length) * index / std::max(1u, options_.prompts);
    const size_t middle = WordEnd(begin + length * depth / 100);
    const std::string needle =
        " The secret pass key is " + key + ". Remember it: " + key + " is the pass key. ";
    return "There is a pass key hidden in the following text. Memorize it.\n\n" +
           std::string(prose.substr(WordEnd(begin), middle - WordEnd(begin))) + needle +
           std::string(prose.substr(middle, WordEnd(begin + length) - middle)) +
           "\n\nWhat is the pass key mentioned in the text?";
  }

  // Cuts fall between words, so that no character is cut in two.
  size_t WordEnd(size_t at) const {
    return std::min(options_.text.find(' ', at), options_.text.size());
  }

  Result<std::vector<TokenId>> Encode(const std::string& text) const {
    const tokenizer::Tokenizer& tokenizer = engine_.tokenizer();
    std::vector<TokenId> ids;
    if (template_ != nullptr) {
      TAEL_ASSIGN_OR_RETURN(const auto chat, template_->Render({{"user", text}}, true));
      ids = EncodeChat(tokenizer, chat);
    } else {
      ids = tokenizer.Encode(text + "\n", {});
      AddBos(tokenizer, ids);
    }
    const std::vector<TokenId> begun = tokenizer.Encode("The pass key is ", {});
    ids.insert(ids.end(), begun.begin(), begun.end());
    return ids;
  }

  const engine::Engine& engine_;
  const NeedleOptions& options_;
  std::unique_ptr<text::ChatTemplate> template_;  // null: a model that only completes text
  double bytes_per_token_ = 1;
};

// An answer in a session of its own. Fails: as Generate() does; kCancelled.
Result<engine::GenerateResult> Answer(engine::Engine& engine, std::span<const TokenId> prompt,
                                      engine::GenerateOptions options) {
  engine::Session session = engine.NewSession();
  options.cancel = &Interrupted();
  TAEL_ASSIGN_OR_RETURN(auto result, engine::Generate(session, prompt, options));
  if (result.finish_reason != engine::FinishReason::kCancelled) return result;
  return Error{ErrorCode::kCancelled, "cancelled", ""};
}

Result<bool> FindsKey(engine::Engine& engine, std::span<const TokenId> prompt,
                      const std::string& key) {
  engine::GenerateOptions options;
  options.max_tokens = kNeedleAnswerTokens;
  options.sampler.temperature = 0;
  TAEL_ASSIGN_OR_RETURN(const auto result, Answer(engine, prompt, options));
  return result.text.substr(std::min(result.text.find_first_not_of(' '), result.text.size()))
      .starts_with(key);
}

}  // namespace

Result<std::map<uint32_t, double>> FindNeedles(engine::Engine& engine,
                                               const NeedleOptions& options) {
  Haystacks haystacks(engine, options);
  TAEL_RETURN_IF_ERROR(haystacks.Init());
  std::mt19937 random(static_cast<uint32_t>(options.seed));
  Progress progress("looking for needles");
  std::map<uint32_t, double> rates;
  uint64_t done = 0;
  for (uint32_t i = 0; i < options.prompts; ++i) {
    for (const uint32_t depth : kDepths) {
      const std::string key = std::to_string(10000 + random() % 90000);
      TAEL_ASSIGN_OR_RETURN(const auto prompt, haystacks.Make(i, depth, key));
      TAEL_ASSIGN_OR_RETURN(const bool found, FindsKey(engine, prompt, key));
      rates[depth] += found ? 1.0 / options.prompts : 0.0;
      progress.Show(++done, kDepths.size() * options.prompts);
    }
  }
  return rates;
}

Result<double> MeasureRepetition(engine::Engine& engine, std::span<const TokenId> prompt,
                                 uint32_t num_tokens, uint64_t seed) {
  engine::GenerateOptions options;
  options.max_tokens = num_tokens;
  options.sampler.temperature = 0.8f;
  options.sampler.seed = seed;
  options.ignore_eos = true;
  TAEL_ASSIGN_OR_RETURN(const auto result, Answer(engine, prompt, options));
  return sample::Repetition(result.tokens);
}

}  // namespace tael::cli
