// What the system can spare: for `--budget auto`.
#pragma once

#include <cstdint>
#include <string>

namespace tael::mem {

// Bytes this process may still take: the smallest of MemAvailable (page cache counts as free) and
// what is left under the memory cgroups (v1 and v2) that it is in. 0 when nothing can be read.
// `root` is prefixed to /proc and /sys, so that tests can put fixtures there.
uint64_t AvailableBytes(const std::string& root = "");

}  // namespace tael::mem
