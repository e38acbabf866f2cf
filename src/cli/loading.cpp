#include "cli/loading.h"

#include <cstdlib>
#include <string>
#include <utility>

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

}  // namespace

Result<LoadedEngine> LoadEngine(const ModelFlags& flags, engine::EngineOptions options) {
  WarnAboutForcedIsa();
  Progress progress("loading " + flags.path);
  options.model_path = flags.path;
  options.budget_bytes = flags.budget_bytes;
  options.num_threads = flags.threads;
  if (flags.context != 0) options.context_length = flags.context;
  options.compute = flags.compute;
  options.kv_type = flags.kv_type;
  options.on_load = [&progress](uint64_t done, uint64_t total) { progress.Show(done, total); };
  const Stopwatch watch;
  LoadedEngine loaded;
  TAEL_ASSIGN_OR_RETURN(loaded.engine, engine::Engine::Create(options));
  loaded.load_ms = watch.milliseconds();
  progress.Clear();
  if (!loaded.engine->cpus().note.empty()) Note(loaded.engine->cpus().note);
  return loaded;
}

}  // namespace tael::cli
