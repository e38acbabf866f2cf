// One pass over the weights for tokens of several sessions: chunks of prompts, single tokens of
// running answers and drafts, mixed as a scheduler likes.
//
// A batch is taken whole or not at all. Room for all its tokens is made before anything is
// computed, and when something fails every session is as it was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/result.h"
#include "engine/engine.h"
#include "exec/function_ref.h"

namespace tael::engine {

struct BatchItem {
  Session* session = nullptr;
  std::span<const TokenId> tokens;  // at least one; they follow what the session holds
  uint32_t num_logits = 1;          // of the last so many of them; may be 0
  // How many of the tokens the session shall hold afterwards, if not all: read when the sink has
  // had all logits, so that it can decide (at most tokens.size(); all or none where the session
  // evicts by attention, since scores cannot forget a token).
  const uint32_t* keep = nullptr;
};

// Receives the logits of items[item].tokens[index], in this order; they may be changed.
using BatchSink = exec::FunctionRef<void(size_t item, size_t index, std::span<float> logits)>;

// Asked after each layer of a pass, on the caller's thread: true gives it up.
using BatchStop = exec::StopCheck;

// Computes all items in one pass. Requires: every session is of `engine`.
// Fails: kInvalidArgument for no items, no tokens, ids outside the vocabulary, a session named
// twice, more tokens than its Session::MostAtOnce(), or more in all than
// Engine::max_batch_tokens(); kContextExceeded, naming both
// numbers; kNoFreeBlocks; kIo when the model file was cut meanwhile (from then on always). After a
// failure no session has changed; only kIo comes after the sink was called.
Status FeedBatch(Engine& engine, std::span<const BatchItem> items, BatchSink sink);
// Also fails: kCancelled when `stop` gave it up; then no session has changed, and no logits came.
Status FeedBatch(Engine& engine, std::span<const BatchItem> items, BatchSink sink, BatchStop stop);

}  // namespace tael::engine
