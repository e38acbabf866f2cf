// What a task (--task) changes: the defaults of the flags for keys and values, and nothing else.
//
//   task               --kv-type auto is       --window
//   chat               q8                      off
//   code, summary      q8                      512..1024: what is near matters
//   doc-qa             q8                      2048..4096
//   translate, reason  f16                     off: errors add up, nothing may be forgotten
#pragma once

#include <array>

#include "cli/options.h"

namespace tael::cli {

inline constexpr std::array<Task, 6> kTasks = {Task::kChat,  Task::kCode,      Task::kSummary,
                                               Task::kDocQa, Task::kTranslate, Task::kReason};

const char* NameOf(Task task);  // "doc-qa"

// Windows are as long as the model, the context and the budget allow. Requires: no other flag has
// been applied yet; whatever comes later wins.
void ApplyTask(Task task, ModelFlags& flags);

}  // namespace tael::cli
