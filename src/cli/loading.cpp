#include "cli/loading.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "base/units.h"
#include "cli/kv_safety_file.h"
#include "cli/report.h"
#include "cli/task.h"
#include "cli/terminal.h"
#include "engine/kv_types.h"
#include "kernels/kernels.h"

namespace tael::cli {
namespace {

void WarnAboutForcedIsa() {
  if (!kernels::ForcedIsaIsMissing()) return;
  std::string names;
  for (const kernels::KernelTable* table : kernels::Runnable()) {
    names += (names.empty() ? "" : ", ") + std::string(table->isa);
  }
  Note("TAEL_FORCE_ISA=" + std::string(std::getenv("TAEL_FORCE_ISA")) +
       " is unknown or not for this CPU; using " + kernels::Active().isa +
       " (it can run: " + names + ")");
}

void NoteStreaming(const engine::MemoryPlan& plan) {
  if (!plan.streams()) return;
  Note("the budget of " + FormatSize(plan.budget_bytes) + " does not hold all weights: " +
       std::to_string(plan.num_layers - plan.resident_layers) + " of " +
       std::to_string(plan.num_layers) + " layers are read from the file for every token; " +
       FormatSize(plan.min_budget_bytes) + " would hold them all");
}

// A context that nobody asked for and that is shorter than the model allows must not surprise.
void NoteContext(uint32_t asked_for, const engine::Engine& engine) {
  const uint32_t trained = engine.model().description().trained_context;
  if (asked_for != 0 || engine.context_length() == trained) return;
  Note("the budget of " + FormatSize(engine.plan().budget_bytes) + " holds a context of " +
       std::to_string(engine.context_length()) + " tokens (the model knows " +
       std::to_string(trained) + ")");
}

// What --task, --kv-type, --kv-type-k and --kv-type-v say together. None: the engine's choice.
std::optional<kernels::KvTypes> KvTypesOf(const ModelFlags& flags) {
  const bool reference = flags.compute == exec::Compute::kReference;
  if (!flags.kv_type_k && !flags.kv_type_v) {
    const bool f16 = flags.kv_auto && flags.auto_is_f16 && !reference;
    return f16 ? kernels::KvTypes{kernels::KvType::kF16} : flags.kv_type;
  }
  const auto otherwise = reference ? kernels::KvType::kF32 : kernels::KvType::kF16;
  const kernels::KvTypes both = flags.kv_type.value_or(otherwise);
  return kernels::KvTypes{flags.kv_type_k.value_or(both.k), flags.kv_type_v.value_or(both.v)};
}

bool MayBeQuantised(const engine::EngineOptions& options) {
  if (!options.kv_type) return options.kv_auto;
  return IsQuantised(options.kv_type->k) || IsQuantised(options.kv_type->v);
}

}  // namespace

engine::EngineOptions ToEngineOptions(const ModelFlags& flags, engine::EngineOptions options) {
  options.model_path = flags.path;
  options.budget_bytes = flags.budget_bytes;
  options.num_threads = flags.threads;
  if (flags.context != 0) options.context_length = flags.context;
  options.compute = flags.compute;
  options.kv_type = KvTypesOf(flags);
  options.kv_auto = flags.kv_auto;
  if (flags.compute == exec::Compute::kFast && MayBeQuantised(options)) {
    options.kv_safety = FindKvSafety(flags.path).table;
  }
  options.commit_kv = flags.commit_kv;
  options.kv_backing = flags.kv_backing;
  options.lock_weights = flags.lock_weights;
  options.window = flags.window;
  options.compress = flags.compress;
  return options;
}

void NotePolicy(const ModelFlags& flags, const engine::MemoryPlan& plan) {
  if (flags.task) Note("task " + std::string(NameOf(*flags.task)) + ": " + DescribePolicy(plan));
  if (plan.kv_reason == engine::KvReason::kRisky) {
    Note("keys and values in " + engine::DescribeKvTypes(plan.geometry) + " " +
         std::string(Describe(plan.kv_reason)) + "; --kv-type auto follows the measurement");
  }
  if (plan.kv_reason == engine::KvReason::kForeign) {
    Note("\"" + FindKvSafety(flags.path).path +
         "\" is ignored: it is of another model; `tael eval "
         "--kv-safety` writes a new one");
  }
}

Result<LoadedEngine> LoadEngine(const ModelFlags& flags, engine::EngineOptions options) {
  return LoadEngineAsPlanned(flags, ToEngineOptions(flags, std::move(options)));
}

Result<LoadedEngine> LoadEngineAsPlanned(const ModelFlags& flags,
                                         const engine::EngineOptions& options) {
  WarnAboutForcedIsa();
  const Stopwatch watch;
  LoadedEngine loaded;
  TAEL_ASSIGN_OR_RETURN(loaded.engine, engine::Engine::Create(options));
  loaded.load_ms = watch.milliseconds();
  if (!loaded.engine->cpus().note.empty()) Note(loaded.engine->cpus().note);
  NoteStreaming(loaded.engine->plan());
  NoteContext(options.context_length, *loaded.engine);
  NotePolicy(flags, loaded.engine->plan());
  if (!loaded.engine->lock_refusal().empty()) Note(loaded.engine->lock_refusal());
  return loaded;
}

}  // namespace tael::cli
