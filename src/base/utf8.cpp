// See utf8.h.
#include "base/utf8.h"

#include <cstring>

namespace tael {
namespace {

// What a lead byte promises: the length of the character and the range of its second byte, which
// is where overlong forms, surrogates and values above U+10FFFF are kept out.
struct Lead {
  uint8_t length = 0;  // 0: not a lead byte
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
};

Lead ReadLead(uint8_t byte) {
  if (byte < 0x80) return {.length = 1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {.length = 2};
  if (byte == 0xE0) return {.length = 3, .second_min = 0xA0};
  if (byte == 0xED) return {.length = 3, .second_max = 0x9F};
  if (byte < 0xF0) return {.length = 3};
  if (byte == 0xF0) return {.length = 4, .second_min = 0x90};
  if (byte < 0xF4) return {.length = 4};
  if (byte == 0xF4) return {.length = 4, .second_max = 0x8F};
  return {};
}

}  // namespace

Utf8Char DecodeUtf8(std::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  const Lead lead = ReadLead(first);
  if (lead.length == 0) return {};
  if (lead.length == 1) return {Utf8Status::kValid, 1, first};
  uint32_t code_point = first & (0x7Fu >> lead.length);
  uint8_t min = lead.second_min;
  uint8_t max = lead.second_max;
  for (uint8_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Utf8Status::kIncomplete, i, 0};
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte < min || byte > max) return {Utf8Status::kInvalid, i, 0};
    code_point = (code_point << 6) | (byte & 0x3Fu);
    min = 0x80;
    max = 0xBF;
  }
  return {Utf8Status::kValid, lead.length, code_point};
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    // Eight ASCII bytes at a time: most of most text.
    uint64_t word = 0;
    while (text.size() - pos >= sizeof word) {
      std::memcpy(&word, text.data() + pos, sizeof word);
      if ((word & 0x8080808080808080u) != 0) break;
      pos += sizeof word;
    }
    if (pos == text.size()) break;
    const Utf8Char c = DecodeUtf8(text.substr(pos));
    if (c.status != Utf8Status::kValid) return pos;
    pos += c.length;
  }
  return pos;
}

void AppendUtf8(uint32_t code_point, std::string& out) {
  const auto tail = [&](int shift) {
    out.push_back(static_cast<char>(0x80u | ((code_point >> shift) & 0x3Fu)));
  };
  if (code_point < 0x80) {
    out.push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out.push_back(static_cast<char>(0xC0u | (code_point >> 6)));
    tail(0);
  } else if (code_point < 0x10000) {
    out.push_back(static_cast<char>(0xE0u | (code_point >> 12)));
    tail(6);
    tail(0);
  } else {
    out.push_back(static_cast<char>(0xF0u | (code_point >> 18)));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace tael
