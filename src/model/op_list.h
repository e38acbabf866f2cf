// The forward pass as a short static list: which operation reads and writes which buffer.
//
//   embed
//   once per layer:  qkv  rope_store  attention  attention_output  gate_up  down
//   logits
//
// Every architecture runs this list; what differs is in the description (norms before or after,
// rotation, windows) and in which weights exist. A buffer's lifetime follows from the list: the
// last op that touches it is its last consumer, and one that is written before the layers and read
// inside them is persistent. `mem::PlanArena` places the buffers from these lifetimes.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace tael::model {

// Buffers of activations; shapes for a batch of T tokens.
enum class Buffer : uint8_t {
  kResidual,        // [T, model_dim]
  kRope,            // [num_ropes, T, 2, rope_dims / 2]   cos, then sin
  kNormed,          // [T, model_dim]
  kQkv,             // [T, (num_heads + 2 * num_kv_heads) * head_dim]
  kQueries,         // [num_kv_heads, T, group, head_dim]   rotated and scaled
  kPartials,        // attention over pieces of the context, before they are merged
  kAttended,        // [T, num_heads * head_dim]
  kProjection,      // [T, model_dim]
  kGate,            // [T, ffn_dim]
  kUp,              // [T, ffn_dim]
  kPackedModel,     // packed activations of a matmul over model_dim
  kPackedAttended,  // ... over num_heads * head_dim
  kPackedFfn,       // ... over ffn_dim
  kLogits,          // [logit rows at a time, vocab_size]
};
inline constexpr size_t kNumBuffers = 14;

enum class OpKind : uint8_t {
  kEmbed,            // token rows -> residual; rotation tables
  kQkv,              // norm, then three projections and their biases
  kRopeStore,        // q and k norms, rotation, scale; k and v into the cache
  kAttention,        // queries over the cached blocks
  kAttentionOutput,  // merge, projection, (norm,) residual add
  kGateUp,           // norm, two projections, activation
  kDown,             // projection, (norm,) residual add
  kLogits,           // norm, head, softcap
};

struct Op {
  OpKind kind;
  bool per_layer;
  std::array<Buffer, 5> touches;  // buffers read or written; repeated entries fill the array
};

std::span<const Op> OpList();

struct Lifetime {
  uint32_t first_op = 0;
  uint32_t last_consumer_op = 0;
  bool is_persistent = false;
};
// Of one buffer, as indices into OpList().
Lifetime LifetimeOf(Buffer buffer);

}  // namespace tael::model
