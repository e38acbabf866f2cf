// Loads a model as the flags say.
#pragma once

#include <chrono>
#include <memory>

#include "base/result.h"
#include "cli/options.h"
#include "engine/engine.h"

namespace tael::cli {

struct LoadedEngine {
  std::unique_ptr<engine::Engine> engine;
  double load_ms = 0;
};

// The flags' part of `options`, and what was measured of the model, where keys and values may have
// few bits. Says on stderr what is wrong with that.
engine::EngineOptions ToEngineOptions(const ModelFlags& flags, engine::EngineOptions options = {});

// Says on stderr what the flags of a task have come to, that a table was of another model, and that
// what was asked for was measured to be unsafe.
void NotePolicy(const ModelFlags& flags, const engine::MemoryPlan& plan);

// `options` holds what a command wants beyond the flags (rows of logits, a context of its own).
// Warns when TAEL_FORCE_ISA names kernels that are not there.
Result<LoadedEngine> LoadEngine(const ModelFlags& flags, engine::EngineOptions options = {});
// The same, of options that have the flags' part already.
Result<LoadedEngine> LoadEngineAsPlanned(const ModelFlags& flags,
                                         const engine::EngineOptions& options);

// Seconds and the like, since some moment.
class Stopwatch {
 public:
  double milliseconds() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace tael::cli
