// See special.h.
#include "tokenizer/special.h"

#include <algorithm>

namespace tael::tokenizer {
namespace {

// Converters write tokens of thinking and of tool calls as user-defined where the model's own
// tokenizer does not call them special. Users must not be able to write those either
// (ACCEPTANCE G3), while "<table>", a user-defined token of Gemma, is text.
bool IsMarkerSpelling(std::string_view spelling) {
  if (spelling == "<think>" || spelling == "</think>") return true;
  constexpr std::string_view kPrefixes[] = {"<|", "<｜", "<tool_", "</tool_"};
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](std::string_view prefix) { return spelling.starts_with(prefix); });
}

bool IsMatchedFirst(TokenKind kind) {
  return kind == TokenKind::kControl || kind == TokenKind::kUnknown ||
         kind == TokenKind::kUserDefined;
}

// `breaks` are sorted.
bool CrossesBreak(std::span<const size_t> breaks, size_t begin, size_t end) {
  const auto it = std::upper_bound(breaks.begin(), breaks.end(), begin);
  return it != breaks.end() && *it < end;
}

}  // namespace

bool NeedsPermission(const Vocab& vocab, uint32_t id) {
  switch (vocab.Kind(id)) {
    case TokenKind::kControl:
    case TokenKind::kUnknown:
      return true;
    case TokenKind::kUserDefined:
      return IsMarkerSpelling(vocab.Spelling(id));
    default:
      return false;
  }
}

SpecialMatcher::SpecialMatcher(const Vocab& vocab) : vocab_(&vocab) {
  for (uint32_t id = 0; id < vocab.size(); ++id) {
    if (IsMatchedFirst(vocab.Kind(id)) && !vocab.Spelling(id).empty()) ids_.push_back(id);
  }
  ids_.shrink_to_fit();
  std::sort(ids_.begin(), ids_.end(), [&](uint32_t a, uint32_t b) {
    return vocab.Spelling(a) < vocab.Spelling(b);  // char_traits<char> orders as unsigned bytes
  });
  for (uint32_t i = 0; i < ids_.size(); ++i) {
    const auto byte = static_cast<uint8_t>(vocab.Spelling(ids_[i])[0]);
    if (first_byte_[byte].end == 0) first_byte_[byte].begin = i;
    first_byte_[byte].end = i + 1;
    if (!NeedsPermission(vocab, ids_[i])) free_byte_[byte] = true;
  }
}

std::optional<SpecialMatch> SpecialMatcher::FindNext(std::string_view text, size_t from,
                                                     const EncodeOptions& options) const {
  for (size_t pos = from; pos < text.size(); ++pos) {
    const auto byte = static_cast<uint8_t>(text[pos]);
    if (first_byte_[byte].end == 0) continue;
    if (!options.parse_control && !free_byte_[byte]) continue;
    if (auto match = MatchAt(text, pos, options)) return match;
  }
  return std::nullopt;
}

std::optional<SpecialMatch> SpecialMatcher::MatchAt(std::string_view text, size_t begin,
                                                    const EncodeOptions& options) const {
  std::optional<SpecialMatch> best;
  Range range = first_byte_[static_cast<uint8_t>(text[begin])];
  for (size_t depth = 1; range.begin < range.end; ++depth) {
    const uint32_t id = ids_[range.begin];
    if (vocab_->Spelling(id).size() == depth) {  // the shortest of a prefix sorts first
      const size_t end = begin + depth;
      const bool allowed = !NeedsPermission(*vocab_, id) ||
                           (options.parse_control && !CrossesBreak(options.breaks, begin, end));
      if (allowed) best = SpecialMatch{begin, end, id};
      ++range.begin;
    }
    if (begin + depth == text.size()) break;
    range = Narrow(range, depth, static_cast<uint8_t>(text[begin + depth]));
  }
  return best;
}

SpecialMatcher::Range SpecialMatcher::Narrow(Range range, size_t depth, uint8_t byte) const {
  // All spellings in the range are longer than depth.
  const auto byte_of = [&](uint32_t id) {
    return static_cast<uint8_t>(vocab_->Spelling(id)[depth]);
  };
  const auto first = ids_.begin() + range.begin;
  const auto last = ids_.begin() + range.end;
  const auto begin =
      std::partition_point(first, last, [&](uint32_t id) { return byte_of(id) < byte; });
  const auto end =
      std::partition_point(begin, last, [&](uint32_t id) { return byte_of(id) == byte; });
  return {static_cast<uint32_t>(begin - ids_.begin()), static_cast<uint32_t>(end - ids_.begin())};
}

}  // namespace tael::tokenizer
