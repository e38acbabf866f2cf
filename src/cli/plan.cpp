// `tael plan`: what fits a budget, before anything is loaded. Reads no weights.
#include <algorithm>
#include <string>
#include <utility>

#include "base/units.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/loading.h"
#include "cli/report.h"
#include "cli/serving.h"
#include "cli/terminal.h"
#include "engine/engine.h"
#include "engine/kv_types.h"

namespace tael::cli {
namespace {

using engine::Forecast;
using engine::KvShape;
using engine::MemoryPlan;

bool FitsResident(const MemoryPlan& plan) { return plan.fits() && !plan.streams(); }

Json ToJson(const PlanOptions& options, const Forecast& forecast) {
  const MemoryPlan& plan = forecast.plan;
  const uint64_t kv_bytes = options.kv_bytes.value_or(plan.kv_capacity_bytes);
  const KvShape kv = KvShapeOf(plan, kv_bytes);
  Json parts = Json::object();
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    parts[std::string(ToString(static_cast<mem::MemoryTag>(i)))] = plan.parts[i];
  }
  Json kv_types = Json::array();
  for (const engine::KvTypeShare& share : engine::KvTypeShares(plan.geometry)) {
    kv_types.push_back({{"type", engine::NameOf(share.types)},
                        {"layers", share.num_layers},
                        {"bytes_per_token", share.bytes_per_token}});
  }
  Json json = {{"fits", FitsResident(plan)},
               {"fits_streamed", plan.min_streamed_bytes <= plan.budget_bytes},
               {"min_budget_bytes", plan.min_budget_bytes},
               {"min_streamed_bytes", plan.min_streamed_bytes},
               {"budget_bytes", plan.budget_bytes},
               {"needed_bytes", plan.needed_bytes},
               {"parts", std::move(parts)},
               {"ctx", plan.context_length},
               {"sessions", plan.max_sessions},
               {"chunk_tokens", plan.workspace.max_tokens},
               {"resident_layers", plan.resident_layers},
               {"layers", plan.num_layers},
               {"arena_bytes", forecast.activations.arena_bytes},
               {"arena_peak_live_bytes", forecast.activations.peak_live_bytes},
               {"intermediates_bytes", forecast.whole_prompt.kept_bytes},
               {"max_ctx", forecast.capacity.max_context},
               {"max_sessions", forecast.capacity.max_sessions},
               {"kv_bytes", kv_bytes},
               {"kv_bytes_per_token", plan.geometry.BytesPerToken()},
               {"kv_types", std::move(kv_types)},
               {"block_bytes", kv.block_bytes},
               {"blocks", kv.blocks},
               {"block_rows", kv.rows}};
  AddPolicy(json, options.model.task, plan);
  return json;
}

std::string Verdict(const MemoryPlan& plan) {
  if (FitsResident(plan))
    return "fits, " + FormatSize(plan.budget_bytes - plan.needed_bytes) + " left";
  if (plan.fits()) {
    return "fits with " + std::to_string(plan.resident_layers) + " of " +
           std::to_string(plan.num_layers) +
           " layers in memory; the others are read from the file for every token";
  }
  return "does not fit: " + FormatSize(plan.needed_bytes - plan.budget_bytes) + " are missing";
}

std::string ToText(const PlanOptions& options, const Forecast& forecast) {
  const MemoryPlan& plan = forecast.plan;
  std::string text;
  const auto line = [&text](std::string name, const std::string& value) {
    name.resize(std::max<size_t>(name.size() + 1, 16), ' ');
    text += name + value + "\n";
  };
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    if (plan.parts[i] == 0) continue;
    line(std::string(ToString(static_cast<mem::MemoryTag>(i))), FormatSize(plan.parts[i]));
  }
  line("sum", FormatSize(plan.needed_bytes));
  line("budget",
       FormatSize(plan.budget_bytes) + (plan.budget_is_auto ? " (what the system can spare)" : ""));
  line("verdict", Verdict(plan));
  text += "\n";
  line("planned", std::to_string(plan.max_sessions) + " x " + std::to_string(plan.context_length) +
                      " tokens, prompts in chunks of " + std::to_string(plan.workspace.max_tokens));
  if (plan.is_endless()) {
    const std::string start = plan.window.start != 0 ? std::to_string(plan.window.start) +
                                                           " tokens, while there is room up to "
                                                     : "";
    line("window", start + std::to_string(plan.window.tokens) + " tokens are kept, " +
                       std::to_string(plan.window.sinks) + " of them the first" +
                       (kv::ChoosesByAttention(plan.window.evict)
                            ? ", a quarter of them for the attention they got"
                            : "") +
                       (plan.window.evict == kv::Evict::kMerge ? " or as a mean of others" : "") +
                       "; texts may be longer than the context");
  }
  if (plan.fits()) {
    line("at most", std::to_string(forecast.capacity.max_context) + " tokens of context, or " +
                        std::to_string(forecast.capacity.max_sessions) + " sessions of " +
                        std::to_string(plan.context_length));
  }
  line("smallest", FormatSize(plan.min_budget_bytes) + " with all weights in memory, " +
                       FormatSize(plan.min_streamed_bytes) + " streamed");
  line("activations", FormatSize(forecast.activations.arena_bytes) +
                          " in one arena; all results of a " + std::to_string(plan.context_length) +
                          "-token prompt, kept, would be " +
                          FormatSize(forecast.whole_prompt.kept_bytes));
  const uint64_t kv_bytes = options.kv_bytes.value_or(plan.kv_capacity_bytes);
  const KvShape kv = KvShapeOf(plan, kv_bytes);
  line("kv", FormatSize(kv_bytes) + " are " + std::to_string(kv.blocks) + " blocks of " +
                 FormatSize(kv.block_bytes) + ", " + std::to_string(kv.rows) +
                 " rows of 16 tokens");
  line("kv types", engine::DescribeKvTypes(plan.geometry) + ": " +
                       FormatSize(plan.geometry.BytesPerToken()) + " per token; " +
                       std::string(Describe(plan.kv_reason)));
  return text;
}

}  // namespace

Result<int> Execute(const PlanOptions& options) {
  engine::EngineOptions engine_options = ToEngineOptions(options.model);
  engine_options.max_sessions = options.sessions.value_or(1);
  if (engine_options.max_sessions == 1) engine_options.draft_tokens = options.speculation.max_draft;
  if (options.server) {
    ServeOptions serve;
    serve.model = options.model;
    serve.sessions = options.sessions;
    TAEL_ASSIGN_OR_RETURN(engine_options, ServingEngineOptions(serve));
  }
  TAEL_ASSIGN_OR_RETURN(const Forecast forecast, engine::MakeForecast(engine_options));
  NotePolicy(options.model, forecast.plan);
  TAEL_RETURN_IF_ERROR(options.output.json ? PrintJson(ToJson(options, forecast))
                                           : PrintText(ToText(options, forecast)));
  return forecast.plan.fits() ? kExitOk : kExitBudget;
}

}  // namespace tael::cli
