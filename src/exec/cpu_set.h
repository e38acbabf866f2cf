// Which CPUs the thread team uses, and how many threads: what the machine is (read from the
// system), and the choice (a function of that alone).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tael::exec {

// The CPUs this process may run on.
struct CpuTopology {
  struct Cpu {
    int id = 0;
    unsigned capacity = 1024;  // relative speed, as the kernel sees it; 1024 where it does not say
    int core = 0;              // the lowest id among its hyper-threads
  };
  std::vector<Cpu> cpus;  // ascending ids; never empty
  double quota_cpus = 0;  // CPU time that the control groups allow, in CPUs; 0: no limit
};

// `affinity` are the ids that the process may use (AffinityCpus()). Files that are not there mean
// equal cores without hyper-threads and without a quota. `root` is prefixed to /proc and /sys, so
// that tests can put fixtures there.
CpuTopology ReadCpuTopology(const std::vector<int>& affinity, const std::string& root = "");
std::vector<int> AffinityCpus();

struct CpuChoice {
  size_t num_threads = 1;
  std::vector<int> cpus;   // where they may run: at least as many as threads
  bool has_spare = false;  // a CPU is left for what goes on beside the threads
  std::string why;         // "2 threads: every usable CPU"
  std::string note;        // what the user should know: fewer threads than asked for; else empty
};

// `requested` 0: one thread for each big core, and no more than the quota pays for: a second
// hyper-thread or a little core makes all others wait for it. A number: that many, but never more
// than can run at once, for the one too many would cost speed.
CpuChoice ChooseCpus(const CpuTopology& topology, size_t requested);

}  // namespace tael::exec
