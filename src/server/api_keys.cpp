#include "server/api_keys.h"

#include <strings.h>

#include <algorithm>
#include <cstring>

namespace tael::server {
namespace {

constexpr size_t kMostKeyBytes = 1024;

Error Bad(const std::string& path, const std::string& why) {
  return Error{ErrorCode::kInvalidArgument, "API key file", path + ": " + why};
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

bool IsKey(std::string_view text) {
  return text.size() <= kMostKeyBytes &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c < '\x7f'; });
}

bool AreEqual(std::string_view shown, std::string_view key) {
  // Every byte that was shown is looked at, whatever the others are.
  unsigned difference = shown.size() != key.size() ? 1 : 0;
  for (size_t i = 0; i < shown.size(); ++i) {
    difference |= static_cast<unsigned char>(shown[i] ^ key[i % key.size()]);
  }
  return difference == 0;
}

}  // namespace

Result<ApiKeys> ApiKeys::Parse(std::string_view text, const std::string& path) {
  ApiKeys keys;
  size_t line_number = 0;
  while (!text.empty()) {
    ++line_number;
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = Trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    if (!IsKey(line)) {
      return Bad(path, "line " + std::to_string(line_number) +
                           " is no key: up to 1024 visible ASCII characters without spaces");
    }
    keys.keys_.emplace_back(line);
  }
  if (keys.keys_.empty()) return Bad(path, "holds no key");
  return keys;
}

std::optional<uint64_t> ApiKeys::Check(std::string_view authorization) const {
  if (!are_required()) return 0;
  constexpr std::string_view kScheme = "Bearer ";
  if (authorization.size() <= kScheme.size() ||
      strncasecmp(authorization.data(), kScheme.data(), kScheme.size()) != 0) {
    return std::nullopt;
  }
  const std::string_view shown = Trimmed(authorization.substr(kScheme.size()));
  const std::string* found = nullptr;
  for (const std::string& key : keys_) {  // to the end, wherever it is
    if (AreEqual(shown, key)) found = &key;
  }
  if (found == nullptr) return std::nullopt;
  return SaltOf(*found);
}

std::vector<uint64_t> ApiKeys::Salts() const {
  if (keys_.empty()) return {0};
  std::vector<uint64_t> salts;
  for (const std::string& key : keys_) salts.push_back(SaltOf(key));
  return salts;
}

uint64_t SaltOf(std::string_view key) {
  // FNV-1a, then the finishing steps of splitmix64: every bit of the key moves every bit.
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : key) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
  hash ^= hash >> 31;
  return hash != 0 ? hash : 1;
}

}  // namespace tael::server
