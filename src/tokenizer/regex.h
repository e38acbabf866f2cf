// A PCRE2 pattern over UTF-8, compiled once and matched from many threads. The only file that
// knows PCRE2.
//
// Patterns are our own constants, never a file's or a user's. `\s` and `\S` mean Unicode's
// White_Space, as in the libraries that the patterns come from (PCRE2 alone would count U+180E).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/result.h"

namespace tael::tokenizer {

class Regex {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };

  // Scratch memory of one search; one per thread and pattern.
  class Scratch {
   public:
    explicit Scratch(const Regex& regex);
    ~Scratch();
    Scratch(Scratch&& other) noexcept;
    Scratch& operator=(Scratch&&) = delete;

   private:
    friend class Regex;
    void* data_ = nullptr;
  };

  // Fails: kInternal, for a pattern that does not compile.
  static Result<Regex> Compile(std::string_view pattern);
  Regex(Regex&& other) noexcept;
  Regex& operator=(Regex&&) = delete;
  ~Regex();

  // The first non-empty match that begins at `from` or later; nothing before the text is visible
  // to look-behind. Requires: text is valid UTF-8, and `from` is no inside of a character.
  std::optional<Match> Find(std::string_view text, size_t from, Scratch& scratch) const;

  // Bytes of the compiled pattern, machine code included.
  uint64_t HeapBytes() const;

 private:
  explicit Regex(void* code) : code_(code) {}
  void* code_;  // pcre2_code, kept out of this header
};

}  // namespace tael::tokenizer
