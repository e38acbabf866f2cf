#include "cli/flag_values.h"

#include <bit>
#include <charconv>

#include "base/units.h"
#include "cli/task.h"

namespace tael::cli {

// The library's own conversion takes "-1" for 2^64 - 1.
Result<uint64_t> ParseCount(const std::string& text, uint64_t min, uint64_t max) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc{} && rest == end && value >= min && value <= max) return value;
  return Error{ErrorCode::kInvalidArgument, "not a whole number in the range",
               "\"" + text + "\" (" + std::to_string(min) + " to " + std::to_string(max) + ")"};
}

Result<uint64_t> ParseBudget(const std::string& text) {
  if (text == "auto") return uint64_t{0};
  TAEL_ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(text));
  if (bytes == 0) {
    return Error{ErrorCode::kInvalidArgument, "a budget of 0 bytes",
                 "give a size, or auto for what the system can spare"};
  }
  return bytes;
}

Result<Task> ParseTask(const std::string& text) {
  std::string names;
  for (const Task task : kTasks) {
    if (text == NameOf(task)) return task;
    names += (names.empty() ? "" : ", ") + std::string(NameOf(task));
  }
  return Error{ErrorCode::kInvalidArgument, "unknown task", text + "; use one of " + names};
}

Result<std::optional<kernels::KvTypes>> ParseKvTypes(const std::string& text) {
  using kernels::KvType, kernels::KvTypes;
  using Types = std::optional<KvTypes>;
  if (text == "auto") return Types{};
  if (text == "f16") return Types{KvType::kF16};
  if (text == "f32") return Types{KvType::kF32};
  if (text == "q8") return Types{KvType::kQ8};
  if (text == "k8v4") return Types{KvTypes{KvType::kQ8, KvType::kQ4}};
  return Error{ErrorCode::kInvalidArgument, "unknown KV type",
               text + "; use f16, q8, k8v4, f32 or auto"};
}

Result<kernels::KvType> ParseKeyType(const std::string& text) {
  if (text == "f16") return kernels::KvType::kF16;
  if (text == "f32") return kernels::KvType::kF32;
  if (text == "q8") return kernels::KvType::kQ8;
  return Error{ErrorCode::kInvalidArgument, "unknown type of keys", text + "; use f16, q8 or f32"};
}

Result<kernels::KvType> ParseValueType(const std::string& text) {
  if (text == "q4") return kernels::KvType::kQ4;
  if (const Result<kernels::KvType> type = ParseKeyType(text)) return *type;
  return Error{ErrorCode::kInvalidArgument, "unknown type of values",
               text + "; use f16, q8, q4 or f32"};
}

Result<mem::Backing> ParsePoolBacking(const std::string& text) {
  if (text == "private") return mem::Backing::kPrivate;
  if (text == "memfd") return mem::Backing::kMemoryFile;
  return Error{ErrorCode::kInvalidArgument, "unknown memory for KV",
               text + "; use private or memfd"};
}

Result<bool> ParsePoolCommit(const std::string& text) {
  if (text == "lazy") return false;
  if (text == "eager") return true;
  return Error{ErrorCode::kInvalidArgument, "unknown way to take KV memory",
               text + "; use lazy or eager"};
}

Result<PrefixCache> ParsePrefixCache(const std::string& text) {
  if (text == "on" || text == "off") return PrefixCache{.on = text == "on"};
  const auto bytes = ParseSize(text);
  if (bytes && *bytes > 0) return PrefixCache{.max_bytes = *bytes};
  return Error{ErrorCode::kInvalidArgument, "neither on, off nor a size", "\"" + text + "\""};
}

Result<exec::Compute> ParseCompute(const std::string& text) {
  if (text == "fast") return exec::Compute::kFast;
  if (text == "reference") return exec::Compute::kReference;
  return Error{ErrorCode::kInvalidArgument, "unknown way to compute",
               text + "; use fast or reference"};
}

