#include "text/utf8.h"

#include "base/utf8.h"

namespace tael::text {

size_t ValidSequenceLength(std::string_view text) {
  if (text.empty()) return 0;
  const Utf8Char front = DecodeUtf8(text);
  return front.status == Utf8Status::kValid ? front.length : 0;
}

bool IsValidUtf8(std::string_view text) { return ValidUtf8Prefix(text) == text.size(); }

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = ValidSequenceLength(text);
    if (length == 0) {
      out += kReplacementCharacter;
      text.remove_prefix(1);
    } else {
      out += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return out;
}

}  // namespace tael::text
