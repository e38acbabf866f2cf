#include "cli/loading.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "base/units.h"
#include "cli/terminal.h"
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

}  // namespace

engine::EngineOptions ToEngineOptions(const ModelFlags& flags, engine::EngineOptions options) {
  options.model_path = flags.path;
  options.budget_bytes = flags.budget_bytes;
  options.num_threads = flags.threads;
  if (flags.context != 0) options.context_length = flags.context;
  options.compute = flags.compute;
  options.kv_type = flags.kv_type;
  return options;
}

Result<LoadedEngine> LoadEngine(const ModelFlags& flags, engine::EngineOptions options) {
  WarnAboutForcedIsa();
  options = ToEngineOptions(flags, std::move(options));
  const Stopwatch watch;
  LoadedEngine loaded;
  TAEL_ASSIGN_OR_RETURN(loaded.engine, engine::Engine::Create(options));
  loaded.load_ms = watch.milliseconds();
  if (!loaded.engine->cpus().note.empty()) Note(loaded.engine->cpus().note);
  NoteStreaming(loaded.engine->plan());
  return loaded;
}

}  // namespace tael::cli
