// What comes in: text from a flag, a file or standard input, and lists of token ids.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "cli/options.h"

namespace tael::cli {

inline constexpr uint64_t kMaxInputBytes = uint64_t{1} << 28;

// Byte for byte. Fails: kInvalidArgument, naming the file.
Result<std::string> ReadText(const TextFlags& flags);
Result<std::string> ReadFile(const std::string& path);

// A JSON array of integers. Fails: kInvalidArgument; `name` is the flag or file it came from. Ids
// are checked against the vocabulary by those who know it.
Result<std::vector<TokenId>> ParseIdArray(std::string_view text, std::string_view name);
// The same, or numbers separated by spaces, commas or line ends.
Result<std::vector<TokenId>> ParseIds(std::string_view text, std::string_view name);

}  // namespace tael::cli
