#include "cli/report.h"

#include <cmath>
#include <cstdio>

#include "base/units.h"
#include "cli/task.h"
#include "cli/terminal.h"
#include "engine/kv_types.h"
#include "mem/process_memory.h"

namespace tael::cli {
namespace {

double Rounded(double value, double unit) { return std::round(value / unit) * unit; }

mem::ProcessMemory ProcessMemoryOrZero() {
  const auto memory = mem::ReadProcessMemory();
  return memory ? *memory : mem::ProcessMemory{};
}

}  // namespace

Status PrintJson(const Json& object) {
  return PrintText(object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

Status PrintText(std::string_view text) {
  if (Print(text)) return {};
  return Error{ErrorCode::kInternal, "standard output could not be written", ""};
}

void PrintError(const Error& error, bool json) {
  if (json) {
    const Json object = {{"error", {{"code", ToString(error.code)}, {"message", error.Message()}}}};
    if (PrintJson(object)) return;
  }
  Note(error.Message());
}

engine::GenerateCallbacks ShowAnswer(Progress& progress, const OutputFlags& output) {
  engine::GenerateCallbacks callbacks;
  callbacks.on_prefill = [&progress](uint32_t done, uint32_t total) {
    progress.Show(done, total);
    if (done == total) progress.Clear();
  };
  if (output.verbose) {
    callbacks.on_window = [](uint32_t tokens) {
      Note("a layer keeps up to " + std::to_string(tokens) + " tokens now");
    };
  }
  if (!output.json) callbacks.on_text = [](std::string_view text) { Print(text); };
  return callbacks;
}

Json IdsToJson(std::span<const TokenId> ids) {
  Json list = Json::array();
  for (TokenId id : ids) list.push_back(ToInt(id));
  return list;
}

Json TimingsToJson(const engine::Timings& timings) {
  return {{"prefill_tps", Rounded(timings.prefill_tps, 0.01)},
          {"decode_tps", Rounded(timings.decode_tps, 0.01)},
          {"ttft_ms", Rounded(timings.ttft_ms, 0.001)},
          {"draft_tokens", timings.draft_tokens},
          {"accepted_tokens", timings.accepted_tokens}};
}

Json WindowToJson(const engine::MemoryPlan& plan) {
  const bool layered = plan.window.shape == kv::WindowShape::kLayered;
  Json window = {{"tokens", plan.window.tokens},
                 {"sinks", plan.window.sinks},
                 {"shape", layered ? "layered" : "uniform"},
                 {"evict", ToString(plan.window.evict)}};
  if (plan.window.start != 0) window["start"] = plan.window.start;
  return window;
}

void AddPolicy(Json& object, std::optional<Task> task, const engine::MemoryPlan& plan) {
  object["task"] = task ? Json(NameOf(*task)) : Json();
  object["kv_type"] = engine::DescribeKvTypes(plan.geometry);
  object["kv_reason"] = ToString(plan.kv_reason);
  object["window"] = WindowToJson(plan);
}

std::string DescribePolicy(const engine::MemoryPlan& plan) {
  const kv::WindowPolicy& window = plan.window;
  const std::string text = "keys and values in " + engine::DescribeKvTypes(plan.geometry);
  if (window.tokens == 0) return text + ", no window";
  const std::string start = window.start != 0 ? std::to_string(window.start) + " to " : "";
  return text + ", a window of " + start + std::to_string(window.tokens) + " tokens, " +
         std::to_string(window.sinks) + " of them the first";
}

void NoteTruncation(const engine::GenerateResult& result, const engine::MemoryPlan& plan) {
  if (result.truncated_tokens == 0) return;
  Note("truncated: " + std::to_string(result.truncated_tokens) + " of " +
       std::to_string(result.prompt_tokens) + " prompt tokens lie outside the window of " +
       std::to_string(plan.window.tokens) + ", whose first " + std::to_string(plan.window.sinks) +
       " tokens and last ones stay" +
       (kv::ChoosesByAttention(plan.window.evict) ? ", and the old ones that got most attention"
                                                  : "") +
       (plan.window.evict == kv::Evict::kMerge ? "; what is left of others is their mean" : ""));
}

Json LogProbsToJson(const engine::GenerateResult& result) {
  Json list = Json::array();
  for (size_t i = 0; i < result.logprobs.size(); ++i) {
    Json top = Json::array();
    for (const sample::TokenLogProb& entry : result.logprobs[i].top) {
      top.push_back({ToInt(entry.id), entry.logprob});
    }
    list.push_back({{"id", ToInt(result.tokens[i])},
                    {"logprob", result.logprobs[i].logprob},
                    {"top", std::move(top)}});
  }
  return list;
}

std::string MemoryTable(const engine::Engine& engine) {
  const mem::LedgerSnapshot ledger = engine.Ledger();
  char row[128];
  const auto format = [&row](std::string_view name, uint64_t used, uint64_t reserved,
                             uint64_t high) {
    std::snprintf(row, sizeof row, "%-12.*s %10s %10s %10s\n", static_cast<int>(name.size()),
                  name.data(), FormatSize(used).c_str(), FormatSize(reserved).c_str(),
                  FormatSize(high).c_str());
    return std::string(row);
  };
  std::snprintf(row, sizeof row, "%-12s %10s %10s %10s\n", "", "used", "reserved", "high water");
  std::string table = row;
  for (size_t i = 0; i < ledger.parts.size(); ++i) {
    const mem::LedgerPart& part = ledger.parts[i];
    if (part.high_water_bytes == 0) continue;
    table += format(ToString(static_cast<mem::MemoryTag>(i)), part.used_bytes, part.reserved_bytes,
                    part.high_water_bytes);
  }
  table += format("sum", ledger.used_bytes, ledger.reserved_bytes, ledger.high_water_bytes);
  const mem::ProcessMemory process = ProcessMemoryOrZero();
  return table + "budget " + FormatSize(ledger.limit_bytes) + "; the kernel counts " +
         FormatSize(process.unbacked_bytes()) + " anonymous, " +
         FormatSize(process.rss_file_bytes) + " of files\n";
}

std::string MemoryLine(const engine::Engine& engine) {
  const mem::LedgerSnapshot ledger = engine.Ledger();
  const mem::ProcessMemory process = ProcessMemoryOrZero();
  return "memory: budget " + FormatSize(ledger.limit_bytes) + ", reserved " +
         FormatSize(ledger.reserved_bytes) + ", used " + FormatSize(ledger.used_bytes) +
         "; anonymous " + FormatSize(process.unbacked_bytes()) + ", files " +
         FormatSize(process.rss_file_bytes) + "; keys and values in " +
         engine::DescribeKvTypes(engine.plan().geometry) + ", " +
         std::string(Describe(engine.plan().kv_reason));
}

std::string Format(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

}  // namespace tael::cli
