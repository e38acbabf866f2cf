#include "mem/cgroups.h"

#include <fstream>

namespace tael::mem {
namespace {

void VisitWithAncestors(const std::string& mount, std::string group, bool v2,
                        const CgroupVisitor& visit) {
  while (true) {
    visit(mount + group, v2);
    if (group.empty() || group == "/") return;
    group.resize(group.rfind('/'));
  }
}

}  // namespace

void ForEachCgroup(const std::string& root, std::string_view controller,
                   const CgroupVisitor& visit) {
  const std::string mount = root + "/sys/fs/cgroup", name(controller);
  // Lines "id:controllers:path"; no controllers: v2.
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (group.empty() || group[0] != '/') continue;
    if (controllers.empty()) VisitWithAncestors(mount, group, true, visit);
    if (("," + controllers + ",").find("," + name + ",") != std::string::npos) {
      VisitWithAncestors(mount + "/" + name, group, false, visit);
    }
  }
}

}  // namespace tael::mem
