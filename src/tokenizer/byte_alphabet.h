// The alphabet of byte-level BPE: each byte is spelled as one printable character in the
// vocabulary. Printable bytes of Latin-1 stand for themselves; the others, in order, are the
// characters from U+0100 on ("Ġ" is the space).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tael::tokenizer {

// The character that spells a byte.
uint32_t CharOfByte(uint8_t byte);
// The byte that a character spells; none for characters outside the alphabet.
std::optional<uint8_t> ByteOfChar(uint32_t code_point);

// "Ġthe" -> " the". Characters outside the alphabet stay as they are.
std::string DecodeByteSpelling(std::string_view spelling);

}  // namespace tael::tokenizer
