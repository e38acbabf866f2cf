// Keeps what the prefix index holds on disk: read at the start, written when the server has had
// nothing to do for a while, and at the end.
//
// Nothing here may keep the server from serving: what cannot be read or written is said in the log.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "base/result.h"
#include "engine/prefix_store.h"
#include "engine/scheduler.h"

namespace tael::server {

class StateKeeper {
 public:
  using Log = std::function<void(std::string_view)>;

  // Restores what `folder` has. `engine` and `scheduler` outlive the keeper; `log` may be empty.
  // Fails: kInvalidArgument for a folder that cannot be made; kIo.
  static Result<std::unique_ptr<StateKeeper>> Create(const engine::Engine& engine,
                                                     engine::Scheduler& scheduler,
                                                     const std::string& folder, Log log);
  ~StateKeeper();  // saves, and waits for that

 private:
  StateKeeper(engine::Scheduler& scheduler, std::unique_ptr<engine::PrefixStore> store, Log log)
      : scheduler_(scheduler), store_(std::move(store)), log_(std::move(log)) {}
  void Restore();
  void Run();
  bool HasRested();
  void Save();
  void Say(const std::string& line) const;

  engine::Scheduler& scheduler_;
  const std::unique_ptr<engine::PrefixStore> store_;
  const Log log_;

  uint64_t submitted_ = 0;  // requests, at the last look

  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace tael::server
