#include "engine/plan.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/checked.h"
#include "base/units.h"
#include "engine/speculation.h"
#include "exec/weight_pager.h"
#include "mem/mapping.h"
#include "mem/process_memory.h"
#include "mem/system_memory.h"
#include "model/extents.h"

namespace tael::engine {
namespace {

using mem::MemoryTag;

constexpr uint64_t kMiB = uint64_t{1} << 20;
// Heap that is too small for the ledger: JSON, strings, tables of blocks.
constexpr uint64_t kRuntimeHeadroom = 2 * kMiB;
// Shortest context that is worth starting for.
constexpr uint32_t kMinContext = 256;
constexpr uint64_t kTargetSlabBytes = kMiB;
// Bitmaps and reference counts of a slab's 64 slots, rounded up (block_pool.h).
constexpr uint64_t kBookkeepingPerSlab = 512;

kv::Geometry GeometryOf(const model::ModelDescription& m, kernels::KvType type) {
  std::vector<kv::LayerShape> layers;
  for (const model::LayerDescription& layer : m.layers) {
    layers.push_back({.num_kv_heads = layer.num_kv_heads,
                      .head_dim = m.head_dim,
                      .window = layer.window,
                      .type = type});
  }
  return kv::MakeGeometry(layers, kernels::Active());
}

uint64_t SlabBytes(const kv::Geometry& geometry) {
  uint64_t largest = 0, smallest = kTargetSlabBytes;
  for (const kv::LayerGroup& group : geometry.groups) {
    largest = std::max<uint64_t>(largest, group.block_bytes);
    smallest = std::min<uint64_t>(smallest, group.block_bytes);
  }
  const uint64_t target = std::max(4 * largest, std::min(kTargetSlabBytes, 64 * smallest));
  return RoundUp<uint64_t>(CeilDiv(target, largest) * largest, mem::PageSize());
}

// Tokens that share a pass get the bits they would get alone only while they share the form of one
// token's activations; f32 rows are always that.
uint32_t DraftTokens(const PlanRequest& request) {
  size_t most = std::min<size_t>(request.draft_tokens, Speculation::kMostDraft);
  if (request.chunk_tokens != 0) most = std::min<size_t>(most, request.chunk_tokens - 1);
  if (request.compute == exec::Compute::kFast) {
    most = std::min(most, kernels::MaxExactTokens(kernels::Active().matmul) - 1);
  }
  return static_cast<uint32_t>(most);
}

// Sessions that decode together, and a token with its draft, go through the output matrix, the
// largest of all, in one pass.
uint32_t LogitRows(const PlanRequest& request, uint32_t chunk_tokens) {
  const uint32_t most =
      std::max({request.logit_rows, request.max_sessions, 1 + DraftTokens(request)});
  return std::min(most, chunk_tokens);
}

// Slabs for `sessions` sequences of `context` tokens. A windowed group holds its window, the chunk
// being computed and two partly used blocks at the ends.
uint64_t KvCapacity(const MemoryPlan& plan, uint32_t context, uint32_t sessions) {
  std::map<size_t, uint64_t> blocks;  // by block size: equal sizes share slabs
  for (const kv::LayerGroup& group : plan.geometry.groups) {
    uint64_t tokens = context;
    if (group.shape.window != 0) {
      tokens = std::min<uint64_t>(
          tokens, uint64_t{group.shape.window} + plan.workspace.max_tokens + kernels::kBlockTokens);
    }
    blocks[group.block_bytes] += CeilDiv<uint64_t>(tokens, kernels::kBlockTokens) * sessions;
  }
  uint64_t slabs = 0;
  for (const auto& [bytes, count] : blocks) {
    slabs += CeilDiv(count, std::min<uint64_t>(64, plan.slab_bytes / bytes));
  }
  return slabs * plan.slab_bytes;
}

// The mapped file, or what is in memory of it while layers are streamed.
uint64_t WeightsBytes(const model::Model& model, const MemoryPlan& plan) {
  const uint64_t all = model.weights_bytes();
  if (!plan.streams()) return all + model.weights().owned_bytes;
  const model::WeightExtents extents = model::ExtentsOf(model.file(), plan.num_layers);
  uint64_t bytes = extents.rest_bytes();
  for (uint32_t i = 0; i < plan.resident_layers; ++i) bytes += extents.layer_bytes(i);
  bytes += exec::WeightPager::kStreamedAtOnce * extents.largest_layer_bytes();
  return std::min(bytes, all) + model.weights().owned_bytes;
}

void FillParts(const model::Model& model, const PlanRequest& request, uint32_t context,
               MemoryPlan& plan) {
  const auto set = [&](MemoryTag tag, uint64_t bytes) {
    plan.parts[static_cast<size_t>(tag)] = bytes;
  };
  plan.context_length = context;
  plan.workspace.max_context = context;
  plan.kv_capacity_bytes = KvCapacity(plan, context, request.max_sessions);
  set(MemoryTag::kWeights, WeightsBytes(model, plan));
  set(MemoryTag::kKv,
      plan.kv_capacity_bytes + plan.kv_capacity_bytes / plan.slab_bytes * kBookkeepingPerSlab);
  set(MemoryTag::kActivations, exec::Workspace::PlanBytes(model, plan.workspace));
  set(MemoryTag::kTokenizer, request.tokenizer_bytes);
  // Page tables of the whole file stay, whatever is mapped of it.
  set(MemoryTag::kKernel, 0);
  uint64_t mapped = model.weights_bytes() + model.weights().owned_bytes;
  for (uint64_t bytes : plan.parts) mapped += bytes;
  mapped -= plan.part(MemoryTag::kWeights);
  set(MemoryTag::kKernel, mapped / mem::PageSize() * 8);
  plan.needed_bytes = 0;
  for (uint64_t bytes : plan.parts) plan.needed_bytes += bytes;
}

// What the process occupies before anything is loaded, and some room.
uint64_t RuntimeBytes(const model::Model& model, uint64_t tokenizer_bytes) {
  const auto memory = mem::ReadProcessMemory();
  if (!memory) return 8 * kMiB;
  // The vocabulary's tables are loaded already and have a line of their own.
  const uint64_t heap = memory->rss_anon_bytes - std::min(memory->rss_anon_bytes, tokenizer_bytes);
  // Pages of the model that parsing has touched are counted as weights already.
  const uint64_t code =
      memory->rss_file_bytes - std::min(memory->rss_file_bytes, model.weights_bytes());
  return heap + std::clamp(code, 2 * kMiB, 6 * kMiB) + kRuntimeHeadroom;
}

// The longest context that fits, in whole blocks, not below `least`.
uint32_t LongestContext(const model::Model& model, const PlanRequest& request, uint32_t least,
                        uint32_t most, MemoryPlan& plan) {
  // Mostly all of it fits, and every try sizes the buffers of every matrix again.
  FillParts(model, request, most, plan);
  if (plan.fits()) return most;
  uint32_t low = least, high = most - 1;
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    FillParts(model, request, middle, plan);
    if (plan.fits()) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return std::max(least, low - low % uint32_t{kernels::kBlockTokens});
}

// Tokens per forward pass. More tokens share one unpacking of the weights (256 against 128: 4 %
// faster prompts), but their activations must stay small beside what they serve.
constexpr uint32_t kChunks[] = {256, 128, 64, 32};
constexpr uint64_t kActivationShare = 16;  // of the budget, at most one part in so many

// All sessions decode in one pass.
uint32_t LeastChunk(const PlanRequest& request) {
  uint32_t least = kChunks[0];
  for (const uint32_t chunk : kChunks) {
    if (chunk >= request.max_sessions) least = chunk;
  }
  return least;
}

void SetChunk(const PlanRequest& request, uint32_t chunk, MemoryPlan& plan) {
  plan.workspace.max_tokens = chunk;
  plan.workspace.logit_rows = LogitRows(request, chunk);
}

void ChooseChunk(const model::Model& model, const PlanRequest& request, uint32_t context,
                 MemoryPlan& plan) {
  if (request.chunk_tokens != 0) {
    SetChunk(request, request.chunk_tokens, plan);
    FillParts(model, request, context, plan);
    return;
  }
  for (const uint32_t chunk : kChunks) {
    if (chunk < LeastChunk(request)) return;
    SetChunk(request, chunk, plan);
    FillParts(model, request, context, plan);
    const uint64_t activations = plan.part(MemoryTag::kActivations);
    if (plan.fits() && activations <= plan.budget_bytes / kActivationShare) return;
  }
}

// Longest context that is chosen for somebody whose weights are streamed: memory is better spent on
// layers.
constexpr uint32_t kStreamedContext = 2048;

// Keeps as many layers in memory as fit. Requires: plan.fits() with none of them.
void ChooseResidentLayers(const model::Model& model, const PlanRequest& request, uint32_t context,
                          MemoryPlan& plan) {
  uint32_t low = 0, high = plan.num_layers - 1;
  while (low < high) {
    plan.resident_layers = low + (high - low + 1) / 2;
    FillParts(model, request, context, plan);
    if (plan.fits()) {
      low = plan.resident_layers;
    } else {
      high = plan.resident_layers - 1;
    }
  }
  plan.resident_layers = low;
  FillParts(model, request, context, plan);
}

void SetLeastChunk(const PlanRequest& request, MemoryPlan& plan) {
  SetChunk(request, request.chunk_tokens != 0 ? request.chunk_tokens : LeastChunk(request), plan);
}

// A plan that streams layers, where the budget has room for one; else the plan for all weights.
void PlanStreamed(const model::Model& model, const PlanRequest& request, uint32_t least,
                  MemoryPlan& plan) {
  SetLeastChunk(request, plan);
  plan.resident_layers = 0;
  FillParts(model, request, least, plan);
  if (!plan.fits()) {
    plan.resident_layers = plan.num_layers;
    return FillParts(model, request, least, plan);
  }
  uint32_t context = least;
  if (request.context_length == 0) {
    const uint32_t most = std::min(kStreamedContext, model.description().trained_context);
    context = most > least ? LongestContext(model, request, least, most, plan) : least;
  }
  ChooseResidentLayers(model, request, context, plan);
}

}  // namespace

std::string MemoryPlan::Breakdown() const {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == 0) continue;
    const auto tag = static_cast<MemoryTag>(i);
    if (!text.empty()) text += ", ";
    text += std::string(ToString(tag)) + " " + FormatSize(parts[i]);
    if (tag == MemoryTag::kKv) text += " (" + std::to_string(context_length) + " tokens)";
  }
  return text;
}

