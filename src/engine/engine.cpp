#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "engine/batch.h"
#include "model/rope.h"

namespace tael::engine {

using mem::MemoryTag;

namespace {

PlanRequest RequestOf(const EngineOptions& options, size_t num_threads, uint64_t tokenizer_bytes) {
  return {.budget_bytes = options.budget_bytes,
          .context_length = options.context_length,
          .max_sessions = options.max_sessions,
          .chunk_tokens = options.chunk_tokens,
          .logit_rows = options.logit_rows,
          .draft_tokens = options.draft_tokens,
          .num_threads = num_threads,
          .compute = options.compute,
          .kv_type = options.kv_type,
          .kv_auto = options.kv_auto,
          .kv_safety = options.kv_safety,
          .auto_on_reference = options.auto_on_reference,
          .window = options.window,
          .compress = options.compress,
          .tokenizer_bytes = tokenizer_bytes,
          .runtime_bytes = options.runtime_bytes,
          .server_bytes = options.server_bytes};
}

exec::CpuChoice CpusFor(const EngineOptions& options) {
  exec::CpuChoice cpus =
      exec::ChooseCpus(exec::ReadCpuTopology(exec::AffinityCpus()), options.num_threads);
  if (options.oversubscribe) cpus.num_threads = options.num_threads;
  return cpus;
}

// What a plan is made from, without reading a weight.
struct PlanInput {
  std::unique_ptr<model::Model> model;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;  // alive while the heap is measured
  PlanRequest request;
};

Result<PlanInput> OpenForPlan(const EngineOptions& options) {
  PlanInput in;
  TAEL_ASSIGN_OR_RETURN(in.model, model::Model::Open(options.model_path));
  TAEL_ASSIGN_OR_RETURN(in.tokenizer, tokenizer::Tokenizer::Create(in.model->file()));
  in.request = RequestOf(options, CpusFor(options).num_threads, in.tokenizer->HeapBytes());
  return in;
}

// How keys turn with their position, for caches that merge some.
void AddRotations(const model::Model& model, MemoryPlan& plan) {
  if (plan.window.evict != kv::Evict::kMerge) return;
  const model::ModelDescription& m = model.description();
  const auto ropes = model::MakeRopeFrequencies(m, model.weights(), plan.workspace.max_context);
  for (const model::LayerDescription& layer : m.layers) {
    kv::Rotation& rotation = plan.geometry.rotations.emplace_back();
    if (layer.rope < 0) continue;
    rotation.frequencies = ropes[static_cast<size_t>(layer.rope)].frequencies;
    rotation.pairs = m.rope_layout == model::RopeLayout::kPairs;
  }
}

}  // namespace

Result<MemoryPlan> ForecastPlan(const EngineOptions& options) {
  TAEL_ASSIGN_OR_RETURN(const PlanInput in, OpenForPlan(options));
  return MakePlan(*in.model, in.request);
}

Result<Forecast> MakeForecast(const EngineOptions& options) {
  TAEL_ASSIGN_OR_RETURN(const PlanInput in, OpenForPlan(options));
  Forecast out;
  TAEL_ASSIGN_OR_RETURN(out.plan, MakePlan(*in.model, in.request));
  out.capacity = CapacityOf(*in.model, in.request, out.plan);
  exec::WorkspaceShape shape = out.plan.workspace;
  out.activations = exec::Workspace::ReportOf(*in.model, shape);
  shape.max_tokens = shape.max_context;
  out.whole_prompt = exec::Workspace::ReportOf(*in.model, shape);
  return out;
}

Result<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine());
  TAEL_ASSIGN_OR_RETURN(engine->model_, model::Model::Open(options.model_path));
  TAEL_ASSIGN_OR_RETURN(engine->tokenizer_, tokenizer::Tokenizer::Create(engine->model_->file()));
  engine->cpus_ = CpusFor(options);
  const PlanRequest request =
      RequestOf(options, engine->cpus_.num_threads, engine->tokenizer_->HeapBytes());
  TAEL_ASSIGN_OR_RETURN(engine->plan_, MakePlan(*engine->model_, request));
  if (!engine->plan_.fits()) return DoesNotFit(engine->plan_);
  engine->plan_.workspace.poison_dead = options.poison_freed;
  AddRotations(*engine->model_, engine->plan_);
  engine->budget_ = std::make_unique<mem::MemoryBudget>(engine->plan_.budget_bytes);
  TAEL_RETURN_IF_ERROR(engine->Reserve());
  TAEL_ASSIGN_OR_RETURN(engine->team_,
                        exec::ThreadTeam::Create(engine->cpus_.num_threads, engine->cpus_.cpus));

  kv::PoolOptions pool;
  for (const kv::LayerGroup& group : engine->plan_.geometry.groups) {
    pool.block_bytes.push_back(group.block_bytes);
  }
  pool.capacity_bytes = engine->plan_.kv_capacity_bytes;
  pool.slab_bytes = engine->plan_.slab_bytes;
  pool.poison_freed = options.poison_freed;
  pool.large_pages = engine->plan_.workspace.large_pages;  // if the plan made slabs of that size
  pool.commit_all = options.commit_kv;
  pool.backing = options.kv_backing;
  TAEL_ASSIGN_OR_RETURN(engine->pool_, kv::BlockPool::Create(*engine->budget_, std::move(pool)));
  TAEL_ASSIGN_OR_RETURN(
      engine->forward_,
      exec::Forward::Create(*engine->model_, engine->plan_.geometry, *engine->team_,
                            engine->plan_.workspace, *engine->budget_));
  engine->chunks_.reserve(engine->max_batch_tokens());
  if (options.lock_weights) engine->LockWeights();
  const exec::WarmUp usual =
      engine->cpus_.has_spare ? exec::WarmUp::kAhead : exec::WarmUp::kFirstLayers;
  TAEL_RETURN_IF_ERROR(engine->StartReading(options.warm_up.value_or(usual)));
  return engine;
}

