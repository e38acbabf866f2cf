// Just enough UTF-8 for the text layer: where characters begin, and making any bytes valid.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tael::text {

// Bytes of the valid UTF-8 sequence at the front of `text`, 0 if there is none. Surrogates,
// overlong forms and values above U+10FFFF are not valid.
size_t ValidSequenceLength(std::string_view text);

bool IsValidUtf8(std::string_view text);

// Each byte that begins no valid sequence becomes U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view text);

// True where a character of valid UTF-8 may begin.
constexpr bool IsBoundaryByte(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

}  // namespace tael::text
