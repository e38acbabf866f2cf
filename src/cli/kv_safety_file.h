// The table of a model's KV types (engine/kv_safety.h) in a file of its own:
//
//   MODEL.gguf.kv-safety.json       beside the model, or, where its folder takes no files,
//   CACHE/tael/kv-safety/NAME.json  in the user's cache ($XDG_CACHE_HOME, ~/.cache), by the path
//
// The file may be anybody's: what is damaged, too old or of another model is ignored, and said.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "cli/report.h"
#include "engine/kv_safety.h"

namespace tael::cli {

struct FoundKvSafety {
  std::optional<engine::KvSafety> table;
  std::string path;
};

// Says on stderr what is wrong with a file that there is.
FoundKvSafety FindKvSafety(const std::string& model_path);

// Whole or not at all; returns where. `table` is the object but for `format` and `version`.
// Fails: kIo, where neither place takes it.
Result<std::string> WriteKvSafety(const std::string& model_path, const Json& table);

}  // namespace tael::cli
