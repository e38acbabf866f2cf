// How `tael serve` loads a model: for the command, and for `tael plan --server`.
#pragma once

#include "base/result.h"
#include "cli/options.h"
#include "engine/engine.h"

namespace tael::cli {

// Requests that run at once where nobody says how many.
inline constexpr uint32_t kDefaultSessions = 4;

// Without --sessions, KV is planned for as many of kDefaultSessions as leave each a good context;
// the others share it. Fails: as engine::MakeForecast(); kInvalidArgument in a build without a
// server.
Result<engine::EngineOptions> ServingEngineOptions(const ServeOptions& options);

}  // namespace tael::cli
