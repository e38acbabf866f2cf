// Prefixes on disk: what a scheduler's index holds is saved, and read back by the next process, so
// that a restart does not compute everybody's system prompt and conversation again.
//
// One file for each model, KV type, rotation and window (kv/snapshot.h): FOLDER/prefixes-NUMBER.kv.
// Flash wears out, so that no more than so many bytes are written in an hour; what would be more is
// left for later, and what did not change is not written again.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/scheduler.h"
#include "kv/prefix_context.h"
#include "kv/snapshot.h"

namespace tael::engine {

struct PrefixStoreOptions {
  std::string folder = {};                        // made if it is missing
  uint64_t bytes_per_hour = uint64_t{256} << 20;  // and of one file
  std::function<std::chrono::steady_clock::time_point()> now = &std::chrono::steady_clock::now;
};

// Any thread; saving and restoring take turns.
class PrefixStore {
 public:
  // Engine and scheduler outlive the store. Fails: kIo (the folder, the model file's time).
  static Result<std::unique_ptr<PrefixStore>> Create(const Engine& engine, Scheduler& scheduler,
                                                     PrefixStoreOptions options);

  const std::string& path() const { return path_; }

  // Adds what the file holds to the scheduler's index; no file is no error. Fails: as
  // kv::RestoreSnapshot(); the scheduler then works on as if there were none, and the next Save()
  // replaces the file. Blocks: passes wait until the file is read.
  Result<kv::Restored> Restore();

  // Writes the rows of the index, those worth most first; passes go on meanwhile. Returns the bytes
  // that were written: 0 if nothing changed since the last time, there is nothing to save, or the
  // hour's bytes are used up. Fails: kIo, naming a full disk; then the old file is still there.
  Result<uint64_t> Save();

 private:
  PrefixStore(const Engine& engine, Scheduler& scheduler, PrefixStoreOptions options)
      : engine_(engine), scheduler_(scheduler), options_(std::move(options)) {}
  uint64_t BytesAllowed();

  const Engine& engine_;
  Scheduler& scheduler_;
  const PrefixStoreOptions options_;
  kv::PrefixContext context_;
  std::string path_;

  std::mutex mutex_;    // what follows, and the file
  uint64_t saved_ = 0;  // fingerprint of what the file holds
  std::deque<std::pair<std::chrono::steady_clock::time_point, uint64_t>> written_;  // in the hour
};

}  // namespace tael::engine
