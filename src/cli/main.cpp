// tael: the command line. Parses, runs one command, and turns what went wrong into an exit code
// and a message.
#include <malloc.h>

#include <cstring>
#include <exception>
#include <utility>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/report.h"
#include "cli/terminal.h"

namespace tael::cli {
namespace {

// For a command line that cannot be parsed: whoever asked for JSON gets the error as JSON.
bool AsksForJson(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) return true;
  }
  return false;
}

int Report(const Error& error, bool json) {
  PrintError(error, json);
  return ExitCodeOf(error.code);
}

int Main(int argc, char** argv) {
  auto parsed = ParseCommandLine(argc, argv);
  if (!parsed) return Report(parsed.error(), AsksForJson(argc, argv));
  if (const HelpText* help = std::get_if<HelpText>(&*parsed)) {
    return Print(help->text) ? kExitOk : kExitRuntime;
  }
  const CommandOptions& options = *std::get_if<CommandOptions>(&*parsed);
  const Result<int> code = std::visit([](const auto& o) { return Execute(o); }, options);
  if (!code) return Report(code.error(), OutputOf(options).json);
  return *code;
}

}  // namespace
}  // namespace tael::cli

int main(int argc, char** argv) {
#ifdef M_ARENA_MAX
  // Each further arena of the C library keeps memory that nobody accounts for. So do thresholds
  // that grow with what was freed: texts and lists go back to the kernel when they go, whatever
  // their size was before.
  ::mallopt(M_ARENA_MAX, 2);
  ::mallopt(M_MMAP_THRESHOLD, 64 << 10);
  ::mallopt(M_TRIM_THRESHOLD, 128 << 10);
#endif
  try {
    return tael::cli::Main(argc, argv);
  } catch (const std::exception& error) {  // libraries may throw, out of memory for one
    tael::cli::Note(error.what());
    return tael::cli::kExitRuntime;
  }
}
