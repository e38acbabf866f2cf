#include "mem/system_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "mem/cgroups.h"

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

// The names that a version of cgroups has for its files, and for the fields of memory.stat.
struct CgroupNames {
  const char* limit;
  const char* usage;
  const char* inactive_file;
  const char* active_file;
  const char* mapped_file;
};
constexpr CgroupNames kV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                             "total_inactive_file", "total_active_file", "total_mapped_file"};
constexpr CgroupNames kV2 = {"memory.max", "memory.current", "inactive_file", "active_file",
                             "file_mapped"};

// File pages that are given back before anybody is killed: the inactive ones, and of the active
// ones those that no process has mapped. A model that was used twice is active, and stays so when
// its process has ended: without it, the next one would find the cgroup full of what it came for.
uint64_t FreeFileBytes(const std::string& folder, const CgroupNames& names) {
  const std::string stat = folder + "/memory.stat";
  const uint64_t inactive = ReadField(stat, names.inactive_file).value_or(0);
  const uint64_t active = ReadField(stat, names.active_file).value_or(0);
  const uint64_t mapped = ReadField(stat, names.mapped_file).value_or(active);
  return inactive + active - std::min(active, mapped);
}

// What is left in one cgroup folder.
std::optional<uint64_t> LeftIn(const std::string& folder, const CgroupNames& names) {
  const auto limit = ReadNumber(folder + "/" + names.limit);
  const auto usage = ReadNumber(folder + "/" + names.usage);
  if (!limit || !usage) return std::nullopt;
  const uint64_t used = *usage - std::min(*usage, FreeFileBytes(folder, names));
  return *limit - std::min(*limit, used);
}

}  // namespace

uint64_t AvailableBytes(const std::string& root) {
  const auto available = ReadField(root + "/proc/meminfo", "MemAvailable:");
  if (!available) return 0;
  uint64_t left = *available * 1024;
  ForEachCgroup(root, "memory", [&left](const std::string& folder, bool v2) {
    const auto here = LeftIn(folder, v2 ? kV2 : kV1);
    if (here) left = std::min(left, *here);
  });
  return left;
}

}  // namespace tael::mem
