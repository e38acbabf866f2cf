#include "server/state_keeper.h"

#include <utility>

#include "base/thread.h"
#include "base/units.h"

namespace tael::server {
namespace {

// Two looks without a request in between: between one and two minutes of rest.
constexpr std::chrono::seconds kInterval{60};

}  // namespace

Result<std::unique_ptr<StateKeeper>> StateKeeper::Create(const engine::Engine& engine,
                                                         engine::Scheduler& scheduler,
                                                         const std::string& folder, Log log) {
  engine::PrefixStoreOptions options;
  options.folder = folder;
  auto store = engine::PrefixStore::Create(engine, scheduler, std::move(options));
  if (!store) {
    return Error{ErrorCode::kInvalidArgument, "--state-dir", store.error().Message()};
  }
  std::unique_ptr<StateKeeper> keeper(
      new StateKeeper(scheduler, *std::move(store), std::move(log)));
  keeper->Restore();
  TAEL_ASSIGN_OR_RETURN(keeper->thread_, StartThread("the server cannot start a thread",
                                                     [raw = keeper.get()] { raw->Run(); }));
  return keeper;
}

StateKeeper::~StateKeeper() {
  if (!thread_.joinable()) return;  // it never began
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
  Save();
}

void StateKeeper::Say(const std::string& line) const {
  if (log_) log_(line);
}

void StateKeeper::Restore() {
  const auto restored = store_->Restore();
  if (!restored) {
    Say("prefixes were not restored: " + restored.error().Message());
  } else if (restored->rows > 0) {
    Say("restored " + std::to_string(restored->rows * 16) + " tokens of prefixes, " +
        FormatSize(restored->bytes));
  }
}

void StateKeeper::Save() {
  const auto bytes = store_->Save();
  if (!bytes) {
    Say("prefixes were not saved: " + bytes.error().Message());
  } else if (*bytes > 0) {
    Say("saved prefixes, " + FormatSize(*bytes) + ", to " + store_->path());
  }
}

// No request came since the last look, and none runs.
bool StateKeeper::HasRested() {
  const engine::SchedulerStats stats = scheduler_.Stats();
  const bool is_new = std::exchange(submitted_, stats.submitted) != stats.submitted;
  return !is_new && stats.running == 0 && stats.queued == 0;
}

void StateKeeper::Run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (stop_.wait_for(lock, kInterval, [this] { return stopping_; })) return;
    }
    if (HasRested()) Save();
  }
}

}  // namespace tael::server
