// The control groups that this process is in, v1 and v2, for whoever looks for the limits they set.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace tael::mem {

// `folder` holds the files of one group; their names depend on the version.
using CgroupVisitor = std::function<void(const std::string& folder, bool v2)>;

// Visits the group that controls `controller` ("memory", "cpu") and each of its ancestors,
// innermost first, under every hierarchy that has it. Folders need not exist. `root` is prefixed to
// /proc and /sys, so that tests can put fixtures there.
void ForEachCgroup(const std::string& root, std::string_view controller,
                   const CgroupVisitor& visit);

}  // namespace tael::mem
