// See regex.h.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/regex.h"

#include <pcre2.h>

#include <string>
#include <utility>

namespace tael::tokenizer {
namespace {

pcre2_code* Code(void* code) { return static_cast<pcre2_code*>(code); }
pcre2_match_data* Data(void* data) { return static_cast<pcre2_match_data*>(data); }

// Writes out what `\s` and `\S` stand for. (`\S` inside a class is not needed by any pattern.)
std::string ExpandWhiteSpace(std::string_view pattern) {
  constexpr std::string_view kWhiteSpace = R"(\t-\r\x{85}\p{Z})";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '\\' || i + 1 == pattern.size()) {
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      out += c;
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's') {
      out += in_class ? std::string(kWhiteSpace) : "[" + std::string(kWhiteSpace) + "]";
    } else if (escaped == 'S') {
      out += "[^" + std::string(kWhiteSpace) + "]";
    } else {
      out += c;
      out += escaped;
    }
  }
  return out;
}

}  // namespace

Regex::Scratch::Scratch(const Regex& regex)
    : data_(pcre2_match_data_create_from_pattern(Code(regex.code_), nullptr)) {}
Regex::Scratch::Scratch(Scratch&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
Regex::Scratch::~Scratch() { pcre2_match_data_free(Data(data_)); }

Result<Regex> Regex::Compile(std::string_view pattern) {
  const std::string expanded = ExpandWhiteSpace(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expanded.data()), expanded.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr) {
    return Error{ErrorCode::kInternal, "a pattern does not compile",
                 expanded + " at " + std::to_string(offset)};
  }
  // Where the system forbids writing code (or this build of the library has none), the interpreter
  // does the same, slower.
  (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return Regex(code);
}

Regex::Regex(Regex&& other) noexcept : code_(std::exchange(other.code_, nullptr)) {}
Regex::~Regex() { pcre2_code_free(Code(code_)); }

std::optional<Regex::Match> Regex::Find(std::string_view text, size_t from,
                                        Scratch& scratch) const {
  if (scratch.data_ == nullptr) return std::nullopt;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  constexpr uint32_t kOptions = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
  int count =
      pcre2_match(Code(code_), subject, text.size(), from, kOptions, Data(scratch.data_), nullptr);
  if (count == PCRE2_ERROR_JIT_STACKLIMIT || count == PCRE2_ERROR_MATCHLIMIT) {
    // No pattern of ours backtracks over more than one run of a class, so this is a very long run:
    // linear, but above limits that are made against exponential patterns.
    pcre2_match_context* context = pcre2_match_context_create(nullptr);
    pcre2_set_match_limit(context, UINT32_MAX);
    count = pcre2_match(Code(code_), subject, text.size(), from, kOptions | PCRE2_NO_JIT,
                        Data(scratch.data_), context);
    pcre2_match_context_free(context);
  }
  if (count <= 0) return std::nullopt;
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(Data(scratch.data_));
  return Match{ends[0], ends[1]};
}

uint64_t Regex::HeapBytes() const {
  size_t size = 0;
  size_t jit_size = 0;
  pcre2_pattern_info(Code(code_), PCRE2_INFO_SIZE, &size);
  pcre2_pattern_info(Code(code_), PCRE2_INFO_JITSIZE, &jit_size);
  return size + jit_size;
}

}  // namespace tael::tokenizer
