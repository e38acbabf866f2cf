// Attention over paged blocks.
//
// The context is worked off in pieces of kKeysPerPiece keys. A piece gives, for each query row, the
// largest score m, the sum l of exp(score - m) and the weighted values o; pieces merge in order of
// position (online softmax: Milakov and Gimelshein 2018, as in FlashAttention):
//
//   M = max(m1, m2)   l = l1 e^(m1-M) + l2 e^(m2-M)   o = o1 e^(m1-M) + o2 e^(m2-M)
//
// Pieces lie at fixed positions and each row's arithmetic is its own, so a result depends neither
// on how a prompt was cut into chunks nor on the number of threads. All query heads of a KV head
// share one pass over its K and V. What a query sees of a window, and the blocks where that lies,
// the sequence says (kv/sequence.h): some sinks, a tail of old tokens and a run of recent ones.
//
// Where a sequence keeps a tail, attention tells it what each key got (kv/tail_scores.h): a row's
// exp(score - m) stay until its M and l are known, which make probabilities of them. Those of a
// tile's rows are summed per key and added to the sequence in whole numbers, so that the order in
// which threads come does not matter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "exec/pass.h"

namespace tael::exec {

// q and k norms, rotation and scale; queries -> kQueries, keys and values -> the cache.
void RopeStore(const Pass& pass, uint32_t layer, size_t thread);

// One row: pieces are dealt out to the threads and left in kPartials; MergeSingleRow() finishes.
// More rows: tiles of queries are dealt out and finished rows written to kAttended.
void Attend(const Pass& pass, uint32_t layer, size_t thread);

// The attended row of a batch of one, [num_heads * head_dim], written to `out`. Uses the thread's
// scratch.
void MergeSingleRow(const Pass& pass, uint32_t layer, size_t thread, float* out);

// Tells the sequence of a batch of one, if it keeps a tail, what its keys got; every thread some.
// Requires: the thread's scratch as MergeSingleRow() of this layer left it.
void CollectSingleRow(const Pass& pass, uint32_t layer, size_t thread);

}  // namespace tael::exec
