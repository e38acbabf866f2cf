#include "engine/scheduler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/answer_writer.h"
#include "engine/scheduler_loop.h"

namespace tael::engine {
namespace {

Status CheckOptions(const Engine& engine, const SchedulerOptions& options) {
  const auto bad = [](std::string detail) {
    return Error{ErrorCode::kInvalidArgument, "bad scheduler options", std::move(detail)};
  };
  if (options.max_queued == 0) return bad("a queue of no requests");
  if (options.buffer_tokens == 0) return bad("a buffer of no tokens");
  if (options.max_running <= engine.max_batch_tokens()) return {};
  return bad(std::to_string(options.max_running) + " sequences at a time, a pass takes " +
             std::to_string(engine.max_batch_tokens()) + " tokens");
}

Status CheckChoices(const Request& request, uint32_t most) {
  if (request.num_choices >= 1 && request.num_choices <= most) return {};
  return Error{ErrorCode::kInvalidArgument, "number of choices out of range",
               std::to_string(request.num_choices) + ", must be 1 to " + std::to_string(most) +
                   ", as many as run at a time"};
}

Status CheckLength(const Request& request, uint32_t context, uint32_t most_new) {
  const GenerateOptions& options = request.options;
  if (!options.force_tokens.empty() || options.max_tokens <= most_new) return {};
  const uint64_t total = request.prompt.size() + uint64_t{options.max_tokens};
  return Error{ErrorCode::kContextExceeded, "prompt and answer are longer than the context",
               std::to_string(total) + " tokens (" + std::to_string(request.prompt.size()) +
                   " and up to " + std::to_string(options.max_tokens) +
                   " new ones), the context has " + std::to_string(context) + ": ask for at most " +
                   std::to_string(most_new) + " new ones, or shorten the prompt"};
}

}  // namespace

Scheduler::Scheduler(std::unique_ptr<SchedulerLoop> loop) : loop_(std::move(loop)) {}

Scheduler::~Scheduler() = default;

Result<std::unique_ptr<Scheduler>> Scheduler::Create(Engine& engine,
                                                     const SchedulerOptions& options) {
  SchedulerOptions filled = options;
  if (filled.max_running == 0) {
    filled.max_running = std::min(engine.plan().max_sessions, engine.max_batch_tokens());
  }
  // Scores of attention are planned for so many sequences; blocks alone more could share.
  if (engine.plan().score_bytes != 0) {
    filled.max_running = std::min(filled.max_running, engine.plan().max_sessions);
  }
  TAEL_RETURN_IF_ERROR(CheckOptions(engine, filled));
  TAEL_ASSIGN_OR_RETURN(auto loop, SchedulerLoop::Create(engine, filled));
  return std::unique_ptr<Scheduler>(new Scheduler(std::move(loop)));
}

Result<std::shared_ptr<Answer>> Scheduler::Submit(Request request) {
  return Submit(std::move(request), false);
}

Result<std::shared_ptr<Answer>> Scheduler::Submit(Request request, bool pin) {
  const Engine& engine = loop_->engine();
  TAEL_RETURN_IF_ERROR(CheckAnswer(engine, request.prompt, request.options));
  TAEL_RETURN_IF_ERROR(CheckChoices(request, loop_->options().max_running));
  if (!engine.plan().is_endless()) {
    TAEL_RETURN_IF_ERROR(
        CheckLength(request, engine.context_length(), MostNewTokens(request.prompt.size())));
  }
  if (!pin) TAEL_RETURN_IF_ERROR(CheckWeightRoom());
  const auto num_prompt = static_cast<uint32_t>(request.prompt.size());
  auto answer =
      std::make_shared<AnswerSource>(loop_->inbox().doorbell(), num_prompt, request.num_choices);
  auto job = std::make_unique<Job>(std::move(request), answer, Job::Clock::now());
  job->pin = pin;
  const Status status = loop_->inbox().Push(std::move(job));
  if (status) return std::shared_ptr<Answer>(std::move(answer));
  if (status.error().code != ErrorCode::kBusy) return status.error();
  loop_->CountRefusal();
  return Error{
      ErrorCode::kBusy, status.error().what,
      status.error().detail + "; try again in " + std::to_string(RetryAfterSeconds()) + " s"};
}

// Where every token reads layers from the file, the answers that are under way get all of that.
Status Scheduler::CheckWeightRoom() {
  const WeightRoom& room = loop_->engine().weight_room();
  if (!room.is_short()) return {};
  const SchedulerStats stats = loop_->Stats();
  if (stats.running + stats.preempted + loop_->inbox().num_queued() == 0) return {};
  loop_->CountRefusal();
  return Error{ErrorCode::kBusy, "nothing new is begun beside the answers that are under way",
               room.Why()};
}

uint32_t Scheduler::RetryAfterSeconds() const { return loop_->Stats().retry_after_s; }

uint32_t Scheduler::MostNewTokens(size_t prompt_tokens) const {
  const uint32_t context = loop_->engine().context_length();
  if (loop_->engine().plan().is_endless()) return context;  // more than that has to be asked for
  if (prompt_tokens > context) return 0;
  return context - static_cast<uint32_t>(prompt_tokens) + 1;  // the last is not computed
}

Status Scheduler::Pin(std::vector<TokenId> prompt, uint64_t salt) {
  if (!loop_->shares_prefixes()) {
    return Error{ErrorCode::kInvalidArgument, "there is no prefix cache to pin a prompt in", ""};
  }
  Request request{.prompt = std::move(prompt), .salt = salt};
  request.options.max_tokens = 0;
  request.options.sampler.temperature = 0;
  TAEL_ASSIGN_OR_RETURN(const auto answer, Submit(std::move(request), true));
  std::vector<Piece> pieces;
  bool cancelled = false;
  while (answer->WaitFor(std::chrono::hours(1), pieces) != Answer::Next::kEnd) {
    for (const Piece& piece : pieces) {
      cancelled = cancelled || piece.finish == FinishReason::kCancelled;
    }
  }
  if (const auto error = answer->error()) return *error;
  if (cancelled) return Error{ErrorCode::kCancelled, "the scheduler stops", ""};
  return {};
}

bool Scheduler::Do(std::function<void()> body) {
  const auto call = std::make_shared<Call>(std::move(body));
  if (!loop_->inbox().Push(call)) return false;
  call->Wait();
  return true;
}

uint64_t Scheduler::Trim(TrimLevel level) {
  uint64_t bytes = 0;
  Do([&] { bytes = loop_->Trim(level); });
  return bytes;
}

void Scheduler::WithPrefixIndex(const std::function<void(kv::PrefixIndex*)>& body) {
  Do([&] { body(loop_->index()); });
}

SchedulerStats Scheduler::Stats() const { return loop_->Stats(); }

}  // namespace tael::engine
