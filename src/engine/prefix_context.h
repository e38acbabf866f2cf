// What decides the KV of an engine besides the tokens: the key under which its prefixes are shared
// and saved.
#pragma once

#include "base/result.h"
#include "engine/engine.h"
#include "kv/prefix_context.h"

namespace tael::engine {

// All fields but the tenant. The model is told by its size, the time of its last change, its header
// and a few pages of its weights: a file that was edited, or replaced by another, is another model.
// Reads these pages. Fails: kIo when the file cannot be asked for its time.
Result<kv::PrefixContext> MakePrefixContext(const Engine& engine);

}  // namespace tael::engine
