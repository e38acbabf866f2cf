// See pretokenizer.h. The patterns are facts of each family's published tokenizer, in their order.
//
// They must stay linear: no repeat inside a repeat, and no search that scans a long run again from
// each of its characters (see kTrailingSpace).
#include "tokenizer/pretokenizer.h"

#include <algorithm>
#include <array>
#include <string>

namespace tael::tokenizer {
namespace {

constexpr const char* kEachDigit = R"(\p{N})";
constexpr const char* kDigits = R"(\p{N}+)";
constexpr const char* kThreeDigits = R"([0-9][0-9][0-9])";
constexpr const char* kUpToThreeDigits = R"(\p{N}{1,3})";
constexpr const char* kLineEnd = R"([\r\n])";
// Only from the start of a run of spaces: without machine code, PCRE2 would scan a long run again
// from each of them.
constexpr const char* kTrailingSpace = R"((?<!\s)\s++\z)";

constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Llama 3's with single digits.
constexpr const char* kQwen2 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                               R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// And with marks as part of words.
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
    R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Words are cut where case rises ("camelCase").
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kFalconPunctuation = R"([\p{P}$+<=>^~|`]+)";
constexpr const char* kDefaultPunctuation = R"([\p{P}$+<=>^~|]+)";

constexpr const char* kDeepSeekCoderWord = R"(\s?\p{L}+)";
constexpr const char* kDeepSeekCoderPunctuation = R"(\s?\p{P}+)";
constexpr const char* kDeepSeekCjk = R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
constexpr const char* kDeepSeekLlmPunctuation =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";
// Letters that have case, as of the Unicode version that the family's authors had.
constexpr const char* kDeepSeekLlmWord =
    R"(\s?[)"
    R"(A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})"
    R"(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386})"
    R"(\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F})"
    R"(\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA})"
    R"(\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A})"
    R"(\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D})"
    R"(\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4})"
    R"(\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3})"
    R"(\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107})"
    R"(\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D})"
    R"(\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184})"
    R"(\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D})"
    R"(\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E})"
    R"(\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A})"
    R"(\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB})"
    R"(\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943})"
    R"(]+)";
constexpr const char* kDeepSeekV3Cjk = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr const char* kDeepSeekV3Word =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
    R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kBloom =
    R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+)";

struct Family {
  std::string_view name;
  std::array<const char*, 6> patterns;  // null-terminated unless full
  bool normalizes = false;
  bool ignores_merges = false;
};

constexpr Family kFamilies[] = {
    {.name = "default", .patterns = {kDefaultPunctuation, kGpt2, kDigits, kThreeDigits}},

    {.name = "gpt-2", .patterns = {kGpt2}},
    {.name = "phi-2", .patterns = {kGpt2}},
    {.name = "exaone4", .patterns = {kGpt2}},
    {.name = "trillion", .patterns = {kGpt2}},
    {.name = "mpt", .patterns = {kGpt2}, .normalizes = true},
    {.name = "olmo", .patterns = {kGpt2}, .normalizes = true},

    {.name = "smollm", .patterns = {kEachDigit, kGpt2}},
    {.name = "starcoder", .patterns = {kEachDigit, kGpt2}},
    {.name = "refact", .patterns = {kEachDigit, kGpt2}},
    {.name = "codeshell", .patterns = {kEachDigit, kGpt2}},
    {.name = "exaone", .patterns = {kEachDigit, kGpt2}},
    {.name = "minerva-7b", .patterns = {kEachDigit, kGpt2}},
    {.name = "command-r", .patterns = {kEachDigit, kGpt2}, .normalizes = true},

    {.name = "llama-bpe", .patterns = {kLlama3}, .ignores_merges = true},
    {.name = "llama3", .patterns = {kLlama3}, .ignores_merges = true},
    {.name = "llama-v3", .patterns = {kLlama3}, .ignores_merges = true},
    {.name = "falcon3", .patterns = {kLlama3}, .ignores_merges = true},
    {.name = "falcon-h1", .patterns = {kLlama3}, .ignores_merges = true},
    {.name = "pixtral", .patterns = {kLlama3}, .ignores_merges = true},
    {.name = "lfm2", .patterns = {kLlama3}, .ignores_merges = true},
    {.name = "midm-2.0", .patterns = {kLlama3}, .ignores_merges = true},
    {.name = "glm4", .patterns = {kLlama3}, .ignores_merges = true},
    {.name = "chatglm-bpe", .patterns = {kLlama3}},
    {.name = "smaug-bpe", .patterns = {kLlama3}},
    {.name = "dbrx", .patterns = {kLlama3}},

    {.name = "qwen2", .patterns = {kQwen2}, .normalizes = true},
    {.name = "deepseek-r1-qwen", .patterns = {kQwen2}, .normalizes = true},
    {.name = "qwen35", .patterns = {kQwen35}, .normalizes = true},
    {.name = "stablelm2", .patterns = {kQwen2}},
    {.name = "megrez", .patterns = {kQwen2}},
    {.name = "hunyuan", .patterns = {kQwen2}},

    {.name = "tekken", .patterns = {kTekken}, .ignores_merges = true},
    {.name = "gpt-4o", .patterns = {kGpt4o}},
    {.name = "llama4", .patterns = {kGpt4o}},

    {.name = "falcon", .patterns = {kFalconPunctuation, kGpt2, kThreeDigits}},

    {.name = "deepseek-llm",
     .patterns = {kLineEnd, kDeepSeekLlmWord, kDeepSeekLlmPunctuation, kTrailingSpace, kDeepSeekCjk,
                  kDigits}},
    {.name = "deepseek-coder",
     .patterns = {kLineEnd, kDeepSeekCoderWord, kDeepSeekCoderPunctuation, kDeepSeekCjk,
                  kEachDigit}},
    {.name = "deepseek-v3", .patterns = {kUpToThreeDigits, kDeepSeekV3Cjk, kDeepSeekV3Word}},

    {.name = "bloom", .patterns = {kBloom}},
    {.name = "poro-chat", .patterns = {kBloom}},
    {.name = "gpt3-finnish", .patterns = {kBloom}},
    {.name = "viking", .patterns = {kBloom, kEachDigit}},
};

}  // namespace

Result<PreTokenizer> PreTokenizer::Create(std::string_view family_name) {
  const auto* family = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                    [&](const Family& f) { return f.name == family_name; });
  if (family == std::end(kFamilies)) {
    return Error{ErrorCode::kUnsupported, "unknown pre-tokeniser",
                 "tokenizer.ggml.pre is \"" + std::string(family_name) +
                     "\", which this build does not know; another build or a model of another "
                     "family is needed"};
  }
  PreTokenizer out;
  out.normalizes_ = family->normalizes;
  out.ignores_merges_ = family->ignores_merges;
  for (const char* pattern : family->patterns) {
    if (pattern == nullptr) break;
    TAEL_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
    out.patterns_.push_back(std::move(regex));
  }
  return out;
}

PreTokenizer::Scratch PreTokenizer::MakeScratch() const {
  Scratch scratch;
  scratch.reserve(patterns_.size());
  for (const Regex& pattern : patterns_) scratch.emplace_back(pattern);
  return scratch;
}

uint64_t PreTokenizer::HeapBytes() const {
  uint64_t bytes = patterns_.capacity() * sizeof(Regex);
  for (const Regex& pattern : patterns_) bytes += pattern.HeapBytes();
  return bytes;
}

}  // namespace tael::tokenizer
