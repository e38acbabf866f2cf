// What a client asks of the scheduler.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "engine/generation.h"

namespace tael::engine {

enum class Priority : uint8_t { kInteractive, kBackground };

struct Request {
  std::vector<TokenId> prompt = {};
  // A request for more tokens than the context has left behind the prompt is refused: who wants
  // "as many as there are" asks for Scheduler::MostNewTokens(). `cancel` is not looked at (see
  // Answer::Cancel).
  GenerateOptions options = {};
  // Answers to the same prompt, which is computed once. The i-th samples with seed + i: it is the
  // answer that a request of its own with that seed gets.
  uint32_t num_choices = 1;
  Priority priority = Priority::kInteractive;
  // The first so many tokens of the prompt, a system prompt, are never dropped by a window, as long
  // as they fill half of it at most.
  uint32_t system_tokens = 0;
  // KV is shared among requests of the same salt only: a number per tenant.
  uint64_t salt = 0;
};

}  // namespace tael::engine
