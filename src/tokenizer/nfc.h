// Unicode normalisation form C, for the families whose own tokenizer normalises.
//
// Linear in the text apart from sorting runs of combining marks: the library's own routine sorts
// them by insertion, which a hostile prompt of nothing but marks makes quadratic.
#pragma once

#include <string>
#include <string_view>

namespace tael::tokenizer {

// True if the text cannot change: it holds nothing above U+02FF. (Other text may be NFC too.)
bool IsTriviallyNfc(std::string_view text);

// Requires: text is valid UTF-8.
std::string ToNfc(std::string_view text);

}  // namespace tael::tokenizer
