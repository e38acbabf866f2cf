// Ctrl-C: a flag that long work looks at, and a file descriptor that waiting code polls.
#pragma once

#include <atomic>

namespace tael::cli {

enum class OnRepeat { kEndProcess, kCountAgain };

// Installs the handler of SIGINT, and with CatchTermination() of SIGTERM, too: what follows goes
// for both then. With kEndProcess a second Ctrl-C ends the process at once, in case the work does
// not get round to looking.
void CatchInterrupts(OnRepeat on_repeat);
void CatchTermination(OnRepeat on_repeat);

// Set by Ctrl-C until ClearInterrupt().
const std::atomic<bool>& Interrupted();
void ClearInterrupt();

// Readable while an interrupt is pending; -1 before CatchInterrupts().
int InterruptDescriptor();

}  // namespace tael::cli
