// `tael serve` in a build without a server.
#include "cli/commands.h"
#include "cli/serving.h"

namespace tael::cli {
namespace {

Error NoServer() {
  return Error{ErrorCode::kInvalidArgument, "this build has no server",
               "libmicrohttpd was not found when it was configured; scripts/setup installs it"};
}

}  // namespace

Result<int> Execute(const ServeOptions&) { return NoServer(); }
Result<engine::EngineOptions> ServingEngineOptions(const ServeOptions&) { return NoServer(); }

}  // namespace tael::cli
