// From argv to options. The only place that knows the library that parses flags; nothing thrown by
// it gets out.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "base/result.h"
#include "cli/options.h"

namespace tael::cli {

// Text that was asked for instead of a command (--help, --version).
struct HelpText {
  std::string text;
};

// Fails: kInvalidArgument for an unknown command or flag, a missing or a bad value.
Result<std::variant<CommandOptions, HelpText>> ParseCommandLine(int argc, char** argv);

}  // namespace tael::cli