Engine::~Engine() = default;

Status Engine::Reserve() {
  const auto reserve = [this](MemoryTag tag) { return budget_->Reserve(tag, plan_.part(tag)); };
  TAEL_ASSIGN_OR_RETURN(runtime_, reserve(MemoryTag::kRuntime));
  TAEL_ASSIGN_OR_RETURN(kernel_, reserve(MemoryTag::kKernel));
  TAEL_ASSIGN_OR_RETURN(tokenizer_bytes_, reserve(MemoryTag::kTokenizer));
  TAEL_ASSIGN_OR_RETURN(weights_, reserve(MemoryTag::kWeights));
  runtime_.SetUsed(runtime_.bytes() - std::min(runtime_.bytes(), kRuntimeHeadroom));
  kernel_.SetUsed(kernel_.bytes());
  tokenizer_bytes_.SetUsed(tokenizer_bytes_.bytes());
  if (plan_.score_bytes == 0) return {};
  TAEL_ASSIGN_OR_RETURN(scores_, budget_->Reserve(MemoryTag::kKv, plan_.score_bytes));
  scores_.SetUsed(scores_.bytes());
  return {};
}

Status Engine::StartReading(exec::WarmUp warm_up) {
  TAEL_ASSIGN_OR_RETURN(
      pager_, exec::WeightPager::Create(model_->mapping(),
                                        model::ExtentsOf(model_->file(), plan_.num_layers),
                                        plan_.resident_layers, warm_up));
  forward_->UsePager(*pager_);
  weights_.SetUsed(weights_.bytes());
  weight_room_ =
      std::make_unique<WeightRoom>(*pager_, exec::ThrashGuard(weights_.bytes(), num_threads()));
  return {};
}

void Engine::LockWeights() {
  if (plan_.streams()) {
    lock_refusal_ = "weights that are streamed are not locked in memory; raise the budget to " +
                    FormatSize(plan_.min_budget_bytes);
    return;
  }
  auto locked = model_->mapping().Lock();
  if (locked) {
    locked_bytes_ = *locked;
  } else {
    lock_refusal_ = locked.error().Message();
  }
}

void Engine::ReleaseWeights() { pager_->Release(); }

Session Engine::NewSession() {
  kv::Sequence sequence(plan_.geometry, *pool_);
  sequence.ReserveTables(context_length());  // decoding allocates nothing
  sequence.LimitWindow(plan_.window.start);
  return {*this, std::move(sequence)};
}

Session Session::Fork() const {
  kv::Sequence sequence = sequence_.Fork();
  sequence.ReserveTables(engine_->context_length());
  return {*engine_, std::move(sequence)};
}

void Session::PlanCompression(uint32_t prompt_tokens) {
  const kv::Compression plan = kv::PlanCompression(engine_->plan().compress, prompt_tokens);
  if (plan.at != 0 && length() > plan.observe_from && CanTruncate(plan.observe_from)) {
    Truncate(plan.observe_from);
  }
  sequence_.CompressAt(plan);
}

Status Session::Feed(std::span<const TokenId> tokens, const FeedOptions& options, Sink sink) {
  return Feed(tokens, options, sink, [](uint32_t) {});
}

Status Session::Feed(std::span<const TokenId> tokens, const FeedOptions& options, Sink sink,
                     Progress progress) {
  // All of it now: a later chunk must not fail for what could be seen before the first.
  TAEL_RETURN_IF_ERROR(CheckTokens(*engine_, tokens));
  TAEL_RETURN_IF_ERROR(CheckRemaining(*this, tokens.size()));
  const size_t first_logit = tokens.size() - std::min<size_t>(tokens.size(), options.num_logits);
  for (size_t done = 0; done < tokens.size();) {
    if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed)) {
      return Error{ErrorCode::kCancelled, "cancelled", ""};
    }
    const size_t end = std::min<size_t>(tokens.size(), done + MostAtOnce());
    AdaptWindow(static_cast<uint32_t>(end - done));
    const BatchItem item{
        .session = this,
        .tokens = tokens.subspan(done, end - done),
        .num_logits = static_cast<uint32_t>(end - std::min(end, std::max(done, first_logit)))};
    const auto feed = [&] {
      return FeedBatch(*engine_, {&item, 1},
                       [&](size_t, size_t i, std::span<float> logits) { sink(done + i, logits); });
    };
    Status status = feed();
    if (!status && status.error().code == ErrorCode::kNoFreeBlocks && NarrowWindow()) {
      status = feed();
    }
    if (!status) return status;
    done = end;
    progress(static_cast<uint32_t>(done));
  }
  return {};
}

Status CheckTokens(const Engine& engine, std::span<const TokenId> tokens) {
  if (tokens.empty()) {
    return Error{ErrorCode::kInvalidArgument, "no prompt tokens", "give at least one token"};
  }
  const uint32_t vocab_size = engine.model().description().vocab_size;
  for (TokenId token : tokens) {
    if (ToInt(token) < 0 || static_cast<uint32_t>(ToInt(token)) >= vocab_size) {
      return Error{ErrorCode::kInvalidArgument, "token id outside the vocabulary",
                   std::to_string(ToInt(token)) + ", the model has " + std::to_string(vocab_size)};
    }
  }
  return {};
}

Status CheckRemaining(const Session& session, size_t num_tokens) {
  if (num_tokens <= session.remaining()) return {};
  return Error{ErrorCode::kContextExceeded, "longer than the context",
               std::to_string(session.length() + num_tokens) + " tokens, the context has " +
                   std::to_string(session.engine().max_length())};
}

}  // namespace tael::engine
