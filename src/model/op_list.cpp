#include "model/op_list.h"

#include <algorithm>

namespace tael::model {
namespace {

using enum Buffer;

constexpr std::array<Op, 8> kOps = {{
    {OpKind::kEmbed, false, {kResidual, kRope, kRope, kRope, kRope}},
    {OpKind::kQkv, true, {kResidual, kNormed, kPackedModel, kQkv, kQkv}},
    {OpKind::kRopeStore, true, {kQkv, kRope, kQueries, kQueries, kQueries}},
    {OpKind::kAttention, true, {kQueries, kRope, kPartials, kAttended, kAttended}},
    {OpKind::kAttentionOutput,
     true,
     {kPartials, kAttended, kPackedAttended, kProjection, kResidual}},
    {OpKind::kGateUp, true, {kResidual, kNormed, kPackedModel, kGate, kUp}},
    {OpKind::kDown, true, {kGate, kPackedFfn, kProjection, kResidual, kResidual}},
    {OpKind::kLogits, false, {kResidual, kNormed, kPackedModel, kLogits, kLogits}},
}};

bool Touches(const Op& op, Buffer buffer) {
  return std::find(op.touches.begin(), op.touches.end(), buffer) != op.touches.end();
}

}  // namespace

std::span<const Op> OpList() { return kOps; }

// Buffers that several ops of a layer use afresh (the packed ones, kNormed, kProjection) get one
// place for all of them: their lifetime spans from the first use to the last.
Lifetime LifetimeOf(Buffer buffer) {
  Lifetime lifetime;
  bool found = false;
  bool outside_before = false;
  for (uint32_t i = 0; i < kOps.size(); ++i) {
    if (!Touches(kOps[i], buffer)) continue;
    if (!found) {
      lifetime.first_op = i;
      outside_before = !kOps[i].per_layer;
    }
    found = true;
    lifetime.last_consumer_op = i;
    if (outside_before && kOps[i].per_layer) lifetime.is_persistent = true;
  }
  if (lifetime.is_persistent) lifetime.last_consumer_op = kOps.size() - 1;
  return lifetime;
}

}  // namespace tael::model
