// The ledger as the JSON object that scripts know: of `run --json`, and of the server.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/engine.h"

namespace tael::report {

// The ledger, and what the kernel says of this process. `parts`: tag -> bytes in use;
// `parts_reserved`: tag -> bytes promised. Any thread.
nlohmann::ordered_json MemoryToJson(const engine::Engine& engine);

}  // namespace tael::report
