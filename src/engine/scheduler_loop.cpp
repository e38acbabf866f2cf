#include "engine/scheduler_loop.h"

#include <algorithm>
#include <utility>

#include "base/thread.h"
#include "engine/batch.h"

namespace tael::engine {
namespace {

// How much the last request says about how long the next will take.
constexpr double kMeanRate = 0.2;

}  // namespace

SchedulerLoop::SchedulerLoop(Engine& engine, const SchedulerOptions& options)
    : engine_(engine),
      options_(options),
      account_(engine),
      inbox_(options.max_queued),
      pinned_(account_.None()) {}

Result<std::unique_ptr<SchedulerLoop>> SchedulerLoop::Create(Engine& engine,
                                                             const SchedulerOptions& options) {
  std::unique_ptr<SchedulerLoop> loop(new SchedulerLoop(engine, options));
  if (options.prefix_cache) loop->index_ = MakeIndex(engine, options.prefix_cache_bytes);
  if (options.prefix_cache && loop->index_ == nullptr) {
    loop->Log("no room in the budget for an index of prefixes: nothing is shared");
  }
  TAEL_RETURN_IF_ERROR(loop->Start());
  return loop;
}

Status SchedulerLoop::Start() {
  TAEL_ASSIGN_OR_RETURN(thread_,
                        StartThread("cannot start the scheduler's thread", [this] { Run(); }));
  return {};
}

SchedulerLoop::~SchedulerLoop() {
  inbox_.Stop();
  if (thread_.joinable()) thread_.join();
}

void SchedulerLoop::Run() {
  while (TakeInbox()) {
    DropCancelled();
    DropSlowReaders(Clock::now());
    Admit();
    if (Pass()) {
      idle_since_ = Clock::now();
    } else {
      Sleep();
    }
  }
  EndAll();
}

// False when it is over.
bool SchedulerLoop::TakeInbox() {
  Inbox::Contents contents = inbox_.Take();
  for (std::unique_ptr<Job>& job : contents.jobs) {
    const auto at = std::ranges::upper_bound(waiting_, job->due, {}, &Job::due);
    waiting_.insert(at, std::move(job));
    ++stats_.submitted;
  }
  for (const auto& call : contents.calls) call->Run();
  return !contents.stop;
}

void SchedulerLoop::DropCancelled() {
  std::erase_if(waiting_, [this](const std::unique_ptr<Job>& job) {
    if (!job->abandoned()) return false;
    End(*job, nullptr);
    inbox_.LeavesQueue();
    return true;
  });
  for (const auto& job : active_) {
    if (job->abandoned()) End(*job, nullptr);
  }
  ForgetDone();
}

void SchedulerLoop::DropSlowReaders(Clock::time_point now) {
  stats_.paused = 0;
  for (const auto& job : active_) {
    if (job->answer->num_buffered() < options_.buffer_tokens) {
      job->full_since.reset();
      continue;
    }
    if (!job->full_since) job->full_since = now;
    stats_.paused += job->CountRunning();
    if (now - *job->full_since < options_.slow_reader_timeout) continue;
    ++stats_.slow_readers;
    const Error error{ErrorCode::kCancelled, "the reader is too slow",
                      std::to_string(options_.buffer_tokens) + " tokens waited for " +
                          std::to_string(options_.slow_reader_timeout.count()) + " ms"};
    End(*job, &error);
  }
  ForgetDone();
}

// Sequences that may compute, those that are due first first.
const std::vector<Choice*>& SchedulerLoop::Ready() {
  ready_.clear();
  SortActive();
  for (const auto& job : active_) {
    for (const auto& choice : job->choices) {
      if (choice->state != State::kRuns || job->full_since || Waits(*choice)) continue;
      if (choice->num_computed == 0 && choice->index == 0) {
        job->answer->SetCached(choice->held());
      }
      ready_.push_back(choice.get());
    }
  }
  return ready_;
}

// False when there is nothing to compute.
bool SchedulerLoop::Pass() {
  plan_.Make(Ready(), engine_.max_batch_tokens(), may_draft_);
  if (plan_.items().empty()) return false;
  const Clock::time_point start = Clock::now();
  const Status status = Compute();
  if (status) {
    AfterPass(Milliseconds(Clock::now() - start));
  } else if (status.error().code == ErrorCode::kCancelled) {
    ++stats_.abandoned_passes;
  } else if (status.error().code != ErrorCode::kNoFreeBlocks) {
    FailAll(status.error());
  } else if (plan_.has_draft()) {
    may_draft_ = false;  // room for a guess takes nothing from anybody
  } else {
    FindRoom();
  }
  return true;
}

Status SchedulerLoop::Compute() {
  ++stats_.passes;
  stats_.weights_released = false;
  AdaptWindows();
  const auto sink = [this](size_t item, size_t index, std::span<float> logits) {
    Choice& choice = *plan_.parts()[item].choice;
    choice.writer->OnLogits(index, logits);
    for (const auto& other : choice.job.choices) {
      if (other->state != State::kFollows) continue;
      // As if it had computed the prompt's last token itself.
      const auto num_prompt = static_cast<uint32_t>(other->writer->history().size());
      other->writer->Next(num_prompt - 1, 1, false);
      other->writer->OnLogits(0, logits);
    }
  };
  return FeedBatch(engine_, plan_.items(), sink, [this] { return IsInVain(); });
}

// Whether the pass under way computes for those who have gone, for the most part: then it is given
// up between two layers, so that their blocks come back at once. Others lose less than half a pass.
bool SchedulerLoop::IsInVain() const {
  if (inbox_.stops()) return true;
  size_t in_vain = 0, total = 0;
  for (const PassPlan::Part& part : plan_.parts()) {
    total += part.feed.tokens.size();
    if (part.choice->job.abandoned()) in_vain += part.feed.tokens.size();
  }
  return 2 * in_vain >= total;
}

void SchedulerLoop::AfterPass(double milliseconds) {
  may_draft_ = true;
  const bool alone = plan_.parts().size() == 1;
  for (const PassPlan::Part& part : plan_.parts()) {
    Choice& choice = *part.choice;
    if (!part.decodes) CountComputed(choice, static_cast<uint32_t>(part.feed.tokens.size()));
    choice.num_computed = std::max(choice.num_computed, choice.held());
    CompressPrompt(choice);
    choice.NoteDropped();
    if (part.feed.num_logits > 0) ForkFollowers(choice);
    choice.writer->EndPass(alone ? std::optional(milliseconds) : std::nullopt);
    if (!part.decodes) Publish(choice);
    Settle(choice);
  }
  ForgetDone();
  TellStats(false);
}

// Others may have all of the prompt's rows; the other choices share what is left of it.
void SchedulerLoop::CompressPrompt(Choice& choice) {
  if (!choice.session->sequence().is_due()) return;
  Publish(choice);
  choice.session->Compress();
  ++room_version_;
}

void SchedulerLoop::CountComputed(const Choice& choice, uint32_t num_tokens) {
  const uint32_t begin = choice.held() - num_tokens;
  const uint32_t before = choice.num_computed;
  const uint32_t again = before > begin ? std::min(num_tokens, before - begin) : 0;
  stats_.recomputed_tokens += again;
  stats_.prompt_tokens += num_tokens - again;
}

// The other choices of the request go on from the prompt that the first one has computed.
void SchedulerLoop::ForkFollowers(Choice& leader) {
  for (const auto& other : leader.job.choices) {
    if (other->state != State::kFollows) continue;
    other->session = leader.session->Fork();
    other->state = State::kRuns;
    other->num_computed = other->held();
    other->NoteDropped();
    other->writer->EndPass(std::nullopt);
    Settle(*other);
  }
}

// Tells the reader what a pass brought.
void SchedulerLoop::Settle(Choice& choice) {
  if (choice.writer->ended()) {
    Publish(choice);
    choice.session.reset();  // before the reader knows
    choice.state = State::kDone;
    ++room_version_;
    if (choice.job.pin && !KeepPinned(choice)) return;
  }
  stats_.generated_tokens += choice.Flush();
}

void SchedulerLoop::Publish(const Choice& choice) {
  if (index_ == nullptr) return;
  index_->Publish(choice.writer->history(), choice.job.request.salt, choice.session->sequence());
}

// Ends whatever has not ended: with an error, or as cancelled.
void SchedulerLoop::End(Job& job, const Error* error) {
  ++room_version_;
  ++(error == nullptr || error->code == ErrorCode::kCancelled ? stats_.cancelled : stats_.failed);
  job.dropped = true;
  for (const auto& choice : job.choices) {
    if (choice->state == State::kDone) continue;
    choice->session.reset();
    choice->state = State::kDone;
    if (error != nullptr) continue;
    choice->writer->Finish(FinishReason::kCancelled);
    choice->Flush();
  }
  if (error != nullptr) {
    job.answer->Fail(*error);
  } else if (job.choices.empty()) {
    for (uint32_t i = 0; i < job.request.num_choices; ++i) {
      job.answer->Put({.choice = i, .finish = FinishReason::kCancelled});
    }
  }
}

void SchedulerLoop::FailAll(const Error& error) {
  for (const auto& job : active_) End(*job, &error);
  Log("a pass failed: " + error.Message());
  ForgetDone();
}

void SchedulerLoop::ForgetDone() {
  const auto forget = [this](const std::unique_ptr<Job>& job) {
    if (!job->done()) return false;
    if (job->dropped) return true;
    ++stats_.finished;
    const double took = Milliseconds(Clock::now() - job->started);
    mean_job_ms_ += (mean_job_ms_ == 0 ? 1 : kMeanRate) * (took - mean_job_ms_);
    return true;
  };
  if (std::erase_if(active_, forget) > 0) TellStats(true);
}

void SchedulerLoop::EndAll() {
  for (const auto& job : waiting_) End(*job, nullptr);
  for (const auto& job : active_) End(*job, nullptr);
  waiting_.clear();
  active_.clear();
  TellStats(true);
}

// Until somebody rings, or one of the times comes at which there is something to do.
void SchedulerLoop::Sleep() {
  const Clock::time_point now = Clock::now();
  Clock::time_point until = Clock::time_point::max();
  for (const auto& job : active_) {
    if (job->full_since) until = std::min(until, *job->full_since + options_.slow_reader_timeout);
  }
  if (now < pressure_until_) until = std::min(until, pressure_until_);
  if (!stats_.weights_released) {
    engine_.weight_room().Look();
    until = std::min(until, engine_.weight_room().next_look());
  }
  const bool idle = active_.empty() && waiting_.empty();
  if (idle && options_.idle_release.count() > 0 && !stats_.weights_released) {
    if (now >= idle_since_ + options_.idle_release) {
      ReleaseWeights();
    } else {
      until = std::min(until, idle_since_ + options_.idle_release);
    }
  }
  if (idle) Compact();
  TellStats(true);
  inbox_.doorbell()->Wait(until);
}

void SchedulerLoop::ReleaseWeights() {
  engine_.ReleaseWeights();
  stats_.weights_released = true;
  ++stats_.idle_releases;
  Log("idle: the weights are given back to the kernel");
}

// ---- what others may know ----

void SchedulerLoop::TellStats(bool with_prefix) {
  stats_.queued = inbox_.num_queued();
  stats_.running = NumRunning();
  stats_.preempted = 0;
  for (const auto& job : active_) {
    for (const auto& choice : job->choices) stats_.preempted += choice->state == State::kPreempted;
  }
  stats_.under_pressure = Clock::now() < pressure_until_;
  const double wait_ms = mean_job_ms_ * (stats_.queued + 1) / Slots();
  stats_.retry_after_s = static_cast<uint32_t>(std::clamp(wait_ms / 1000 + 1, 1.0, 300.0));
  if (with_prefix && index_ != nullptr) {
    const kv::PrefixStats prefix = index_->Stats();
    stats_.prefix_rows = prefix.rows;
    stats_.prefix_bytes = prefix.bytes;
    stats_.prefix_idle_bytes = prefix.idle_bytes;
    stats_.prefix_hits = prefix.hits;
    stats_.prefix_hit_tokens = prefix.hit_tokens;
    stats_.prefix_rejected_hits = prefix.rejected_hits;
    stats_.prefix_evicted_rows = prefix.evicted;
  }
  const std::lock_guard lock(told_mutex_);
  told_ = stats_;
}

SchedulerStats SchedulerLoop::Stats() const {
  const std::lock_guard lock(told_mutex_);
  SchedulerStats stats = told_;
  stats.refused_busy = num_refused_busy_;
  return stats;
}

void SchedulerLoop::CountRefusal() {
  const std::lock_guard lock(told_mutex_);
  ++num_refused_busy_;
}

void SchedulerLoop::Log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

}  // namespace tael::engine
