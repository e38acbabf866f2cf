// The commands. Each returns an exit code, or an error that main turns into one (exit_code.h).
#pragma once

#include "base/result.h"
#include "cli/options.h"

namespace tael::cli {

Result<int> Execute(const RunOptions& options);
Result<int> Execute(const ChatOptions& options);
Result<int> Execute(const TokenizeOptions& options);
Result<int> Execute(const PlanOptions& options);
Result<int> Execute(const InspectOptions& options);
Result<int> Execute(const PackOptions& options);
Result<int> Execute(const BenchOptions& options);
Result<int> Execute(const EvalOptions& options);
Result<int> Execute(const ServeOptions& options);

}  // namespace tael::cli
