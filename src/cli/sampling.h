// The sampling flags as the engine wants them.
#pragma once

#include "cli/options.h"
#include "engine/generation.h"

namespace tael::cli {

// Chooses a seed where none was given and says so on stderr. Ctrl-C cancels.
engine::GenerateOptions MakeGenerateOptions(const SamplingFlags& flags, uint32_t max_tokens);

}  // namespace tael::cli
