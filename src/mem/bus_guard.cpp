#include "mem/bus_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

namespace tael::mem {
namespace {

// Read by the signal handler: only atomics, set before `end` says that the slot is in use.
struct Slot {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};  // 0: free
  std::atomic<bool> damaged{false};
};

std::array<Slot, BusGuard::kMaxGuards> slots;
std::mutex slots_mutex;  // registration; the handler never takes it
struct sigaction previous_action;
std::atomic<uintptr_t> page_bytes{0};

// mmap is a plain system call on Linux, so it is safe here although POSIX does not list it.
bool ReplaceLostPages(uintptr_t address) {
  for (Slot& slot : slots) {
    const uintptr_t end = slot.end.load(std::memory_order_acquire);
    if (end == 0 || address < slot.begin.load(std::memory_order_relaxed) || address >= end) {
      continue;
    }
    // Everything from here to the end is gone: the file was cut, not punched.
    const uintptr_t page = address & ~(page_bytes.load(std::memory_order_relaxed) - 1);
    void* const mapped = ::mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    slot.damaged.store(true, std::memory_order_release);
    return mapped != MAP_FAILED;
  }
  return false;
}

void PassOn(int signal_number, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal_number, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal_number);
  } else {
    // The default: the faulting instruction runs again and ends the process.
    ::signal(SIGBUS, SIG_DFL);
  }
}

void OnBusError(int signal_number, siginfo_t* info, void* context) {
  if (!ReplaceLostPages(reinterpret_cast<uintptr_t>(info->si_addr))) {
    PassOn(signal_number, info, context);
  }
}

bool InstallOnce() {
  static const bool installed = [] {
    page_bytes.store(static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)));
    struct sigaction action = {};
    action.sa_sigaction = OnBusError;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, &previous_action) == 0;
  }();
  return installed;
}

}  // namespace

Result<BusGuard> BusGuard::Create(const std::byte* begin, size_t size) {
  const std::scoped_lock lock(slots_mutex);
  if (!InstallOnce()) return Error{ErrorCode::kIo, "cannot install a SIGBUS handler", ""};
  for (size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = slots[i];
    if (slot.end.load(std::memory_order_relaxed) != 0) continue;
    slot.damaged.store(false, std::memory_order_relaxed);
    slot.begin.store(reinterpret_cast<uintptr_t>(begin), std::memory_order_relaxed);
    slot.end.store(reinterpret_cast<uintptr_t>(begin) + size, std::memory_order_release);
    return BusGuard(static_cast<int>(i));
  }
  return Error{ErrorCode::kIo, "too many files are mapped",
               "at most " + std::to_string(kMaxGuards)};
}

BusGuard::BusGuard(BusGuard&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}

BusGuard& BusGuard::operator=(BusGuard&& other) noexcept {
  if (this != &other) {
    Reset();
    slot_ = std::exchange(other.slot_, -1);
  }
  return *this;
}

void BusGuard::Reset() {
  if (slot_ < 0) return;
  const std::scoped_lock lock(slots_mutex);
  slots[static_cast<size_t>(slot_)].end.store(0, std::memory_order_release);
  slot_ = -1;
}

bool BusGuard::damaged() const {
  return slot_ >= 0 && slots[static_cast<size_t>(slot_)].damaged.load(std::memory_order_acquire);
}

}  // namespace tael::mem
