// What the system can spare: for `--budget auto`, and for weights that lose their room.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tael::mem {

// Bytes this process may still take: the smallest of MemAvailable (page cache counts as free) and
// what is left under the memory cgroups (v1 and v2) that it is in. 0 when nothing can be read.
// `root` is prefixed to /proc and /sys, so that tests can put fixtures there.
uint64_t AvailableBytes(const std::string& root = "");

// MemAvailable alone: what the whole system could spare, page cache included. None where it cannot
// be read.
std::optional<uint64_t> SystemAvailableBytes(const std::string& root = "");

// What one control group leaves for file pages: its limit less everything in it that is no file
// page. None where it has no limit, or cannot be read.
std::optional<uint64_t> FileRoomIn(const std::string& folder, bool v2);

// The smallest of that over all groups that this process is in; none where no group has a limit.
std::optional<uint64_t> FileRoomBytes(const std::string& root = "");

}  // namespace tael::mem