Result<MemoryPlan> MakePlan(const model::Model& model, const PlanRequest& request) {
  const model::ModelDescription& m = model.description();
  if (request.context_length > m.trained_context) {
    return Error{ErrorCode::kInvalidArgument, "context is longer than the model was trained for",
                 std::to_string(request.context_length) + " tokens asked for, trained for " +
                     std::to_string(m.trained_context)};
  }
  const bool reference = request.compute == exec::Compute::kReference;
  MemoryPlan plan;
  plan.max_sessions = request.max_sessions;
  plan.num_layers = m.num_layers;
  plan.draft_tokens = DraftTokens(request);
  plan.kv_type =
      request.kv_type.value_or(reference ? kernels::KvType::kF32 : kernels::KvType::kF16);
  plan.geometry = GeometryOf(m, plan.kv_type);
  plan.slab_bytes = SlabBytes(plan.geometry);
  plan.workspace.num_threads = request.num_threads;
  plan.workspace.compute = request.compute;
  plan.parts[static_cast<size_t>(MemoryTag::kRuntime)] =
      RuntimeBytes(model, request.tokenizer_bytes);
  plan.budget_is_auto = request.budget_bytes == 0;
  plan.budget_bytes = plan.budget_is_auto ? mem::AvailableBytes() : request.budget_bytes;

  const bool asked = request.context_length != 0;
  const uint32_t least = asked ? request.context_length : std::min(kMinContext, m.trained_context);
  SetLeastChunk(request, plan);
  plan.resident_layers = 0;
  FillParts(model, request, least, plan);
  plan.min_streamed_bytes = plan.needed_bytes;
  plan.resident_layers = plan.num_layers;
  FillParts(model, request, least, plan);
  plan.min_budget_bytes = plan.needed_bytes;
  if (!plan.fits()) {
    PlanStreamed(model, request, least, plan);
    return plan;
  }
  ChooseChunk(model, request, least, plan);
  if (asked) return plan;
  const uint32_t context = LongestContext(model, request, least, m.trained_context, plan);
  if (plan.context_length != context) FillParts(model, request, context, plan);
  return plan;
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
