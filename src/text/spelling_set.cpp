#include "text/spelling_set.h"

#include <algorithm>
#include <iterator>

#include "text/utf8.h"

namespace tael::text {
namespace {

using Words = std::vector<std::string>;

// The sorted words that agree with what was read so far.
class Prefixed {
 public:
  explicit Prefixed(const Words& words) : first_(words.begin()), last_(words.end()) {}

  // Keeps the words that go on with `byte`.
  void Narrow(char byte) {
    first_ = std::lower_bound(first_, last_, byte, [this](const std::string& word, char b) {
      return depth_ >= word.size() || Less(word[depth_], b);
    });
    last_ = std::upper_bound(first_, last_, byte, [this](char b, const std::string& word) {
      return Less(b, word[depth_]);
    });
    ++depth_;
  }
  bool empty() const { return first_ == last_; }
  // Sorted order puts the word that ends here before those that go on.
  bool HasWhole() const { return !empty() && first_->size() == depth_; }
  bool HasLonger() const { return !empty() && std::prev(last_)->size() > depth_; }

 private:
  static bool Less(char a, char b) {
    return static_cast<unsigned char>(a) < static_cast<unsigned char>(b);
  }

  Words::const_iterator first_;
  Words::const_iterator last_;
  size_t depth_ = 0;
};

}  // namespace

SpellingSet::SpellingSet(std::vector<std::string> spellings) : forward_(std::move(spellings)) {
  std::erase_if(forward_, [](const std::string& spelling) {
    return !IsValidUtf8(spelling) || ValidSequenceLength(spelling) == spelling.size();
  });
  std::sort(forward_.begin(), forward_.end());
  forward_.erase(std::unique(forward_.begin(), forward_.end()), forward_.end());
  for (const std::string& spelling : forward_) {
    backward_.emplace_back(spelling.rbegin(), spelling.rend());
    begins_[static_cast<unsigned char>(spelling.front())] = true;
    ends_[static_cast<unsigned char>(spelling.back())] = true;
    longest_ = std::max(longest_, spelling.size());
  }
  std::sort(backward_.begin(), backward_.end());
}

SpellingSet::Find SpellingSet::FindAt(std::string_view text, size_t at) const {
  Find find;
  if (!MayBegin(text[at])) return find;
  Prefixed words(forward_);
  for (size_t i = at; i < text.size(); ++i) {
    words.Narrow(text[i]);
    if (words.empty()) return find;
    if (words.HasWhole()) find.longest = i + 1 - at;
  }
  find.cut_by_end = words.HasLonger();
  return find;
}

bool SpellingSet::IsCutByStart(std::string_view text, size_t end) const {
  if (!MayEnd(text[end - 1])) return false;
  Prefixed words(backward_);
  for (size_t i = end; i > 0; --i) {
    words.Narrow(text[i - 1]);
    if (words.empty()) return false;
  }
  return words.HasLonger();
}

}  // namespace tael::text
