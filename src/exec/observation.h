// What the last queries of a prompt look at (kv/prompt_compression.h): their attention, head by
// head, is added to what the sequence's keys have got so far.
//
// A second look at the same scores, after Attend(): it needs no room for the weights of a whole
// context, and only the last rows of a prompt pay for it. Each probability becomes a whole
// number by itself, so that sums depend neither on threads nor on how the prompt was cut.
#pragma once

#include <cstddef>
#include <cstdint>

#include "exec/pass.h"

namespace tael::exec {

// Of layers without a window, in sequences that ask. Reads kQueries; uses the thread's scratch.
void Observe(const Pass& pass, uint32_t layer, size_t thread);

}  // namespace tael::exec
