#include "cli/interrupt.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace tael::cli {
namespace {

// Process-wide because signals are.
std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");
int g_pipe[2] = {-1, -1};

extern "C" void OnSignal(int) {
  const int saved_errno = errno;
  g_interrupted.store(true);
  const char byte = 0;
  // The pipe is non-blocking; when it is full it is readable already.
  [[maybe_unused]] const ssize_t written = write(g_pipe[1], &byte, 1);
  errno = saved_errno;
}

void Catch(int signal, OnRepeat on_repeat) {
  if (g_pipe[0] < 0 && pipe2(g_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return;
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  sigemptyset(&action.sa_mask);
  // Without SA_RESTART, so that a read from the terminal comes back.
  action.sa_flags = on_repeat == OnRepeat::kEndProcess ? static_cast<int>(SA_RESETHAND) : 0;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void CatchInterrupts(OnRepeat on_repeat) { Catch(SIGINT, on_repeat); }

void CatchTermination(OnRepeat on_repeat) {
  Catch(SIGINT, on_repeat);
  Catch(SIGTERM, on_repeat);
}

const std::atomic<bool>& Interrupted() { return g_interrupted; }

void ClearInterrupt() {
  char bytes[64];
  while (read(g_pipe[0], bytes, sizeof bytes) > 0) {
  }
  g_interrupted.store(false);
}

int InterruptDescriptor() { return g_pipe[0]; }

}  // namespace tael::cli
