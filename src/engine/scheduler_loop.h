// The scheduler's thread: owns every sequence, the prefix index and, while it runs, the engine.
//
//   take what came in -> drop what was cancelled -> start what has room -> one pass -> again
//
// Only what is marked so may be called from other threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/inbox.h"
#include "engine/job.h"
#include "engine/kv_account.h"
#include "engine/pass_plan.h"
#include "engine/reclaim.h"
#include "engine/scheduler.h"
#include "kv/prefix_index.h"

namespace tael::engine {

// Null where the budget has no room for its table.
std::unique_ptr<kv::PrefixIndex> MakeIndex(Engine& engine, uint64_t max_bytes);

class SchedulerLoop final : private Reclaimable {
 public:
  using Clock = Job::Clock;

  static Result<std::unique_ptr<SchedulerLoop>> Create(Engine& engine,
                                                       const SchedulerOptions& options);
  ~SchedulerLoop();  // stops the thread

  // Any thread.
  const Engine& engine() const { return engine_; }
  const SchedulerOptions& options() const { return options_; }
  Inbox& inbox() { return inbox_; }
  bool shares_prefixes() const { return index_ != nullptr; }
  SchedulerStats Stats() const;
  void CountRefusal();

  // The scheduler's thread, between two passes: inside a Call.
  uint64_t Trim(TrimLevel level);
  kv::PrefixIndex* index() { return index_.get(); }

 private:
  using State = Choice::State;

  SchedulerLoop(Engine& engine, const SchedulerOptions& options);
  Status Start();
  void Run();

  // ---- the round ----
  bool TakeInbox();
  void DropCancelled();
  void DropSlowReaders(Clock::time_point now);
  const std::vector<Choice*>& Ready();
  bool Pass();
  Status Compute();
  bool IsInVain() const;
  void AfterPass(double milliseconds);
  void CompressPrompt(Choice& choice);
  void CountComputed(const Choice& choice, uint32_t num_tokens);
  void ForkFollowers(Choice& leader);
  void Settle(Choice& choice);
  void Publish(const Choice& choice);
  void End(Job& job, const Error* error);
  void FailAll(const Error& error);
  void ForgetDone();
  void EndAll();
  void Sleep();
  void ReleaseWeights();
  void TellStats(bool with_prefix);
  void Log(const std::string& line) const;

  // ---- who may start (scheduler_admission.cpp) ----
  void Admit();
  bool StartFirst();
  bool Resume(Choice& choice);
  bool StartQueued();
  bool MayHaveRoom(const Job& job);
  Status MakeChoices(Job& job);
  void OpenSession(Choice& choice);
  void WaitForWhoComputes(Choice& choice);
  bool Waits(Choice& choice);
  uint32_t PromisedTokens(const Choice& choice) const;
  KvAccount::Blocks Demand(const Choice& choice, uint32_t tokens) const;
  void AddFollowers(const Job& job, KvAccount::Blocks& demand) const;
  bool Fits(KvAccount::Blocks demand) const;
  bool FindsRoom(const KvAccount::Blocks& demand);
  bool FitsAlone(const Choice& choice);
  Error NeverFits(const Choice& choice) const;
  bool Refuse(const Error& error);
  void SortActive();
  uint32_t Slots() const;
  uint32_t NumRunning() const;

  // ---- what is given back (scheduler_memory.cpp) ----
  void FindRoom();
  uint64_t EvictIdleRows(uint64_t bytes) override;
  uint64_t ShrinkWindows(uint64_t bytes) override;
  uint64_t LimitWindows(uint32_t tokens, uint64_t bytes);
  void AdaptWindows();
  bool PreemptLast(uint64_t& freed_bytes) override;
  void Preempt(Choice& choice);
  void Compact();
  uint64_t BytesInUse() const { return engine_.pool().Stats().block_bytes_in_use; }
  bool KeepPinned(const Choice& choice);

  Engine& engine_;
  const SchedulerOptions options_;
  const KvAccount account_;
  Inbox inbox_;
  std::unique_ptr<kv::PrefixIndex> index_;  // null: nothing is shared

  std::vector<std::unique_ptr<Job>> waiting_;  // taken from the inbox, by due time
  std::vector<std::unique_ptr<Job>> active_;   // started and not done, by due time
  std::vector<Choice*> ready_;                 // scratch of Ready()
  PassPlan plan_;
  uint64_t next_serial_ = 1;
  bool may_draft_ = true;
  // Counts what may have made room. Who found none need not look again before it changes.
  uint64_t room_version_ = 0, tried_version_ = ~uint64_t{0};
  const Job* tried_ = nullptr;

  Clock::time_point pressure_until_{};
  Clock::time_point idle_since_ = Clock::now();
  double mean_job_ms_ = 0;
  KvAccount::Blocks pinned_;

  SchedulerStats stats_;  // the thread's own
  mutable std::mutex told_mutex_;
  SchedulerStats told_;            // guarded
  uint64_t num_refused_busy_ = 0;  // guarded

  std::thread thread_;
};

}  // namespace tael::engine
