// Small files in which the kernel tells numbers: /proc/meminfo, memory.stat, memory.max, ...
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tael::mem {

// A file that holds one number; none where it holds something else ("max") or is not there.
std::optional<uint64_t> ReadNumber(const std::string& path);

// The number behind `key` in a file of "key value" lines.
std::optional<uint64_t> ReadField(const std::string& path, std::string_view key);

// What is behind "name=" in the line of a file that begins with `line`: of "some avg10=1.50 ...",
// 1.5 for ("some", "avg10").
std::optional<double> ReadAssignment(const std::string& path, std::string_view line,
                                     std::string_view name);

}  // namespace tael::mem
