#include "kv/window_policy.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/checked.h"
#include "kv/tail_scores.h"

namespace tael::kv {
namespace {

constexpr uint32_t kTokens = kernels::kBlockTokens;

// The seed's ramp. A group's layers share the window of its last one.
double Ramp(const LayerGroup& group, size_t num_layers) {
  if (num_layers < 2) return 1;
  return 0.5 + 0.5 * group.layers.back() / static_cast<double>(num_layers - 1);
}

// One group's share of the blocks that a uniform window would have.
struct Share {
  LayerGroup* group;
  double exact;         // blocks, not yet whole
  uint64_t blocks = 0;  // per layer

  double rest() const { return exact - static_cast<double>(blocks); }
  uint64_t size() const { return group->layers.size(); }
};

// Windows in proportion to the ramp, in whole blocks: every share rounded down, and what is left
// given to those that lost most. Does nothing if some layer would get no block beside its sinks.
void ApplyRamp(const WindowPolicy& policy, size_t num_layers,
               const std::vector<LayerGroup*>& groups) {
  uint64_t layers = 0;
  double sum = 0;
  for (const LayerGroup* group : groups) {
    layers += group->layers.size();
    sum += Ramp(*group, num_layers) * static_cast<double>(group->layers.size());
  }
  uint64_t left = policy.tokens * layers / kTokens;  // blocks of one layer
  std::vector<Share> shares;
  for (LayerGroup* group : groups) {
    const double mean = static_cast<double>(policy.tokens) / kTokens;
    Share share{group, mean * static_cast<double>(layers) * Ramp(*group, num_layers) / sum};
    share.blocks = static_cast<uint64_t>(std::floor(share.exact));
    if (share.blocks * kTokens <= policy.sinks) return;
    left -= share.blocks * share.size();
    shares.push_back(share);
  }
  std::vector<Share*> losers;
  for (Share& share : shares) losers.push_back(&share);
  std::stable_sort(losers.begin(), losers.end(),
                   [](const Share* a, const Share* b) { return a->rest() > b->rest(); });
  for (Share* share : losers) {
    if (share->size() > left) continue;
    left -= share->size();
    ++share->blocks;
  }
  for (const Share& share : shares) {
    share.group->shape.window = static_cast<uint32_t>(share.blocks * kTokens);
  }
}

// A quarter of the window, in whole blocks; less where sinks leave no room, 0 where none fits.
uint32_t TailOf(uint32_t window, uint32_t sinks) {
  const uint32_t beside = sinks + Window::kLeastRecent;
  const uint32_t most = window - std::min(window, beside);
  const uint32_t tail = std::min(window / 4, most);
  return tail - tail % kTokens;
}

// The shortest window with a tail.
uint32_t LeastWithTail(uint32_t sinks) {
  return std::max(4 * kTokens, sinks + Window::kLeastRecent + kTokens);
}

bool HaveOneShape(const LayerShape& a, const LayerShape& b) {
  return a.num_kv_heads == b.num_kv_heads && a.head_dim == b.head_dim && a.type == b.type;
}

// Windows and sinks; returns the groups that have the policy's window, not their model's.
std::vector<LayerGroup*> ApplyTokens(const WindowPolicy& policy, Geometry& geometry) {
  std::vector<LayerGroup*> open;  // groups of layers that see everything by themselves
  for (LayerGroup& group : geometry.groups) {
    LayerShape& shape = group.shape;
    if (shape.window != 0) {
      if (policy.tokens != 0) shape.window = std::min(shape.window, policy.tokens);
      continue;
    }
    shape.sinks = policy.sinks;
    shape.window = policy.tokens;
    open.push_back(&group);
  }
  const std::vector<LayerGroup*> ours = open;
  if (policy.tokens == 0 || policy.shape == WindowShape::kUniform) return ours;
  while (!open.empty()) {
    std::vector<LayerGroup*> equal;
    const LayerShape shape = open.front()->shape;
    std::erase_if(open, [&](LayerGroup* group) {
      if (!HaveOneShape(group->shape, shape)) return false;
      equal.push_back(group);
      return true;
    });
    ApplyRamp(policy, geometry.places.size(), equal);
  }
  return ours;
}

// Of a policy whose windows keep a tail.
Status CheckTail(const WindowPolicy& policy) {
  const std::string flag = std::string("--evict ") + ToString(policy.evict);
  if (policy.tokens == 0) {
    return Error{ErrorCode::kInvalidArgument, "nothing is evicted without a window",
                 "choose one (--window), or leave " + flag + " out"};
  }
  if (policy.start != 0) {
    return Error{ErrorCode::kInvalidArgument, "a window that chooses by attention stays as it is",
                 "a tail that a narrower window gave up does not come back: with " + flag +
                     " choose one number of tokens (--window), or take --evict drop"};
  }
  const uint32_t least = LeastWithTail(policy.sinks);
  if (policy.tokens >= least) return {};
  return Error{ErrorCode::kInvalidArgument, "the window is too short to choose by attention",
               std::to_string(policy.tokens) + " tokens; with " + flag + " and " +
                   std::to_string(policy.sinks) + " sinks it takes " + std::to_string(least) +
                   " at least (--window)"};
}

}  // namespace

const char* ToString(Evict evict) {
  switch (evict) {
    case Evict::kDrop:
      return "drop";
    case Evict::kHeavy:
      return "heavy";
    case Evict::kMerge:
      return "merge";
  }
  return "";
}

Status CheckWindow(const WindowPolicy& policy) {
  if (ChoosesByAttention(policy.evict)) TAEL_RETURN_IF_ERROR(CheckTail(policy));
  const uint32_t least = policy.start != 0 ? std::min(policy.start, policy.tokens) : policy.tokens;
  if (least == 0 || least > policy.sinks) return {};
  return Error{ErrorCode::kInvalidArgument, "the window holds nothing but its sinks",
               std::to_string(least) + " tokens, of which the first " +
                   std::to_string(policy.sinks) +
                   " always stay; choose a longer window (--window) or fewer sinks (--sinks)"};
}

void ApplyWindow(const WindowPolicy& policy, Geometry& geometry) {
  const std::vector<LayerGroup*> ours = ApplyTokens(policy, geometry);
  if (policy.tokens == 0 || !ChoosesByAttention(policy.evict)) return;
  for (LayerGroup* group : ours) {
    group->shape.tail = TailOf(group->shape.window, policy.sinks);
    group->shape.merges = policy.evict == Evict::kMerge;
  }
}

uint64_t MostRows(const LayerShape& shape, uint32_t pass_tokens) {
  if (shape.tail != 0) return CeilDiv(uint64_t{shape.window}, uint64_t{kTokens}) + 3;
  return CeilDiv(uint64_t{shape.window} + pass_tokens, uint64_t{kTokens}) +
         (shape.sinks != 0 ? 2 : 1);
}

LayerShape Narrowed(LayerShape shape, uint32_t tokens) {
  shape.window = shape.window == 0 ? tokens : std::min(shape.window, tokens);
  shape.sinks = std::min(shape.sinks, shape.window - 1);
  return shape;
}

uint32_t MostSlots(const LayerShape& shape) {
  return static_cast<uint32_t>(MostRows(shape, 0) * kTokens);
}

uint64_t TailBytes(const Geometry& geometry) {
  uint64_t bytes = 0;
  for (const LayerGroup& group : geometry.groups) {
    if (group.shape.tail == 0) continue;
    bytes += group.layers.size() * TailScores::BytesFor(MostSlots(group.shape), group.shape.merges);
  }
  return bytes;
}

uint32_t WidestWindow(const Geometry& geometry) {
  uint32_t widest = 0;
  for (const LayerGroup& group : geometry.groups) {
    if (group.shape.window == 0) return 0;
    widest = std::max(widest, group.shape.window);
  }
  return widest;
}

}  // namespace tael::kv
