#include "mem/system_memory.h"

#include <algorithm>

#include "mem/cgroups.h"
#include "mem/kernel_file.h"

namespace tael::mem {
namespace {

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

// What the limit of a group leaves beside its usage, of which `uncounted` bytes do not count. None
// where it has no limit: version 1 writes that as a number that no machine reaches.
std::optional<uint64_t> LeftBeside(const std::string& folder, const CgroupNames& names,
                                   uint64_t uncounted) {
  constexpr uint64_t kNoLimit = uint64_t{1} << 50;
  const auto limit = ReadNumber(folder + "/" + names.limit);
  const auto usage = ReadNumber(folder + "/" + names.usage);
  if (!limit || !usage || *limit >= kNoLimit) return std::nullopt;
  return *limit - std::min(*limit, *usage - std::min(*usage, uncounted));
}

const CgroupNames& NamesOf(bool v2) { return v2 ? kV2 : kV1; }

}  // namespace

std::optional<uint64_t> SystemAvailableBytes(const std::string& root) {
  const auto available = ReadField(root + "/proc/meminfo", "MemAvailable:");
  return available ? std::optional(*available * 1024) : std::nullopt;
}

uint64_t AvailableBytes(const std::string& root) {
  const auto available = SystemAvailableBytes(root);
  if (!available) return 0;
  uint64_t left = *available;
  ForEachCgroup(root, "memory", [&left](const std::string& folder, bool v2) {
    const CgroupNames& names = NamesOf(v2);
    const auto here = LeftBeside(folder, names, FreeFileBytes(folder, names));
    if (here) left = std::min(left, *here);
  });
  return left;
}

std::optional<uint64_t> FileRoomIn(const std::string& folder, bool v2) {
  const CgroupNames& names = NamesOf(v2);
  const std::string stat = folder + "/memory.stat";
  const uint64_t files = ReadField(stat, names.inactive_file).value_or(0) +
                         ReadField(stat, names.active_file).value_or(0);
  return LeftBeside(folder, names, files);
}

std::optional<uint64_t> FileRoomBytes(const std::string& root) {
  std::optional<uint64_t> least;
  ForEachCgroup(root, "memory", [&least](const std::string& folder, bool v2) {
    const auto room = FileRoomIn(folder, v2);
    if (room) least = std::min(least.value_or(*room), *room);
  });
  return least;
}

}  // namespace tael::mem
