#include "engine/pass_plan.h"

#include <algorithm>

#include "base/checked.h"
#include "kernels/kernels.h"

namespace tael::engine {
namespace {

constexpr uint32_t kRow = kernels::kBlockTokens;

// So many of the `pending` tokens behind `held` that the chunk ends with a whole row, or with the
// prompt; fewer than a row where there is room for no more.
uint32_t ChunkLength(uint32_t held, uint32_t pending, uint32_t room) {
  if (pending <= room) return pending;
  const uint32_t end = (held + room) / kRow * kRow;
  return end > held ? end - held : room;
}

}  // namespace

void PassPlan::Make(std::span<Choice* const> ready, uint32_t max_tokens, bool draft) {
  parts_.clear();
  items_.clear();
  has_draft_ = false;
  const bool alone = ready.size() == 1;
  uint32_t room = max_tokens;
  for (Choice* choice : ready) {
    if (!choice->decodes() || room == 0) continue;
    Add(*choice, alone ? max_tokens : 1, alone && draft && choice->session->MayDraft());
    --room;
  }
  for (Choice* choice : ready) {
    if (choice->decodes() || room == 0) continue;
    const uint32_t most = std::min(room, choice->session->MostAtOnce());
    const uint32_t count = ChunkLength(choice->held(), choice->pending(), most);
    Add(*choice, count, false);
    room -= count;
  }
}

void PassPlan::Add(Choice& choice, uint32_t most, bool draft) {
  const Part part{.choice = &choice,
                  .feed = choice.writer->Next(choice.held(), most, draft),
                  .decodes = choice.decodes()};
  has_draft_ = has_draft_ || part.feed.num_logits > 1;
  items_.push_back({.session = &*choice.session,
                    .tokens = part.feed.tokens,
                    .num_logits = part.feed.num_logits,
                    .keep = part.feed.keep});
  parts_.push_back(part);
}

// The rows it grows by, and one for the copy of a row that is shared and partly filled.
uint64_t PassPlan::CountNewRows() const {
  uint64_t rows = 0;
  for (const Part& part : parts_) {
    const uint64_t end = part.choice->held() + part.feed.tokens.size();
    rows += CeilDiv<uint64_t>(end, kRow) - part.choice->held() / kRow;
  }
  return rows;
}

}  // namespace tael::engine
