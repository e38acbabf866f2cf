// What the kernel says this process occupies, to hold against the ledger (memory_budget.h).
//
// RSS comes from /proc/self/status: cheap enough for a 10 ms sampler. PSS comes from
// /proc/self/smaps_rollup, which walks every mapping: not for a hot path.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace tael::mem {

struct ProcessMemory {
  uint64_t rss_anon_bytes = 0;   // heap, stacks, anonymous mappings
  uint64_t rss_file_bytes = 0;   // resident pages of mapped files (weights, code)
  uint64_t rss_shmem_bytes = 0;  // resident pages of shared memory (memfd)
  uint64_t text_bytes = 0;       // code of the program and its libraries, resident or not

  // What no file on a disk is behind: the kernel cannot take it back.
  uint64_t unbacked_bytes() const { return rss_anon_bytes + rss_shmem_bytes; }
};

// Fails: kIo when /proc is not there, kMalformed when it lacks a field.
Result<ProcessMemory> ReadProcessMemory();

// Proportional set size: private pages plus this process's share of shared ones.
// Fails: kIo when /proc is not there or the kernel is older than 4.14.
Result<uint64_t> ReadPssBytes();

// The same from text, for the two above and for tests. Fails: kMalformed, naming the field.
Result<ProcessMemory> ParseProcStatus(std::string_view text);
Result<uint64_t> ParseSmapsRollup(std::string_view text);

}  // namespace tael::mem
