#include "text/break_markers.h"

#include <algorithm>

#include "text/utf8.h"

namespace tael::text {
namespace {

size_t NextCharacter(std::string_view text, size_t at) {
  do {
    ++at;
  } while (at < text.size() && !IsBoundaryByte(text[at]));
  return at;
}

size_t PreviousCharacter(std::string_view text, size_t at) {
  do {
    --at;
  } while (at > 0 && !IsBoundaryByte(text[at]));
  return at;
}

size_t ExemptLength(std::string_view text, std::span<const std::string> exempt) {
  for (const std::string& spelling : exempt) {
    if (text.starts_with(spelling)) return spelling.size();
  }
  return 0;
}

// Markers after the first character of whatever begins a spelling: that is strictly inside it.
void MarkBeginnings(std::string_view content, const SpellingSet& spellings,
                    std::span<const std::string> exempt, Marking marking,
                    std::vector<size_t>& places) {
  for (size_t i = 0; i < content.size(); ++i) {
    if (!spellings.MayBegin(content[i])) continue;
    if (const size_t length = ExemptLength(content.substr(i), exempt); length > 0) {
      i += length - 1;
      continue;
    }
    const SpellingSet::Find find = spellings.FindAt(content, i);
    if (marking == Marking::kEveryEdge || find.longest > 0 || find.cut_by_end) {
      places.push_back(NextCharacter(content, i));
    }
  }
}

// Markers before the last character of whatever ends a spelling that began before the content.
void MarkEndings(std::string_view content, const SpellingSet& spellings,
                 std::span<const std::string> exempt, Marking marking,
                 std::vector<size_t>& places) {
  const bool every = marking == Marking::kEveryEdge;
  const size_t limit = every ? content.size() : std::min(content.size(), spellings.longest());
  for (size_t i = 0; i < limit; ++i) {
    if (const size_t length = ExemptLength(content.substr(i), exempt); length > 0) {
      i += length - 1;
      continue;
    }
    if (every ? spellings.MayEnd(content[i]) : spellings.IsCutByStart(content, i + 1)) {
      places.push_back(PreviousCharacter(content, i + 1));
    }
  }
}

}  // namespace

std::optional<std::string> ChooseMarker(std::span<const std::string_view> texts) {
  for (char last = '\x90'; last <= '\xAF'; ++last) {
    std::string marker = {'\xEF', '\xB7', last};
    const bool is_used = std::any_of(texts.begin(), texts.end(), [&](std::string_view text) {
      return text.find(marker) != std::string_view::npos;
    });
    if (!is_used) return marker;
  }
  return std::nullopt;
}

std::string MarkContent(std::string_view content, const SpellingSet& spellings,
                        std::span<const std::string> exempt, Marking marking,
                        std::string_view marker) {
  std::vector<size_t> places;
  MarkBeginnings(content, spellings, exempt, marking, places);
  MarkEndings(content, spellings, exempt, marking, places);
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());

  std::string out;
  out.reserve(content.size() + places.size() * marker.size());
  size_t done = 0;
  for (const size_t place : places) {
    out += content.substr(done, place - done);
    out += marker;
    done = place;
  }
  out += content.substr(done);
  return out;
}

RenderedChat TakeMarkers(std::string_view rendered, std::string_view marker) {
  RenderedChat chat;
  chat.text.reserve(rendered.size());
  for (size_t at = 0;;) {
    const size_t next = rendered.find(marker, at);
    chat.text += rendered.substr(at, next - at);
    if (next == std::string_view::npos) return chat;
    if (chat.breaks.empty() || chat.breaks.back() != chat.text.size()) {
      chat.breaks.push_back(chat.text.size());
    }
    at = next + marker.size();
  }
}

size_t CountUnbroken(const RenderedChat& chat, const SpellingSet& spellings) {
  size_t count = 0;
  auto next_break = chat.breaks.begin();
  for (size_t i = 0; i < chat.text.size(); ++i) {
    while (next_break != chat.breaks.end() && *next_break <= i) ++next_break;
    const std::string_view until_break = std::string_view(chat.text).substr(
        0, next_break == chat.breaks.end() ? chat.text.size() : *next_break);
    if (spellings.FindAt(until_break, i).longest > 0) ++count;
  }
  return count;
}

}  // namespace tael::text
