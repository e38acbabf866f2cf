#include "exec/cpu_set.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <optional>
#include <set>
#include <string_view>

#include "mem/cgroups.h"

namespace tael::exec {
namespace {

std::optional<double> ToNumber(const std::string& text) {
  long long value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc{} || end == text.data()) return std::nullopt;  // "max"
  return static_cast<double>(value);
}

// The number that a file begins with ("0-1" and "0,4" begin with 0).
std::optional<double> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  return ToNumber(word);
}

// CPUs' worth of time that one control group allows. v2: "quota period" or "max period" in one
// file; v1: a file each, and -1 for no limit.
std::optional<double> QuotaIn(const std::string& folder, bool v2) {
  std::optional<double> quota, period;
  if (v2) {
    std::ifstream file(folder + "/cpu.max");
    std::string first, second;
    if (!(file >> first >> second)) return std::nullopt;
    quota = ToNumber(first);
    period = ToNumber(second);
  } else {
    quota = ReadNumber(folder + "/cpu.cfs_quota_us");
    period = ReadNumber(folder + "/cpu.cfs_period_us");
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return *quota / *period;
}

// The tightest of all groups that the process is in; 0: none has a limit.
double ReadQuota(const std::string& root) {
  double quota = 0;
  mem::ForEachCgroup(root, "cpu", [&quota](const std::string& folder, bool v2) {
    const auto here = QuotaIn(folder, v2);
    if (here && (quota == 0 || *here < quota)) quota = *here;
  });
  return quota;
}

// Cores below two thirds of the fastest are little: splitting work evenly with them is slower than
// leaving them out.
std::vector<CpuTopology::Cpu> BigCpus(const CpuTopology& topology) {
  unsigned fastest = 0;
  for (const auto& cpu : topology.cpus) fastest = std::max(fastest, cpu.capacity);
  std::vector<CpuTopology::Cpu> big;
  for (const auto& cpu : topology.cpus) {
    if (cpu.capacity * 3 >= fastest * 2) big.push_back(cpu);
  }
  return big;
}

// One hyper-thread of each core first, so that threads begin on cores of their own.
std::vector<int> InOrderOfUse(std::vector<CpuTopology::Cpu> cpus) {
  std::vector<int> order, siblings;
  std::set<int> cores;
  for (const auto& cpu : cpus) (cores.insert(cpu.core).second ? order : siblings).push_back(cpu.id);
  order.insert(order.end(), siblings.begin(), siblings.end());
  return order;
}

std::string Count(size_t n, const char* what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

std::string QuotaText(double quota) {
  std::string text = std::to_string(quota);
  return "a CPU quota of " + text.substr(0, text.find('.') + 2) + " CPUs";
}

}  // namespace

std::vector<int> AffinityCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(static_cast<size_t>(cpu), &set)) cpus.push_back(cpu);
    }
  }
  return cpus;
}

CpuTopology ReadCpuTopology(const std::vector<int>& affinity, const std::string& root) {
  CpuTopology topology;
  for (int id : affinity) {
    const std::string folder = root + "/sys/devices/system/cpu/cpu" + std::to_string(id);
    CpuTopology::Cpu cpu{.id = id, .core = id};
    if (const auto capacity = ReadNumber(folder + "/cpu_capacity"); capacity && *capacity > 0) {
      cpu.capacity = static_cast<unsigned>(std::min(*capacity, 1e6));
    }
    if (const auto core = ReadNumber(folder + "/topology/thread_siblings_list");
        core && *core >= 0 && *core <= id) {
      cpu.core = static_cast<int>(*core);
    }
    topology.cpus.push_back(cpu);
  }
  if (topology.cpus.empty()) topology.cpus.push_back({});
  topology.quota_cpus = ReadQuota(root);
  return topology;
}

CpuChoice ChooseCpus(const CpuTopology& topology, size_t requested) {
  const std::vector<CpuTopology::Cpu> big = BigCpus(topology);
  std::set<int> cores;
  for (const auto& cpu : big) cores.insert(cpu.core);
  const bool limited = topology.quota_cpus > 0;
  const auto paid = limited ? static_cast<size_t>(std::max(1.0, std::ceil(topology.quota_cpus)))
                            : topology.cpus.size();
  CpuChoice choice;
  std::string reason;
  if (requested == 0) {
    choice.num_threads = std::min(cores.size(), paid);
    reason = paid < cores.size()                 ? QuotaText(topology.quota_cpus)
             : big.size() < topology.cpus.size() ? "one for each big core"
             : cores.size() < big.size()         ? "one for each core, not each hyper-thread"
                                                 : "every usable CPU";
  } else {
    const size_t most = std::min(topology.cpus.size(), paid);
    choice.num_threads = std::min(requested, most);
    reason = "as asked for";
    if (requested > most) {
      reason = paid < topology.cpus.size() ? QuotaText(topology.quota_cpus)
                                           : Count(topology.cpus.size(), "usable CPU");
      choice.note = "using " + Count(choice.num_threads, "thread") + " instead of " +
                    std::to_string(requested) + ": " + reason +
                    " (a thread more would only be waited for)";
    }
  }
  choice.has_spare = choice.num_threads < std::min(topology.cpus.size(), paid);
  choice.why = Count(choice.num_threads, "thread") + ": " + reason;
  choice.cpus = InOrderOfUse(choice.num_threads <= big.size() ? big : topology.cpus);
  return choice;
}

}  // namespace tael::exec