Result<SpeculationFlags> ParseSpeculation(const std::string& text) {
  using engine::Speculate;
  constexpr size_t kMost = engine::Speculation::kMostDraft;
  if (text == "auto") return SpeculationFlags{};
  if (text == "off") return SpeculationFlags{Speculate::kOff, 0};
  if (text.size() == 1 && text[0] >= '1' && text[0] <= '0' + static_cast<char>(kMost)) {
    return SpeculationFlags{Speculate::kAlways, static_cast<uint32_t>(text[0] - '0')};
  }
  return Error{ErrorCode::kInvalidArgument, "not a way to speculate",
               "\"" + text + "\"; use auto, off or 1 to " + std::to_string(kMost)};
}

// "512..1024": begins with 512 tokens, and grows to 1024 while there is room.
Result<kv::WindowPolicy> ParseWindowRange(const std::string& text, size_t dots) {
  TAEL_ASSIGN_OR_RETURN(const uint64_t start, ParseCount(text.substr(0, dots), 1, kMaxTokens));
  TAEL_ASSIGN_OR_RETURN(const uint64_t tokens,
                        ParseCount(text.substr(dots + 2), start, kMaxTokens));
  return kv::WindowPolicy{.tokens = static_cast<uint32_t>(tokens),
                          .start = static_cast<uint32_t>(start == tokens ? 0 : start)};
}

Result<kv::WindowPolicy> ParseWindow(const std::string& text) {
  if (text == "off") return kv::WindowPolicy{};
  if (text == "auto") return kv::WindowPolicy{.tokens = kv::WindowPolicy::kAuto};
  if (const size_t dots = text.find(".."); dots != std::string::npos) {
    return ParseWindowRange(text, dots);
  }
  if (const auto tokens = ParseCount(text, 1, kMaxTokens)) {
    return kv::WindowPolicy{.tokens = static_cast<uint32_t>(*tokens)};
  }
  return Error{ErrorCode::kInvalidArgument, "not a window",
               "\"" + text + "\"; use a number of tokens, a range (512..1024), auto or off"};
}

Result<kv::WindowShape> ParseWindowShape(const std::string& text) {
  if (text == "uniform") return kv::WindowShape::kUniform;
  if (text == "layered") return kv::WindowShape::kLayered;
  return Error{ErrorCode::kInvalidArgument, "unknown shape of a window",
               text + "; use uniform or layered"};
}

Result<kv::Evict> ParseEvict(const std::string& text) {
  if (text == "drop") return kv::Evict::kDrop;
  if (text == "heavy") return kv::Evict::kHeavy;
  if (text == "merge") return kv::Evict::kMerge;
  return Error{ErrorCode::kInvalidArgument, "unknown value", text + "; use drop, heavy or merge"};
}

Result<kv::CompressPolicy> ParseCompressPolicy(const std::string& text) {
  if (text == "off") return kv::CompressPolicy{};
  if (text == "auto") return kv::CompressPolicy::Auto();
  if (text.ends_with('%')) {
    const auto percent = ParseCount(text.substr(0, text.size() - 1), 1, 99);
    if (percent) return kv::CompressPolicy{.percent = static_cast<uint32_t>(*percent)};
  }
  const auto tokens = ParseCount(text, kv::CompressPolicy::kLeastTokens, kMaxTokens);
  if (tokens) return kv::CompressPolicy{.tokens = static_cast<uint32_t>(*tokens)};
  return Error{ErrorCode::kInvalidArgument, "not a part of a prompt",
               "\"" + text + "\"; use auto, off, 1% to 99% or a number of tokens, " +
                   std::to_string(kv::CompressPolicy::kLeastTokens) + " at least"};
}

Result<uint64_t> ParsePageSize(const std::string& text) {
  TAEL_ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(text));
  if (std::has_single_bit(bytes) && bytes >= 4096 && bytes <= 65536) return bytes;
  return Error{ErrorCode::kInvalidArgument, "not a page size",
               text + "; use 4096, 8192, 16384, 32768 or 65536"};
}

}  // namespace tael::cli
