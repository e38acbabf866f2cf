#include "mem/system_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

namespace tael::mem {
namespace {

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  uint64_t value = 0;
  const auto [end, ec] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (ec != std::errc{} || end != word.data() + word.size()) return std::nullopt;  // "max"
  return value;
}

// The value after `key` in a file of "key value" lines.
std::optional<uint64_t> ReadField(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  uint64_t value = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    if (fields >> word >> value && word == key) return value;
  }
  return std::nullopt;
}

// What is left in one cgroup folder: limit - usage + inactive file pages (they are given back
// before anybody is killed).
std::optional<uint64_t> LeftIn(const std::string& folder, const char* limit_file,
                               const char* usage_file, const char* inactive_key) {
  const auto limit = ReadNumber(folder + "/" + limit_file);
  const auto usage = ReadNumber(folder + "/" + usage_file);
  if (!limit || !usage) return std::nullopt;
  const uint64_t inactive = ReadField(folder + "/memory.stat", inactive_key).value_or(0);
  const uint64_t used = *usage - std::min(*usage, inactive);
  return *limit - std::min(*limit, used);
}

// The tightest of a group and its ancestors.
void NarrowBy(const std::string& mount, std::string group, bool v2, uint64_t& left) {
  while (true) {
    const auto here = v2 ? LeftIn(mount + group, "memory.max", "memory.current", "inactive_file")
                         : LeftIn(mount + group, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file");
    if (here) left = std::min(left, *here);
    if (group.empty() || group == "/") return;
    group.resize(group.rfind('/'));
  }
}

}  // namespace

uint64_t AvailableBytes(const std::string& root) {
  const auto available = ReadField(root + "/proc/meminfo", "MemAvailable:");
  if (!available) return 0;
  uint64_t left = *available * 1024;
  // Lines "id:controllers:path"; no controllers: v2.
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) NarrowBy(root + "/sys/fs/cgroup", group, true, left);
    if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      NarrowBy(root + "/sys/fs/cgroup/memory", group, false, left);
    }
  }
  return left;
}

}  // namespace tael::mem
