#include "text/utf8.h"

#include <cstdint>

namespace tael::text {
namespace {

// What the first byte of a sequence promises.
struct Lead {
  size_t length;
  uint32_t bits;     // of the code point
  uint32_t minimum;  // smaller values are overlong
};

Lead DecodeLead(unsigned char byte) {
  if (byte < 0x80) return {1, byte, 0};
  if ((byte & 0xE0) == 0xC0) return {2, byte & 0x1Fu, 0x80};
  if ((byte & 0xF0) == 0xE0) return {3, byte & 0x0Fu, 0x800};
  if ((byte & 0xF8) == 0xF0) return {4, byte & 0x07u, 0x10000};
  return {0, 0, 0};
}

}  // namespace

size_t ValidSequenceLength(std::string_view text) {
  if (text.empty()) return 0;
  const Lead lead = DecodeLead(static_cast<unsigned char>(text[0]));
  if (lead.length == 0 || lead.length > text.size()) return 0;
  uint32_t code_point = lead.bits;
  for (size_t i = 1; i < lead.length; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0) != 0x80) return 0;
    code_point = code_point << 6 | (byte & 0x3Fu);
  }
  const bool is_surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
  if (code_point < lead.minimum || code_point > 0x10FFFF || is_surrogate) return 0;
  return lead.length;
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = ValidSequenceLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = ValidSequenceLength(text);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      text.remove_prefix(1);
    } else {
      out += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return out;
}

}  // namespace tael::text
