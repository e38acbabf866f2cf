#include "engine/plan.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/units.h"
#include "engine/dynamic_window.h"
#include "engine/kv_types.h"
#include "engine/speculation.h"
#include "exec/weight_pager.h"
#include "kv/block_pool.h"
#include "mem/mapping.h"
#include "mem/process_memory.h"
#include "mem/system_memory.h"
#include "model/extents.h"

namespace tael::engine {
namespace {

using mem::MemoryTag;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kKiB = uint64_t{1} << 10;
// Heap that is too small for the ledger: JSON, strings, tables of blocks. At least this much is
// planned, so that two runs plan the same although what they measure differs a little.
constexpr uint64_t kLeastHeap = 576 * kKiB;
// Of a thread: the touched end of its stack and its heap of small things.
constexpr uint64_t kStackBytes = 64 * kKiB;
// Code of a process that is more than this program, of which we shall not use all.
constexpr uint64_t kMostCode = 8 * kMiB;
// Charged to a cgroup for a process besides its page tables: descriptors, the index of the page
// cache (190 kB measured with three threads); and for a thread: its kernel stack and task.
constexpr uint64_t kKernelBytes = 160 * kKiB;
constexpr uint64_t kKernelThreadBytes = 32 * kKiB;
// The thread that reads weights ahead.
constexpr uint64_t kOtherThreads = 1;
// Shortest context that is worth starting for.
constexpr uint32_t kMinContext = 256;
constexpr uint64_t kTargetSlabBytes = kMiB;
constexpr uint64_t kMostSlots = kv::BlockPool::kSlotsPerSlab;
// The heap of the process itself, which is measured, differs by a page or two from one run to the
// next: the smallest budget has to hold in the next one, too.
constexpr uint64_t kFromRunToRun = 64 * kKiB;
// Bitmaps and reference counts of a slab's 64 slots, rounded up (block_pool.h).
constexpr uint64_t kBookkeepingPerSlab = 512;

// None: not `auto`.
std::optional<KvReason> AutoFor(const model::Model& model, const PlanRequest& request) {
  const bool reference = request.compute == exec::Compute::kReference;
  if (!request.kv_auto || request.kv_type || (reference && !request.auto_on_reference)) return {};
  return ChooseAuto(model, request.kv_safety);
}

KvReason ReasonFor(const model::Model& model, const PlanRequest& request) {
  if (request.kv_type) return ReasonForAsked(model, *request.kv_type, request.kv_safety);
  return AutoFor(model, request).value_or(KvReason::kAsked);
}

std::vector<kernels::KvTypes> KvTypesFor(const model::Model& model, const PlanRequest& request) {
  using kernels::KvType;
  if (request.kv_type) return KvTypesByLayer(model, request.kv_type);
  const std::optional<KvReason> chosen = AutoFor(model, request);
  if (chosen && *chosen != KvReason::kUnsafe) return KvTypesByLayer(model, std::nullopt);
  const bool f32 = !chosen && request.compute == exec::Compute::kReference;
  return KvTypesByLayer(model, f32 ? KvType::kF32 : KvType::kF16);
}

// A layered window climbs from group to group. In blocks of half the usual size there are enough of
// them to follow the ramp with small types, too: SmolLM2, q8, a window of 512: KL 0.0388, not
// 0.0467.
constexpr size_t kLayeredBlockBytes = kv::kTargetBlockBytes / 2;

kv::Geometry GeometryOf(const model::Model& model, const PlanRequest& request) {
  const model::ModelDescription& m = model.description();
  const std::vector<kernels::KvTypes> types = KvTypesFor(model, request);
  std::vector<kv::LayerShape> layers;
  for (size_t i = 0; i < m.layers.size(); ++i) {
    layers.push_back({.num_kv_heads = m.layers[i].num_kv_heads,
                      .head_dim = m.head_dim,
                      .window = m.layers[i].window,
                      .type = types[i]});
  }
  const bool layered =
      request.window.tokens != 0 && request.window.shape == kv::WindowShape::kLayered;
  kv::Geometry geometry = kv::MakeGeometry(layers, kernels::Active(),
                                           layered ? kLayeredBlockBytes : kv::kTargetBlockBytes);
  geometry.reach = m.trained_context;
  return geometry;
}

// From this budget on KV and activations lie on pages of 2 MiB: prompts are 1-3 % faster, paging
// costs attention nothing that can be measured (bench/micro/paging_main.cpp), and the unused ends
// of some pages are no loss.
constexpr uint64_t kLargePageBudget = uint64_t{1} << 30;
constexpr uint64_t kBlocksPerLargePage = 16;  // at least, or the ends of pages are wasted

uint64_t LargestBlock(const kv::Geometry& geometry) {
  uint64_t largest = 0;
  for (const kv::LayerGroup& group : geometry.groups) {
    largest = std::max<uint64_t>(largest, group.block_bytes);
  }
  return largest;
}

uint64_t SmallestBlock(const kv::Geometry& geometry) {
  uint64_t smallest = kTargetSlabBytes;
  for (const kv::LayerGroup& group : geometry.groups) {
    smallest = std::min<uint64_t>(smallest, group.block_bytes);
  }
  return smallest;
}

uint64_t SlabBytes(const kv::Geometry& geometry) {
  const uint64_t largest = LargestBlock(geometry), smallest = SmallestBlock(geometry);
  const uint64_t target = std::max(4 * largest, std::min(kTargetSlabBytes, kMostSlots * smallest));
  return RoundUp<uint64_t>(CeilDiv(target, largest) * largest, mem::PageSize());
}

// What the process occupies besides what the ledger names: code, stacks, small heap. Code counts as
// if nobody shared the libraries, and all of it: what is resident now depends on who ran before.
uint64_t RuntimeBytes(const model::Model& model, const PlanRequest& request) {
  if (request.runtime_bytes != 0) return request.runtime_bytes;
  const auto memory = mem::ReadProcessMemory();
  if (!memory) return kMostCode + kLeastHeap + kRuntimeHeadroom;
  // The vocabulary's tables are loaded already and have a line of their own.
  const uint64_t heap =
      memory->rss_anon_bytes - std::min(memory->rss_anon_bytes, request.tokenizer_bytes);
  // Pages of the model that parsing has touched are counted as weights already.
  const uint64_t resident =
      memory->rss_file_bytes - std::min(memory->rss_file_bytes, model.weights_bytes());
  return std::min(memory->text_bytes, std::max(resident, kMostCode)) + std::max(heap, kLeastHeap) +
         (request.num_threads + kOtherThreads) * kStackBytes + kRuntimeHeadroom;
}

// With the policy that loses least at equal bytes: docs/kv-quality.md. What it costs (drafts,
// shared prefixes, long passes over a prompt) is worth it only where a window loses something.
PlanRequest WithBestWindow(PlanRequest request) {
  request.window.evict = kv::Evict::kHeavy;
  return request;
}

// Tokens that share a pass get the bits they would get alone only while they share the form of one
// token's activations; f32 rows are always that.
uint32_t DraftTokens(const PlanRequest& request) {
  if (kv::ChoosesByAttention(request.window.evict)) return 0;  // scores cannot forget a wrong draft
  size_t most = std::min<size_t>(request.draft_tokens, Speculation::kMostDraft);
  if (request.chunk_tokens != 0) most = std::min<size_t>(most, request.chunk_tokens - 1);
  if (request.compute == exec::Compute::kFast) {
    most = std::min(most, kernels::MaxExactTokens(kernels::Active().matmul) - 1);
  }
  return static_cast<uint32_t>(most);
}

// Tokens per forward pass. More tokens share one unpacking of the weights (256 against 128: 4 %
// faster prompts), but their activations must stay small beside what they serve.
constexpr uint32_t kChunks[] = {256, 128, 64, 32};
constexpr uint64_t kActivationShare = 16;  // of the budget, at most one part in so many
// Longest context that is chosen for somebody whose weights are streamed: memory is better spent on
// layers.
constexpr uint32_t kStreamedContext = 2048;
constexpr uint32_t kMostSessions = 4096;  // that anybody is told of

// The largest n in [low, high] for which holds(n), given that it holds for low and that it does not
// come back once it stopped.
template <class Holds>
uint32_t LargestThat(uint32_t low, uint32_t high, const Holds& holds) {
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    if (holds(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// One plan in the making: what has been chosen so far is in plan_, and Fill() adds up its parts.
class Planner {
 public:
  Planner(const model::Model& model, const PlanRequest& request)
      : model_(model),
        request_(request),
        extents_(model::ExtentsOf(model.file(), model.description().num_layers)),
        plain_(GeometryOf(model, request)) {
    plan_.max_sessions = request.max_sessions;
    plan_.num_layers = plan_.resident_layers = model.description().num_layers;
    plan_.trained_context = model.description().trained_context;
    plan_.draft_tokens = DraftTokens(request);
    plan_.window = request.window;
    plan_.kv_reason = ReasonFor(model, request);
    plan_.compress = request.compress;
    SetWindow(LeastContext());
    plan_.workspace.num_threads = request.num_threads;
    plan_.workspace.compute = request.compute;
    Part(MemoryTag::kRuntime) = RuntimeBytes(model, request);
    Part(MemoryTag::kTokenizer) = request.tokenizer_bytes;
    Part(MemoryTag::kServer) = request.server_bytes;
    plan_.budget_is_auto = request.budget_bytes == 0;
    plan_.budget_bytes = plan_.budget_is_auto ? mem::AvailableBytes() : request.budget_bytes;
    plan_.slab_bytes = SlabBytes(plan_.geometry);
    plan_.workspace.large_pages = plan_.budget_bytes >= kLargePageBudget;
  }

  // Chooses chunk, context and resident layers.
  MemoryPlan Make() {
    const uint32_t draft_tokens = std::exchange(plan_.draft_tokens, 0);
    SetLeastChunk();
    plan_.min_streamed_bytes = NeededWith(0, LeastContext()) + kFromRunToRun;
    plan_.min_budget_bytes = NeededWith(plan_.num_layers, LeastContext()) + kFromRunToRun;
    const bool holds_all = plan_.fits();
    AddDraft(draft_tokens, holds_all ? plan_.num_layers : 0);
    if (!holds_all) {
      Stream();
    } else {
      TryLargePages();
      ChooseChunk();
      if (request_.context_length == 0) ChooseContext(model_.description().trained_context);
    }
    AddRoomToGrow();
    return plan_;
  }

  Capacity MakeCapacity(const MemoryPlan& made) {
    plan_ = made;
    const auto holds_context = [&](uint32_t context) { return Fill(context).fits(); };
    const auto holds_sessions = [&](uint32_t sessions) {
      plan_.max_sessions = sessions;
      SetChunk(std::max(made.workspace.max_tokens, LeastChunk()));
      return Fill(made.context_length).fits();
    };
    if (!made.fits()) return {};
    const uint32_t most = model_.description().trained_context;
    return {.max_context = LargestThat(made.context_length, most, holds_context),
            .max_sessions = LargestThat(made.max_sessions, kMostSessions, holds_sessions)};
  }

 private:
  uint64_t& Part(MemoryTag tag) { return plan_.parts[static_cast<size_t>(tag)]; }

  uint32_t LeastContext() const {
    if (request_.context_length != 0) return request_.context_length;
    return std::min(kMinContext, model_.description().trained_context);
  }

  // The geometry with its windows; one that is chosen here is as long as the context.
  void SetWindow(uint32_t context) {
    kv::WindowPolicy& window = plan_.window;
    if (request_.window.tokens == kv::WindowPolicy::kAuto) {
      const uint32_t trained = model_.description().trained_context;
      window.tokens = std::max(std::min(context, request_.window.most), window.sinks + 1);
      const bool all = window.tokens >= trained;
      window.shape = all ? kv::WindowShape::kUniform : request_.window.shape;
      window.start = request_.window.start < window.tokens ? request_.window.start : 0;
    }
    plan_.geometry = plain_;
    kv::ApplyWindow(window, plan_.geometry);
    plan_.workspace.max_window = plan_.is_endless() ? kv::WidestWindow(plan_.geometry) : 0;
    plan_.workspace.most_slots = 0;
    for (const kv::LayerGroup& group : plan_.geometry.groups) {
      if (group.shape.tail == 0) continue;
      plan_.workspace.most_slots = std::max(plan_.workspace.most_slots, kv::MostSlots(group.shape));
    }
  }

  // Windows that grow share what the budget has left, but no more than they can use: all of them as
  // wide as they get, and still plenty free.
  void AddRoomToGrow() {
    if (plan_.window.start == 0 || !plan_.fits()) return;
    const uint32_t context = plan_.context_length;
    const uint64_t widest = KvCapacity(context, 0);
    const auto enough = static_cast<uint64_t>(static_cast<double>(widest) / (1 - kPlentyFree));
    const uint64_t more = enough - std::min(enough, plan_.kv_capacity_bytes);
    const auto most = static_cast<uint32_t>(CeilDiv(more, plan_.slab_bytes));
    const auto holds = [&](uint32_t slabs) { return FillWith(context, slabs).fits(); };
    FillWith(context, LargestThat(0, most, holds));
  }

  const MemoryPlan& FillWith(uint32_t context, uint32_t more_slabs) {
    more_slabs_ = more_slabs;
    Fill(context);
    more_slabs_ = 0;
    return plan_;
  }

  uint64_t ScoreBytes(uint32_t context) const {
    const bool compresses = plan_.compress.on();
    return kv::TailBytes(plan_.geometry) +
           (compresses ? kv::PromptScoreBytes(plan_.geometry, context) : 0);
  }

  // Slabs for all sessions, whose windows are narrowed to `window` (0: to nothing less than
  // theirs).
  uint64_t KvCapacity(uint32_t context, uint32_t window) const {
    std::map<size_t, uint64_t> blocks;  // by block size: equal sizes share slabs
    for (const kv::LayerGroup& group : plan_.geometry.groups) {
      uint64_t rows = CeilDiv<uint64_t>(context, kernels::kBlockTokens);
      if (group.shape.window != 0) {
        const uint64_t most =
            kv::MostRows(window != 0 ? kv::Narrowed(group.shape, window) : group.shape,
                         plan_.workspace.max_tokens);
        rows = plan_.is_endless() ? most : std::min(rows, most);
      }
      blocks[group.block_bytes] += rows * plan_.max_sessions;
    }
    uint64_t slabs = 0;
    for (const auto& [bytes, count] : blocks) {
      slabs += CeilDiv(count, kv::BlockPool::SlotsIn(plan_.slab_bytes, bytes));
    }
    return slabs * plan_.slab_bytes;
  }

  // The mapped file, or what is in memory of it while layers are streamed.
  uint64_t WeightsBytes() const {
    uint64_t bytes = model_.weights_bytes();
    if (plan_.streams()) {
      uint64_t streamed = extents_.rest_bytes();
      for (uint32_t i = 0; i < plan_.resident_layers; ++i) streamed += extents_.layer_bytes(i);
      streamed += exec::WeightPager::kStreamedAtOnce * extents_.largest_layer_bytes();
      bytes = std::min(bytes, streamed);
    }
    return bytes + model_.weights().owned_bytes;
  }

  const MemoryPlan& Fill(uint32_t context) {
    plan_.context_length = context;
    plan_.workspace.max_context = context;
    if (request_.window.tokens == kv::WindowPolicy::kAuto) SetWindow(context);
    plan_.kv_capacity_bytes =
        KvCapacity(context, plan_.window.start) + more_slabs_ * plan_.slab_bytes;
    plan_.score_bytes = plan_.max_sessions * ScoreBytes(context);
    Part(MemoryTag::kWeights) = WeightsBytes();
    Part(MemoryTag::kKv) = plan_.kv_capacity_bytes +
                           plan_.kv_capacity_bytes / plan_.slab_bytes * kBookkeepingPerSlab +
                           plan_.score_bytes;
    Part(MemoryTag::kActivations) = exec::Workspace::PlanBytes(model_, plan_.workspace);
    Part(MemoryTag::kKernel) = 0;
    const uint64_t parts = Sum();
    // Page tables of the whole file stay, whatever is mapped of it.
    const uint64_t mapped = parts - Part(MemoryTag::kWeights) + model_.weights_bytes();
    Part(MemoryTag::kKernel) = mapped / mem::PageSize() * 8 + kKernelBytes +
                               (request_.num_threads + kOtherThreads) * kKernelThreadBytes;
    plan_.needed_bytes = Sum();
    return plan_;
  }

  uint64_t Sum() const {
    uint64_t bytes = 0;
    for (const uint64_t part : plan_.parts) bytes += part;
    return bytes;
  }

  uint64_t NeededWith(uint32_t resident_layers, uint32_t context) {
    plan_.resident_layers = resident_layers;
    return Fill(context).needed_bytes;
  }

  // Sessions that decode together, and a token with its draft, do so in one pass, and go through
  // the output matrix, the largest of all, in one.
  void SetChunk(uint32_t chunk) {
    const uint32_t rows =
        std::max({request_.logit_rows, plan_.max_sessions, 1 + plan_.draft_tokens});
    plan_.workspace.max_tokens = chunk;
    plan_.workspace.logit_rows = std::min(rows, chunk);
  }

  uint32_t LeastChunk() const {
    uint32_t least = kChunks[0];
    for (const uint32_t chunk : kChunks) {
      if (chunk >= plan_.max_sessions) least = chunk;
    }
    return least;
  }

  void SetLeastChunk() {
    SetChunk(request_.chunk_tokens != 0 ? request_.chunk_tokens : LeastChunk());
  }

  void TryLargePages() {
    const uint64_t small = plan_.slab_bytes, large = mem::LargePageBytes();
    const uint64_t least = kBlocksPerLargePage * LargestBlock(plan_.geometry);
    if (plan_.budget_bytes < kLargePageBudget || large < least) return;
    // So many small blocks as a slab has at most would leave a part of each page unused.
    if (kMostSlots * SmallestBlock(plan_.geometry) < large - large / 16) return;
    plan_.slab_bytes = large;
    if (Fill(LeastContext()).fits()) return;
    plan_.slab_bytes = small;
    Fill(LeastContext());
  }

  // Drafts are for speed alone: no reason to refuse, or to stream.
  void AddDraft(uint32_t tokens, uint32_t resident_layers) {
    plan_.draft_tokens = tokens;
    SetLeastChunk();
    if (NeededWith(resident_layers, LeastContext()) <= plan_.budget_bytes) return;
    plan_.draft_tokens = 0;
    SetLeastChunk();
    NeededWith(resident_layers, LeastContext());
  }

  // The longest chunk whose activations are a small part of the budget.
  void ChooseChunk() {
    for (const uint32_t chunk : kChunks) {
      if (request_.chunk_tokens != 0 || chunk < LeastChunk()) break;
      SetChunk(chunk);
      Fill(LeastContext());
      const uint64_t allowed = plan_.budget_bytes / kActivationShare;
      if (plan_.fits() && plan_.part(MemoryTag::kActivations) <= allowed) break;
    }
  }

  // The longest context up to `most` that fits, in whole blocks.
  void ChooseContext(uint32_t most) {
    // Mostly all of it fits, and every try sizes the buffers of every matrix again.
    if (most <= LeastContext() || Fill(most).fits()) return;
    const uint32_t context =
        LargestThat(LeastContext(), most, [&](uint32_t n) { return Fill(n).fits(); });
    Fill(std::max(LeastContext(), context - context % uint32_t{kernels::kBlockTokens}));
  }

  // Streams layers, where the budget has room for that; else leaves the plan for all weights.
  void Stream() {
    if (NeededWith(0, LeastContext()) > plan_.budget_bytes) {
      NeededWith(plan_.num_layers, LeastContext());
      return;
    }
    if (request_.context_length == 0) {
      ChooseContext(std::min(kStreamedContext, model_.description().trained_context));
    }
    const uint32_t context = plan_.context_length;
    const uint32_t resident = LargestThat(0, plan_.num_layers - 1, [&](uint32_t layers) {
      return NeededWith(layers, context) <= plan_.budget_bytes;
    });
    NeededWith(resident, context);
  }

  const model::Model& model_;
  const PlanRequest& request_;
  const model::WeightExtents extents_;
  const kv::Geometry plain_;  // without a policy's windows
  MemoryPlan plan_;
  uint64_t more_slabs_ = 0;  // of KV, for windows that grow
};

}  // namespace

std::string MemoryPlan::Breakdown() const {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == 0) continue;
    const auto tag = static_cast<MemoryTag>(i);
    if (!text.empty()) text += ", ";
    text += std::string(ToString(tag)) + " " + FormatSize(parts[i]);
    if (tag != MemoryTag::kKv) continue;
    text += is_endless() ? " (a window of " + std::to_string(window.tokens) + " tokens)"
                         : " (" + std::to_string(context_length) + " tokens)";
  }
  return text;
}

Result<MemoryPlan> MakePlan(const model::Model& model, const PlanRequest& request) {
  const uint32_t trained = model.description().trained_context;
  if (request.context_length > trained) {
    return Error{ErrorCode::kInvalidArgument, "context is longer than the model was trained for",
                 std::to_string(request.context_length) + " tokens asked for, trained for " +
                     std::to_string(trained)};
  }
  const kv::WindowPolicy& window = request.window;
  const bool is_auto = window.tokens == kv::WindowPolicy::kAuto;
  const uint64_t least = is_auto ? uint64_t{window.sinks} + 1 : window.tokens;
  if (least > trained) {
    return Error{
        ErrorCode::kInvalidArgument, "window is longer than the model was trained for",
        std::to_string(least) + " tokens asked for, trained for " + std::to_string(trained)};
  }
  TAEL_RETURN_IF_ERROR(kv::CheckWindow(window));
  if (request.compress.on() && window.tokens != 0) {
    return Error{ErrorCode::kInvalidArgument, "prompts are not compressed inside a window",
                 "a window has dropped most of a prompt before its question is read; leave "
                 "--window or --compress-prompt out"};
  }
  const MemoryPlan plan = Planner(model, request).Make();
  if (!window.best || !is_auto || window.start != 0 || !plan.fits()) return plan;
  if (plan.window.tokens >= trained) return plan;  // then nothing is lost but of endless texts
  if (request.server_bytes != 0) return plan;      // a server's sessions share prefixes
  MemoryPlan best = Planner(model, WithBestWindow(request)).Make();
  if (!best.fits() || !kv::CheckWindow(best.window)) return plan;
  best.min_budget_bytes = plan.min_budget_bytes;
  best.min_streamed_bytes = plan.min_streamed_bytes;
  return best;
}

Capacity CapacityOf(const model::Model& model, const PlanRequest& request, const MemoryPlan& plan) {
  const bool is_best = request.window.best && plan.window.evict != request.window.evict;
  return Planner(model, is_best ? WithBestWindow(request) : request).MakeCapacity(plan);
}

KvShape KvShapeOf(const MemoryPlan& plan, uint64_t bytes) {
  const uint64_t block_bytes = LargestBlock(plan.geometry);
  return {.block_bytes = block_bytes,
          .blocks = bytes / block_bytes,
          .rows = bytes / plan.geometry.RowBytes()};
}

Error DoesNotFit(const MemoryPlan& plan) {
  return Error{
      ErrorCode::kOutOfBudget, "does not fit the memory budget",
      "needs " + FormatSize(plan.needed_bytes) + ", the budget is " +
          FormatSize(plan.budget_bytes) + ", so " +
          FormatSize(plan.needed_bytes - plan.budget_bytes) + " are missing: " + plan.Breakdown() +
          ". Smallest budget with all weights in memory: " + std::to_string(plan.min_budget_bytes) +
          " bytes; reading layers from the file for every token: --budget " +
          std::to_string(plan.min_streamed_bytes)};
}

}  // namespace tael::engine
