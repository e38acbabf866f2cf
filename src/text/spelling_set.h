// The spellings of control tokens, arranged to be found in text: whole, or cut off by its edges.
//
// Time per position is bounded by the longest spelling, so a search is linear in the text. The set
// knows bytes, not characters, and decides nothing about what a find means.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tael::text {

class SpellingSet {
 public:
  SpellingSet() = default;
  // Spellings of one character are left out: no break can lie inside them.
  explicit SpellingSet(std::vector<std::string> spellings);

  struct Find {
    size_t longest = 0;       // bytes of the longest spelling at the position, 0 if none
    bool cut_by_end = false;  // a longer one begins here and the text ends within it
  };
  // Requires: at < text.size().
  Find FindAt(std::string_view text, size_t at) const;

  // The text before `end`, all of it, is a proper suffix of a spelling. Requires: 0 < end <= size.
  bool IsCutByStart(std::string_view text, size_t end) const;

  bool MayBegin(char byte) const { return begins_[static_cast<unsigned char>(byte)]; }
  bool MayEnd(char byte) const { return ends_[static_cast<unsigned char>(byte)]; }
  size_t longest() const { return longest_; }

 private:
  std::vector<std::string> forward_;   // sorted
  std::vector<std::string> backward_;  // each reversed, sorted
  std::vector<bool> begins_ = std::vector<bool>(256);
  std::vector<bool> ends_ = std::vector<bool>(256);
  size_t longest_ = 0;
};

}  // namespace tael::text
