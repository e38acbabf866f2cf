// UTF-8, one code point at a time, over bytes that may be anything.
//
// Invalid input is cut the way Unicode recommends ("maximal subparts"): the longest prefix of a
// well-formed sequence counts as one error, any other byte as one each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tael {

enum class Utf8Status : uint8_t {
  kValid,
  kInvalid,     // no continuation could make these bytes a character
  kIncomplete,  // the text ends inside a character that is well-formed so far
};

struct Utf8Char {
  Utf8Status status = Utf8Status::kInvalid;
  uint8_t length = 1;       // bytes that belong to this character or error, at least 1
  uint32_t code_point = 0;  // where valid
};

// Requires: !text.empty().
Utf8Char DecodeUtf8(std::string_view text);

// Length of the longest prefix that is well-formed.
size_t ValidUtf8Prefix(std::string_view text);

// Requires: code_point is a Unicode scalar value.
void AppendUtf8(uint32_t code_point, std::string& out);

// U+FFFD, which stands for every invalid sequence in text for people.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace tael
