// Keeps users' text from spelling control tokens across a template (ACCEPTANCE G3).
//
// A marker, a character that occurs nowhere else, is put inside every place of a message where a
// control token is spelled, or could be once the template sets other text beside it. The marker
// travels through the template with the text, and is then taken out again; where it was, the
// tokenizer matches no control token. Text that needs no marker goes through unchanged, so a
// template's tests and filters see what the user wrote.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"
#include "text/spelling_set.h"

namespace tael::text {

enum class Marking {
  kSpellings,  // whole spellings, and those that the text's edges cut
  kEveryEdge,  // every character that begins or ends some spelling: holds whatever a template
               // deletes or joins, but hides more from its tests
};

// A noncharacter (U+FDD0 to U+FDEF) in UTF-8 that occurs in none of the texts; nullopt if all do.
std::optional<std::string> ChooseMarker(std::span<const std::string_view> texts);

// Requires: `content` is valid UTF-8. Spellings in `exempt` are passed as they are.
std::string MarkContent(std::string_view content, const SpellingSet& spellings,
                        std::span<const std::string> exempt, Marking marking,
                        std::string_view marker);

// Takes the markers out of rendered text and remembers where they were.
RenderedChat TakeMarkers(std::string_view rendered, std::string_view marker);

// Places where a control token is spelled and no break lies inside.
size_t CountUnbroken(const RenderedChat& chat, const SpellingSet& spellings);

}  // namespace tael::text
