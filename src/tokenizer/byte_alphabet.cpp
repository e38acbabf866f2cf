// See byte_alphabet.h.
#include "tokenizer/byte_alphabet.h"

#include <array>

#include "base/utf8.h"

namespace tael::tokenizer {
namespace {

constexpr uint32_t kFirstStandIn = 0x100;
constexpr size_t kNumStandIns = 68;  // 33 controls and space, 34 of U+007F..U+00A0, soft hyphen

constexpr bool SpellsItself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

struct Alphabet {
  std::array<uint16_t, 256> char_of_byte{};
  std::array<uint8_t, kNumStandIns> byte_of_stand_in{};
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  size_t stand_ins = 0;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (SpellsItself(byte)) {
      alphabet.char_of_byte[byte] = static_cast<uint16_t>(byte);
    } else {
      alphabet.char_of_byte[byte] = static_cast<uint16_t>(kFirstStandIn + stand_ins);
      alphabet.byte_of_stand_in[stand_ins++] = static_cast<uint8_t>(byte);
    }
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();
static_assert(kAlphabet.char_of_byte[' '] == 0x120);
static_assert(kAlphabet.byte_of_stand_in[kNumStandIns - 1] == 0xAD);

}  // namespace

uint32_t CharOfByte(uint8_t byte) { return kAlphabet.char_of_byte[byte]; }

std::optional<uint8_t> ByteOfChar(uint32_t code_point) {
  if (code_point < kFirstStandIn) {
    if (!SpellsItself(code_point)) return std::nullopt;
    return static_cast<uint8_t>(code_point);
  }
  if (code_point >= kFirstStandIn + kNumStandIns) return std::nullopt;
  return kAlphabet.byte_of_stand_in[code_point - kFirstStandIn];
}

std::string DecodeByteSpelling(std::string_view spelling) {
  std::string out;
  out.reserve(spelling.size());
  while (!spelling.empty()) {
    const Utf8Char c = DecodeUtf8(spelling);
    const auto byte = c.status == Utf8Status::kValid ? ByteOfChar(c.code_point) : std::nullopt;
    if (byte) {
      out.push_back(static_cast<char>(*byte));
    } else {
      out.append(spelling.substr(0, c.length));
    }
    spelling.remove_prefix(c.length);
  }
  return out;
}

}  // namespace tael::tokenizer
