// Which requests start, and which wait: see "admission" in scheduler.h.
#include <algorithm>
#include <utility>

#include "engine/scheduler_loop.h"

namespace tael::engine {

void SchedulerLoop::Admit() {
  SortActive();
  bool starts = false;
  while (StartFirst()) starts = true;
  if (starts) TellStats(false);  // the pass may take long
}

// Starts the one that is due first of those that wait. Nobody overtakes it: a long prompt would
// wait for ever.
bool SchedulerLoop::StartFirst() {
  Choice* preempted = nullptr;
  for (const auto& job : active_) {
    if (preempted != nullptr || job->full_since) continue;
    for (const auto& choice : job->choices) {
      if (preempted == nullptr && choice->state == State::kPreempted) preempted = choice.get();
    }
  }
  if (preempted != nullptr && (waiting_.empty() || preempted->job.due <= waiting_.front()->due)) {
    return Resume(*preempted);
  }
  return !waiting_.empty() && StartQueued();
}

bool SchedulerLoop::Resume(Choice& choice) {
  const bool alone = NumRunning() == 0;
  if (NumRunning() >= Slots() || (!alone && !MayHaveRoom(choice.job))) return false;
  OpenSession(choice);
  WaitForWhoComputes(choice);
  KvAccount::Blocks demand = Demand(choice, PromisedTokens(choice));
  AddFollowers(choice.job, demand);
  if (!alone && !FindsRoom(demand)) {
    choice.session.reset();
    return false;
  }
  choice.state = State::kRuns;
  tried_ = nullptr;  // its job may have more choices that wait
  ++stats_.resumptions;
  return true;
}

bool SchedulerLoop::StartQueued() {
  Job& job = *waiting_.front();
  const bool alone = NumRunning() == 0;
  if (NumRunning() + job.request.num_choices > Slots() && !alone) return false;
  if (!alone && !MayHaveRoom(job)) return false;
  if (job.choices.empty()) {
    const Status status = MakeChoices(job);
    if (!status) return alone && Refuse(status.error());
  }
  Choice& first = *job.choices.front();
  OpenSession(first);
  WaitForWhoComputes(first);
  KvAccount::Blocks demand = Demand(first, PromisedTokens(first));
  AddFollowers(job, demand);
  if (!FindsRoom(demand)) {
    if (!alone) {
      first.session.reset();
      return false;
    }
    if (!FitsAlone(first)) return Refuse(NeverFits(first));
  }
  first.state = State::kRuns;
  job.started = Clock::now();
  active_.push_back(std::move(waiting_.front()));
  waiting_.erase(waiting_.begin());
  inbox_.LeavesQueue();
  return true;
}

// False for who found no room before, as long as none can have come.
bool SchedulerLoop::MayHaveRoom(const Job& job) {
  if (tried_ == &job && tried_version_ == room_version_) return false;
  tried_ = &job;
  tried_version_ = room_version_;
  return true;
}

Status SchedulerLoop::MakeChoices(Job& job) {
  std::vector<std::unique_ptr<Choice>> choices;
  for (uint32_t i = 0; i < job.request.num_choices; ++i) {
    choices.push_back(std::make_unique<Choice>(job, i, next_serial_++));
    const GenerateOptions& options = job.request.options;
    TAEL_ASSIGN_OR_RETURN(
        choices.back()->writer,
        AnswerWriter::Create(engine_, job.request.prompt, options, options.sampler.seed + i,
                             job.arrival, *choices.back()));
  }
  job.choices = std::move(choices);
  return {};
}

// A session that holds what the index has of the history, at most all but the last token. What it
// is to keep must be known before.
void SchedulerLoop::OpenSession(Choice& choice) {
  choice.session = engine_.NewSession();
  choice.session->PinFirst(choice.job.request.system_tokens);
  choice.session->PlanCompression(static_cast<uint32_t>(choice.job.request.prompt.size()));
  if (index_ == nullptr) return;
  const std::span<const TokenId> history = choice.writer->history();
  choice.session->Adopt(*index_, history, choice.job.request.salt,
                        static_cast<uint32_t>(history.size()) - 1);
}

// Looks for a sequence that computes right now what this one begins with. Only older ones count, so
// that nobody waits in a circle; and whoever is waited for is due no later than who waits.
void SchedulerLoop::WaitForWhoComputes(Choice& choice) {
  choice.computes_for_us = 0;
  choice.shared_tokens = choice.held();
  if (index_ == nullptr) return;
  const std::span<const TokenId> history = choice.writer->history();
  const size_t most = std::min<size_t>(history.size() - 1, choice.session->MostAdopted());
  Job* owner = nullptr;
  for (const auto& job : active_) {
    if (job->request.salt != choice.job.request.salt || job->full_since) continue;
    for (const auto& other : job->choices) {
      if (other->state != State::kRuns || other->serial >= choice.serial) continue;
      if (other->decodes()) continue;
      const uint32_t common = CommonRows(history, other->writer->history(), most);
      if (common <= choice.shared_tokens || common <= other->held()) continue;
      choice.computes_for_us = other->serial;
      choice.shared_tokens = common;
      owner = job.get();
    }
  }
  if (owner != nullptr) owner->due = std::min(owner->due, choice.job.due);
}

// Whether somebody still computes this one's beginning; takes it over as soon as nobody does.
bool SchedulerLoop::Waits(Choice& choice) {
  while (choice.computes_for_us != 0) {
    for (const auto& job : active_) {
      if (job->full_since) continue;  // pauses for its reader: nobody waits for that
      for (const auto& other : job->choices) {
        if (other->serial != choice.computes_for_us || other->state != State::kRuns) continue;
        if (other->held() < choice.shared_tokens) return true;
      }
    }
    OpenSession(choice);
    WaitForWhoComputes(choice);
  }
  return false;
}

// What a sequence is promised room for: some more than it has, or all of it if that is less.
uint32_t SchedulerLoop::PromisedTokens(const Choice& choice) const {
  const size_t soon = choice.writer->history().size() + options_.reserved_tokens;
  return static_cast<uint32_t>(std::min<size_t>(soon, choice.writer->most_held()));
}

KvAccount::Blocks SchedulerLoop::Demand(const Choice& choice, uint32_t tokens) const {
  return account_.Growth(choice.session->sequence(), tokens, choice.shared_tokens);
}

void SchedulerLoop::AddFollowers(const Job& job, KvAccount::Blocks& demand) const {
  for (const auto& choice : job.choices) {
    if (choice->state != State::kFollows || choice->index == 0) continue;
    const auto shared = static_cast<uint32_t>(job.request.prompt.size());
    Add(demand, account_.For(PromisedTokens(*choice), shared));
  }
}

// What those that run have still been promised, and `demand`, beside what is in use.
bool SchedulerLoop::Fits(KvAccount::Blocks demand) const {
  for (const auto& job : active_) {
    if (job->CountRunning() == 0) continue;
    AddFollowers(*job, demand);
    for (const auto& choice : job->choices) {
      if (choice->state == State::kRuns) Add(demand, Demand(*choice, PromisedTokens(*choice)));
    }
  }
  Add(demand, account_.InUse(index_ != nullptr ? index_->Stats().idle_bytes : 0));
  return account_.Fit(demand);
}

// The same, after windows that have grown have given that up, if need be.
bool SchedulerLoop::FindsRoom(const KvAccount::Blocks& demand) {
  if (Fits(demand)) return true;
  const uint32_t start = engine_.plan().window.start;
  return start != 0 && LimitWindows(start, ~uint64_t{0}) > 0 && Fits(demand);
}

// Whether the request can ever finish: its choices may take turns, but each has to fit beside what
// is pinned.
bool SchedulerLoop::FitsAlone(const Choice& choice) {
  if (index_ != nullptr) index_->Evict(~uint64_t{0});  // what is idle is counted by the row only
  return Fits(Demand(choice, choice.writer->most_held()));
}

Error SchedulerLoop::NeverFits(const Choice& choice) const {
  return Error{ErrorCode::kOutOfBudget, "the request needs more KV than there is",
               std::to_string(choice.writer->most_held()) +
                   " tokens, beside the prompts that are pinned; ask for fewer tokens or raise the "
                   "budget"};
}

// Ends the request that is first in the queue with an error, before it has started.
bool SchedulerLoop::Refuse(const Error& error) {
  End(*waiting_.front(), &error);
  waiting_.erase(waiting_.begin());
  inbox_.LeavesQueue();
  return true;
}

// By due time, which WaitForWhoComputes() may have changed.
void SchedulerLoop::SortActive() {
  if (!std::ranges::is_sorted(active_, {}, &Job::due)) {
    std::ranges::stable_sort(active_, {}, &Job::due);
  }
}

uint32_t SchedulerLoop::Slots() const {
  if (Clock::now() < pressure_until_) return 1;
  return options_.max_running;
}

uint32_t SchedulerLoop::NumRunning() const {
  uint32_t count = 0;
  for (const auto& job : active_) count += job->CountRunning();
  return count;
}

}  // namespace tael::engine
