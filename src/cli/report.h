// What commands say: JSON objects with the keys that scripts rely on, and tables for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "engine/engine.h"
#include "engine/generation.h"
#include "report/memory.h"

namespace tael::cli {

using Json = nlohmann::ordered_json;

// One object and a newline on stdout; bytes that are not UTF-8 become U+FFFD.
Status PrintJson(const Json& object);
// The text on stdout, now. Fails: kInternal where stdout does not take it.
Status PrintText(std::string_view text);

// An error, on stdout as {"error": ...} with `json`, else on stderr.
void PrintError(const Error& error, bool json);

// Shows the prompt being read on `progress`, which outlives the callbacks, and, but with `json`,
// streams the answer to stdout; with `verbose` says how a window grows.
engine::GenerateCallbacks ShowAnswer(Progress& progress, const OutputFlags& output);

Json IdsToJson(std::span<const TokenId> ids);
Json TimingsToJson(const engine::Timings& timings);
// The window in force: `tokens` (0: off), `sinks`, `shape`, `evict`, and where it grows `start`.
Json WindowToJson(const engine::MemoryPlan& plan);
// What --task, --kv-type and --window have come to: the keys `task` (null: none), `kv_type`,
// `kv_reason` (engine::KvReason) and `window`.
void AddPolicy(Json& object, std::optional<Task> task, const engine::MemoryPlan& plan);
// The same for people: "keys and values in q8, no window".
std::string DescribePolicy(const engine::MemoryPlan& plan);
// Says on stderr how much of a prompt the answer began without, if so.
void NoteTruncation(const engine::GenerateResult& result, const engine::MemoryPlan& plan);
Json LogProbsToJson(const engine::GenerateResult& result);

using report::MemoryToJson;

std::string MemoryTable(const engine::Engine& engine);
std::string MemoryLine(const engine::Engine& engine);

// "%.1f" and the like.
std::string Format(double value, int decimals);

}  // namespace tael::cli
