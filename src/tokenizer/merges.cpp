// See merges.h.
#include "tokenizer/merges.h"

#include "tokenizer/special.h"

namespace tael::tokenizer {
namespace {

Error BadRule(size_t rank, std::string_view problem) {
  return MalformedKey(kMergesKey, "rule " + std::to_string(rank) + " " + std::string(problem));
}

}  // namespace

Result<MergeTable::Rule> MergeTable::Parse(std::string_view text, size_t rank, const Vocab& vocab,
                                           std::string& joined) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == text.size() ||
      text.find(' ', space + 1) != std::string_view::npos) {
    return BadRule(rank, "is not two parts with one space between");
  }
  const uint32_t left = vocab.Find(text.substr(0, space));
  const uint32_t right = vocab.Find(text.substr(space + 1));
  if (left == kNoToken || right == kNoToken) return BadRule(rank, "joins what is no token");
  if (text.size() - 1 > vocab.max_token_bytes()) return BadRule(rank, "makes no token");
  joined.assign(text.substr(0, space));
  joined += text.substr(space + 1);
  const uint32_t merged = vocab.Find(joined);
  if (merged == kNoToken) return BadRule(rank, "makes no token");
  return Rule{.left = left, .right = right, .merged = merged};
}

Result<MergeTable> MergeTable::Load(const gguf::File& file, const Vocab& vocab) {
  TAEL_ASSIGN_OR_RETURN(const gguf::Value* texts,
                        FindArray(file, kMergesKey, {gguf::ValueType::kString}));
  if (texts == nullptr) return MalformedKey(kMergesKey, "missing");
  if (texts->count >= kEmpty) return MalformedKey(kMergesKey, "has 2^32 rules or more");
  MergeTable table;
  table.rules_.reserve(texts->count);
  table.slots_.assign(TableSlots(texts->count), kEmpty);
  const size_t mask = table.slots_.size() - 1;
  uint64_t probes = ProbeBudget(texts->count);
  gguf::StringCursor cursor(texts->data);
  std::string joined;
  for (uint32_t rank = 0; rank < texts->count; ++rank) {
    TAEL_ASSIGN_OR_RETURN(const Rule rule, Parse(cursor.Next(), rank, vocab, joined));
    table.rules_.push_back(rule);
    // A control token that text could grow into would let users write it (ACCEPTANCE G3).
    if (NeedsPermission(vocab, rule.merged)) continue;
    if (table.Find(rule.left, rule.right)) continue;  // the first of two rules counts
    size_t slot = table.Slot(rule.left, rule.right);
    for (; table.slots_[slot] != kEmpty; slot = (slot + 1) & mask) {
      if (--probes == 0) return MalformedKey(kMergesKey, "has rules that collide by design");
    }
    table.slots_[slot] = rank;
  }
  return table;
}

}  // namespace tael::tokenizer
