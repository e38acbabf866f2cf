// Between the q/k/v projections and attention: norms of q and k, rotation, scale, and the store
// into the cache. For quantised types the rotation is followed by a Hadamard transform, of queries
// as of keys; that of values is undone when attention is finished.
#include <algorithm>

#include "exec/attention.h"

namespace tael::exec {
namespace {

using model::Buffer;

// One layer's view of the head-wise work.
struct HeadWork {
  const Pass& pass;
  const model::ModelDescription& model;
  const model::LayerWeights& weights;
  const model::LayerDescription& layer;
  const kv::LayerPlace& place;
  const kv::LayerGroup& group;
  const kernels::KvTypes types;
  const kernels::KvTable& keys;
  const kernels::KvTable& values;
  size_t num_rows;
  uint32_t heads_per_kv;
  size_t qkv_stride;

  HeadWork(const Pass& p, uint32_t index)
      : pass(p),
        model(p.description()),
        weights(p.model.weights().layers[index]),
        layer(model.layers[index]),
        place(p.geometry.places[index]),
        group(p.geometry.group(place.group)),
        types(group.shape.type),
        keys(p.kernels.kv[static_cast<size_t>(types.k)]),
        values(p.kernels.kv[static_cast<size_t>(types.v)]),
        num_rows(p.rows.size()),
        heads_per_kv(model.num_heads / layer.num_kv_heads),
        qkv_stride((model.num_heads + 2 * size_t{layer.num_kv_heads}) * model.head_dim) {}

  const float* Projected(size_t row) const { return pass.floats(Buffer::kQkv) + row * qkv_stride; }
  float* Query(size_t row, uint32_t head) const {
    const size_t kv_head = head / heads_per_kv;
    const size_t index = (kv_head * num_rows + row) * heads_per_kv + head % heads_per_kv;
    return pass.floats(Buffer::kQueries) + index * model.head_dim;
  }
  void Rotate(float* head, size_t row) const {
    if (layer.rope < 0) return;
    const size_t half = model.rope_dims / 2;
    const float* cos = pass.floats(Buffer::kRope) +
                       (static_cast<size_t>(layer.rope) * num_rows + row) * model.rope_dims;
    const auto rotate = model.rope_layout == model::RopeLayout::kPairs
                            ? pass.kernels.vec.rope_pairs
                            : pass.kernels.vec.rope_halves;
    rotate(head, cos, cos + half, half);
  }
  // Copies (and norms per head, where the model does) one projected head to `dst`.
  void LoadHead(const float* src, const float* norm, float* dst) const {
    if (norm != nullptr && model.qk_norm == model::QkNorm::kPerHead) {
      pass.kernels.vec.rms_norm(src, norm, model.norm_epsilon, model.head_dim, dst);
    } else {
      std::copy_n(src, model.head_dim, dst);
    }
  }

  void StoreQuery(size_t row, uint32_t head, const float* src) const {
    float* query = Query(row, head);
    LoadHead(src, weights.q_norm, query);
    Rotate(query, row);
    pass.kernels.vec.scale(query, model.attention_scale, model.head_dim);
    if (IsQuantised(types.k)) pass.kernels.vec.hadamard(query, model.head_dim);
  }
  // K tile of a KV head in the block of this row's token; the V tile follows it.
  std::byte* Tile(size_t row, uint32_t kv_head) const {
    const Row& info = pass.rows[row];
    std::byte* block = pass.chunks[info.chunk].sequence->MutableBlock(place.group, info.position);
    return block + place.layer_offset + kv_head * group.head_bytes;
  }
  void StoreKey(size_t row, uint32_t kv_head, const float* src, float* scratch) const {
    LoadHead(src, weights.k_norm, scratch);
    Rotate(scratch, row);
    if (IsQuantised(types.k)) pass.kernels.vec.hadamard(scratch, model.head_dim);
    keys.store_k(scratch, model.head_dim, pass.rows[row].position % kernels::kBlockTokens,
                 Tile(row, kv_head));
  }
  void StoreValue(size_t row, uint32_t kv_head, const float* src, float* scratch) const {
    if (IsQuantised(types.v)) {
      std::copy_n(src, model.head_dim, scratch);
      pass.kernels.vec.hadamard(scratch, model.head_dim);
      src = scratch;
    }
    values.store_v(src, model.head_dim, pass.rows[row].position % kernels::kBlockTokens,
                   Tile(row, kv_head) + group.k_tile_bytes);
  }
};

// All heads of one row. A norm over the whole projection needs them together.
void StoreRow(const HeadWork& work, size_t row, float* scratch) {
  const model::ModelDescription& m = work.model;
  const size_t q_size = size_t{m.num_heads} * m.head_dim;
  const size_t kv_size = size_t{work.layer.num_kv_heads} * m.head_dim;
  const float* q = work.Projected(row);
  const float* k = q + q_size;
  const float* v = k + kv_size;
  float* head = scratch;
  if (m.qk_norm == model::QkNorm::kWholeProjection) {
    float* normed = scratch + m.head_dim;
    const auto norm = work.pass.kernels.vec.rms_norm;
    norm(q, work.weights.q_norm, m.norm_epsilon, q_size, normed);
    norm(k, work.weights.k_norm, m.norm_epsilon, kv_size, normed + q_size);
    q = normed;
    k = normed + q_size;
  }
  for (uint32_t h = 0; h < m.num_heads; ++h) work.StoreQuery(row, h, q + h * m.head_dim);
  for (uint32_t h = 0; h < work.layer.num_kv_heads; ++h) {
    work.StoreKey(row, h, k + h * m.head_dim, head);
    work.StoreValue(row, h, v + h * m.head_dim, head);
  }
}

// One row, head by head: heads are dealt out to the threads.
void StoreHeads(const HeadWork& work, size_t thread, float* scratch) {
  const model::ModelDescription& m = work.model;
  const uint32_t kv_heads = work.layer.num_kv_heads;
  const size_t total = m.num_heads + 2 * size_t{kv_heads};
  const Range mine = SplitRange(total, 1, thread, work.pass.team.size());
  for (size_t i = mine.begin; i < mine.end; ++i) {
    const float* src = work.Projected(0) + i * m.head_dim;
    if (i < m.num_heads) {
      work.StoreQuery(0, static_cast<uint32_t>(i), src);
    } else if (i < m.num_heads + kv_heads) {
      work.StoreKey(0, static_cast<uint32_t>(i) - m.num_heads, src, scratch);
    } else {
      work.StoreValue(0, static_cast<uint32_t>(i) - m.num_heads - kv_heads, src, scratch);
    }
  }
}

}  // namespace

void RopeStore(const Pass& pass, uint32_t layer, size_t thread) {
  const HeadWork work(pass, layer);
  float* scratch = pass.scratch(thread).head;
  if (work.num_rows == 1 && work.model.qk_norm != model::QkNorm::kWholeProjection) {
    StoreHeads(work, thread, scratch);
    return;
  }
  const Range mine = SplitRange(work.num_rows, 1, thread, pass.team.size());
  for (size_t row = mine.begin; row < mine.end; ++row) StoreRow(work, row, scratch);
}

}  // namespace tael::exec
