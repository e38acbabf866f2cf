// See nfc.h. Tables and composition come from utf8proc; order of marks is ours.
#include "tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/utf8.h"

namespace tael::tokenizer {
namespace {

constexpr auto kDecompose = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE);
constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
constexpr size_t kMaxDecomposition = 32;  // Unicode's longest canonical one is 4 code points

utf8proc_propval_t CombiningClass(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

std::vector<utf8proc_int32_t> Decompose(std::string_view text) {
  std::vector<utf8proc_int32_t> out;
  out.reserve(text.size());
  std::array<utf8proc_int32_t, kMaxDecomposition> parts{};
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = DecodeUtf8(text.substr(pos));
    pos += c.length;
    const auto code_point = static_cast<utf8proc_int32_t>(c.code_point);
    int last_boundary_class = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(code_point, parts.data(),
                                                       static_cast<utf8proc_ssize_t>(parts.size()),
                                                       kDecompose, &last_boundary_class);
    if (n <= 0 || static_cast<size_t>(n) > parts.size()) {
      out.push_back(code_point);  // a code point the tables do not know stands for itself
    } else {
      out.insert(out.end(), parts.begin(), parts.begin() + n);
    }
  }
  return out;
}

// Canonical ordering: within a run of marks, by combining class, equal ones as they came.
void SortMarks(std::vector<utf8proc_int32_t>& text) {
  const auto is_mark = [](utf8proc_int32_t c) { return CombiningClass(c) != 0; };
  for (auto it = text.begin(); it != text.end();) {
    const auto begin = std::find_if(it, text.end(), is_mark);
    const auto end = std::find_if_not(begin, text.end(), is_mark);
    if (end - begin > 1) {
      std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
        return CombiningClass(a) < CombiningClass(b);
      });
    }
    it = end;
  }
}

}  // namespace

bool IsTriviallyNfc(std::string_view text) {
  // U+0300 starts with byte 0xCC; every character below it starts with less.
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0xCC; });
}

std::string ToNfc(std::string_view text) {
  if (IsTriviallyNfc(text)) return std::string(text);
  std::vector<utf8proc_int32_t> chars = Decompose(text);
  SortMarks(chars);
  const utf8proc_ssize_t n =
      utf8proc_normalize_utf32(chars.data(), static_cast<utf8proc_ssize_t>(chars.size()), kCompose);
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < n; ++i) {
    AppendUtf8(static_cast<uint32_t>(chars[static_cast<size_t>(i)]), out);
  }
  return out;
}

}  // namespace tael::tokenizer
