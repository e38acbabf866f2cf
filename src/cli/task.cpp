#include "cli/task.h"

namespace tael::cli {
namespace {

// From `start` tokens to `most`, as far as they fit.
void SetWindow(uint32_t start, uint32_t most, kv::WindowPolicy& window) {
  window.tokens = kv::WindowPolicy::kAuto;
  window.start = start;
  window.most = most;
}

}  // namespace

const char* NameOf(Task task) {
  switch (task) {
    case Task::kChat:
      return "chat";
    case Task::kCode:
      return "code";
    case Task::kSummary:
      return "summary";
    case Task::kDocQa:
      return "doc-qa";
    case Task::kTranslate:
      return "translate";
    case Task::kReason:
      return "reason";
  }
  return "?";
}

void ApplyTask(Task task, ModelFlags& flags) {
  flags.task = task;
  switch (task) {
    case Task::kChat:
      return;
    case Task::kCode:
    case Task::kSummary:
      return SetWindow(512, 1024, flags.window);
    case Task::kDocQa:
      return SetWindow(2048, 4096, flags.window);
    case Task::kTranslate:
    case Task::kReason:
      flags.auto_is_f16 = true;
      return;
  }
}

}  // namespace tael::cli
