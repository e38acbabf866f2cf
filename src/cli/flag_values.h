// The values of flags, from their text. Each fails with kInvalidArgument, naming the text and what
// would do instead.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/options.h"
#include "mem/mapping.h"

namespace tael::cli {

inline constexpr uint64_t kMaxTokens = uint64_t{1} << 30;

// A whole number in [min, max].
Result<uint64_t> ParseCount(const std::string& text, uint64_t min, uint64_t max);

Result<uint64_t> ParseBudget(const std::string& text);  // 0: auto
Result<Task> ParseTask(const std::string& text);

// None: auto.
Result<std::optional<kernels::KvTypes>> ParseKvTypes(const std::string& text);
Result<kernels::KvType> ParseKeyType(const std::string& text);
Result<kernels::KvType> ParseValueType(const std::string& text);

Result<mem::Backing> ParsePoolBacking(const std::string& text);
Result<bool> ParsePoolCommit(const std::string& text);  // whether all KV memory is taken at start

struct PrefixCache {
  bool on = true;
  uint64_t max_bytes = 0;  // 0: all of the KV pool that nothing else needs
};
Result<PrefixCache> ParsePrefixCache(const std::string& text);

Result<exec::Compute> ParseCompute(const std::string& text);
// auto, off, or how many tokens at every match.
Result<SpeculationFlags> ParseSpeculation(const std::string& text);

// off, auto, N or N..M: what it says of the policy's tokens, start and most.
Result<kv::WindowPolicy> ParseWindow(const std::string& text);
Result<kv::WindowShape> ParseWindowShape(const std::string& text);
Result<kv::Evict> ParseEvict(const std::string& text);
// off, auto, N% of a prompt, or N tokens of it.
Result<kv::CompressPolicy> ParseCompressPolicy(const std::string& text);

// A power of two from 4 KiB to 64 KiB: the page sizes that CPUs have.
Result<uint64_t> ParsePageSize(const std::string& text);

}  // namespace tael::cli
