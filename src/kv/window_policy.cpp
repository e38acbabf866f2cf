#include "kv/window_policy.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/checked.h"

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

bool HaveOneShape(const LayerShape& a, const LayerShape& b) {
  return a.num_kv_heads == b.num_kv_heads && a.head_dim == b.head_dim && a.type == b.type;
}

}  // namespace

Status CheckWindow(const WindowPolicy& policy) {
  if (policy.tokens == 0 || policy.tokens > policy.sinks) return {};
  return Error{ErrorCode::kInvalidArgument, "the window holds nothing but its sinks",
               std::to_string(policy.tokens) + " tokens, of which the first " +
                   std::to_string(policy.sinks) +
                   " always stay; choose a longer window (--window) or fewer sinks (--sinks)"};
}

void ApplyWindow(const WindowPolicy& policy, Geometry& geometry) {
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
  if (policy.tokens == 0 || policy.shape == WindowShape::kUniform) return;
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
}

uint64_t MostRows(const LayerShape& shape, uint32_t pass_tokens) {
  return CeilDiv(uint64_t{shape.window} + pass_tokens, uint64_t{kTokens}) +
         (shape.sinks != 0 ? 2 : 1);
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
