#include "cli/input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/terminal.h"

namespace tael::cli {
namespace {

Error Bad(const char* what, std::string_view name, std::string_view why) {
  return Error{ErrorCode::kInvalidArgument, what, std::string(name) + ": " + std::string(why)};
}

Result<std::string> ReadAll(int descriptor, const std::string& name) {
  std::string text;
  char bytes[1 << 16];
  for (;;) {
    const ssize_t count = read(descriptor, bytes, sizeof bytes);
    if (count == 0) return text;
    if (count < 0 && errno == EINTR) {
      return Error{ErrorCode::kCancelled, "interrupted", "while reading " + name};
    }
    if (count < 0) return Bad("cannot read", name, std::strerror(errno));
    text.append(bytes, static_cast<size_t>(count));
    if (text.size() > kMaxInputBytes) {
      return Bad("too much text", name, "the limit is " + FormatSize(kMaxInputBytes));
    }
  }
}

Result<TokenId> ToId(int64_t value, std::string_view name) {
  if (value < 0 || value > INT32_MAX) {
    return Bad("not a token id", name, std::to_string(value));
  }
  return TokenId{static_cast<int32_t>(value)};
}

}  // namespace

Result<std::string> ReadFile(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return Bad("cannot open the file", path, std::strerror(errno));
  auto text = ReadAll(descriptor, path);
  close(descriptor);
  return text;
}

Result<std::string> ReadText(const TextFlags& flags) {
  if (flags.text) return *flags.text;
  if (flags.file) return ReadFile(*flags.file);
  if (isatty(STDIN_FILENO) != 0) Note("reading text from the terminal; Ctrl-D ends it");
  return ReadAll(STDIN_FILENO, "standard input");
}

Result<std::vector<TokenId>> ParseIdArray(std::string_view text, std::string_view name) {
  const auto parsed = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (!parsed.is_array()) {
    return Bad("not a JSON array of token ids", name, "expected something like [1, 2, 3]");
  }
  std::vector<TokenId> ids;
  ids.reserve(parsed.size());
  for (const auto& element : parsed) {
    if (!element.is_number_integer()) {
      return Bad("not a JSON array of token ids", name,
                 "element " + std::to_string(ids.size()) + " is no integer");
    }
    const bool too_large = element.is_number_unsigned() && element.get<uint64_t>() > INT32_MAX;
    TAEL_ASSIGN_OR_RETURN(const TokenId id,
                          ToId(too_large ? INT64_MAX : element.get<int64_t>(), name));
    ids.push_back(id);
  }
  return ids;
}

Result<std::vector<TokenId>> ParseIds(std::string_view text, std::string_view name) {
  constexpr std::string_view kSeparators = " ,\t\r\n";
  size_t at = text.find_first_not_of(kSeparators);
  if (at != std::string_view::npos && text[at] == '[') return ParseIdArray(text, name);
  std::vector<TokenId> ids;
  while (at != std::string_view::npos) {
    const size_t end = std::min(text.find_first_of(kSeparators, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    int64_t value = 0;
    const auto [rest, error] = std::from_chars(word.begin(), word.end(), value);
    if (error != std::errc{} || rest != word.end()) return Bad("not a token id", name, word);
    TAEL_ASSIGN_OR_RETURN(const TokenId id, ToId(value, name));
    ids.push_back(id);
    at = text.find_first_not_of(kSeparators, end);
  }
  return ids;
}

}  // namespace tael::cli
