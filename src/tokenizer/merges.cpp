// See merges.h.
#include "tokenizer/merges.h"

#include <string>

#include "tokenizer/special.h"

namespace tael::tokenizer {
namespace {

Error BadRule(uint32_t rank, std::string_view problem) {
  return MalformedKey(kMergesKey, "rule " + std::to_string(rank) + " " + std::string(problem));
}

}  // namespace

Result<Merge> MergeTable::Parse(std::string_view rule, uint32_t rank, const Vocab& vocab) {
  const size_t space = rule.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == rule.size() ||
      rule.find(' ', space + 1) != std::string_view::npos) {
    return BadRule(rank, "is not two parts with one space between");
  }
  const uint32_t left = vocab.Find(rule.substr(0, space));
  const uint32_t right = vocab.Find(rule.substr(space + 1));
  if (left == kNoToken || right == kNoToken) return BadRule(rank, "joins what is no token");
  if (rule.size() - 1 > vocab.max_token_bytes()) return BadRule(rank, "makes no token");
  std::string joined(rule);
  joined.erase(space, 1);
  const uint32_t merged = vocab.Find(joined);
  if (merged == kNoToken) return BadRule(rank, "makes no token");
  return Merge{.left = left, .right = right, .rank = rank, .merged = merged};
}

Result<MergeTable> MergeTable::Load(const gguf::File& file, const Vocab& vocab) {
  TAEL_ASSIGN_OR_RETURN(const gguf::Value* rules,
                        FindArray(file, kMergesKey, {gguf::ValueType::kString}));
  if (rules == nullptr) return MalformedKey(kMergesKey, "missing");
  if (rules->count >= UINT32_MAX) return MalformedKey(kMergesKey, "too many rules");
  MergeTable table;
  table.slots_.resize(TableSlots(rules->count));
  const size_t mask = table.slots_.size() - 1;
  uint64_t probes = ProbeBudget(rules->count);
  gguf::StringCursor cursor(rules->data);
  for (uint32_t rank = 0; rank < rules->count; ++rank) {
    TAEL_ASSIGN_OR_RETURN(const Merge merge, Parse(cursor.Next(), rank, vocab));
    if (table.Find(merge.left, merge.right) != nullptr) continue;  // the first of two rules counts
    // A control token that text could grow into would let users write it (ACCEPTANCE G3).
    if (NeedsPermission(vocab, merge.merged)) continue;
    size_t slot = table.Slot(merge.left, merge.right);
    for (; table.slots_[slot].left != kNoToken; slot = (slot + 1) & mask) {
      if (--probes == 0) return MalformedKey(kMergesKey, "rules collide by design");
    }
    table.slots_[slot] = merge;
  }
  return table;
}

}  // namespace tael::tokenizer
