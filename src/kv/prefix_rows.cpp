#include "kv/prefix_rows.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace tael::kv {
namespace {

constexpr int kMostSiblings = 64;  // that FindBeginning() looks at

uint32_t NumCommon(std::span<const TokenId> a, std::span<const TokenId> b) {
  return static_cast<uint32_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

PrefixRows::PrefixRows(uint32_t max_rows, HashFunction hash)
    : max_rows_(max_rows), hash_(hash), buckets_(NumBuckets(max_rows), kNoRow) {
  TAEL_CHECK(max_rows > 0 && max_rows < kNoRow && hash != nullptr);
  rows_.reserve(max_rows);
}

uint32_t PrefixRows::NumBuckets(uint32_t max_rows) {
  return std::bit_ceil(std::min(max_rows, uint32_t{1} << 31));
}

uint64_t PrefixRows::HeapBytes(uint32_t max_rows) {
  return uint64_t{max_rows} * sizeof(Row) + uint64_t{NumBuckets(max_rows)} * sizeof(uint32_t);
}

uint64_t PrefixRows::HeapBytesInUse() const {
  return rows_.size() * sizeof(Row) + buckets_.size() * sizeof(uint32_t);
}

uint64_t PrefixRows::KeyOf(uint32_t parent, uint64_t salt, Tokens tokens) const {
  struct {
    uint64_t parent_key;
    uint64_t salt;
    std::array<TokenId, kernels::kBlockTokens> tokens;
  } hashed{parent == kNoRow ? 0 : rows_[parent].key, salt, {}};
  static_assert(sizeof(hashed) == 16 + sizeof(hashed.tokens));  // no padding is hashed
  std::ranges::copy(tokens, hashed.tokens.begin());
  return hash_(&hashed, sizeof(hashed), 0);
}

uint32_t PrefixRows::Find(uint32_t parent, uint64_t salt, Tokens tokens) {
  const uint64_t key = KeyOf(parent, salt, tokens);
  for (uint32_t id = bucket_of(key); id != kNoRow; id = rows_[id].next) {
    const Row& row = rows_[id];
    if (row.key != key) continue;
    if (row.parent == parent && row.salt == salt && std::ranges::equal(row.tokens, tokens)) {
      return id;
    }
    ++num_rejected_;
  }
  return kNoRow;
}

PrefixRows::Beginning PrefixRows::FindBeginning(uint32_t parent, uint64_t salt,
                                                std::span<const TokenId> tokens) const {
  Beginning best;
  uint32_t id = first_child(parent);
  for (int looks = 0; looks < kMostSiblings && id != kNoRow; ++looks) {
    const Row& row = rows_[id];
    const uint32_t common = row.salt == salt ? NumCommon(row.tokens, tokens) : 0;
    if (common > best.num_tokens) best = {id, common};
    id = row.older_sibling;
  }
  return best;
}

uint32_t PrefixRows::AddNewest(uint32_t parent, uint64_t salt, Tokens tokens) {
  const uint32_t id = Add(parent, salt, tokens);
  Link(id, newest(false), kNoRow);
  return id;
}

uint32_t PrefixRows::AddOldest(uint32_t parent, uint64_t salt, Tokens tokens, bool hit) {
  TAEL_CHECK(!hit || parent == kNoRow || rows_[parent].hit);
  const uint32_t id = Add(parent, salt, tokens);
  rows_[id].hit = hit;
  Link(id, kNoRow, oldest(hit));
  return id;
}

uint32_t PrefixRows::Add(uint32_t parent, uint64_t salt, Tokens tokens) {
  TAEL_CHECK(!full());
  const uint64_t key = KeyOf(parent, salt, tokens);
  uint32_t id = free_;
  if (id == kNoRow) {
    id = num_places();
    rows_.emplace_back();
  } else {
    free_ = rows_[id].next;
    rows_[id] = {};
  }
  Row& row = rows_[id];
  row.key = key;
  row.salt = salt;
  std::ranges::copy(tokens, row.tokens.begin());
  row.parent = parent;
  row.held = true;
  row.next = bucket_of(key);
  bucket_of(key) = id;
  if (parent != kNoRow) ++rows_[parent].num_children;
  JoinSiblings(id);
  ++num_held_;
  return id;
}

void PrefixRows::Remove(uint32_t id) {
  Row& row = rows_[id];
  TAEL_CHECK(row.held && row.num_children == 0 && row.num_pins == 0);
  Unlink(id);
  LeaveSiblings(id);
  uint32_t* link = &bucket_of(row.key);
  while (*link != id) link = &rows_[*link].next;
  *link = row.next;
  if (row.parent != kNoRow) --rows_[row.parent].num_children;
  row.held = false;
  row.next = free_;
  free_ = id;
  --num_held_;
}

void PrefixRows::Touch(uint32_t id, bool hit) {
  Unlink(id);
  rows_[id].hit = rows_[id].hit || hit;
  Link(id, newest(rows_[id].hit), kNoRow);
}

void PrefixRows::Unpin(uint32_t id) {
  TAEL_CHECK(rows_[id].num_pins > 0);
  --rows_[id].num_pins;
}

void PrefixRows::Link(uint32_t id, uint32_t before, uint32_t after) {
  UseList& list = lists_[rows_[id].hit];
  rows_[id].older = before;
  rows_[id].newer = after;
  (before == kNoRow ? list.oldest : rows_[before].newer) = id;
  (after == kNoRow ? list.newest : rows_[after].older) = id;
}

void PrefixRows::Unlink(uint32_t id) {
  UseList& list = lists_[rows_[id].hit];
  const uint32_t before = rows_[id].older, after = rows_[id].newer;
  (before == kNoRow ? list.oldest : rows_[before].newer) = after;
  (after == kNoRow ? list.newest : rows_[after].older) = before;
}

void PrefixRows::JoinSiblings(uint32_t id) {
  uint32_t& newest = first_child(rows_[id].parent);
  rows_[id].older_sibling = newest;
  if (newest != kNoRow) rows_[newest].newer_sibling = id;
  newest = id;
}

void PrefixRows::LeaveSiblings(uint32_t id) {
  const uint32_t older = rows_[id].older_sibling, newer = rows_[id].newer_sibling;
  (newer == kNoRow ? first_child(rows_[id].parent) : rows_[newer].older_sibling) = older;
  if (older != kNoRow) rows_[older].newer_sibling = newer;
}

// Places in the order of eviction; kNoRow for those that no list holds.
std::vector<uint32_t> PrefixRows::Ranks() const {
  std::vector<uint32_t> ranks(rows_.size(), kNoRow);
  uint32_t rank = 0;
  for (const bool hit : {false, true}) {
    uint32_t before = kNoRow;
    for (uint32_t id = oldest(hit); id != kNoRow; id = rows_[id].newer) {
      if (ranks[id] != kNoRow || rows_[id].older != before || rows_[id].hit != hit) return {};
      ranks[id] = rank++;
      before = id;
    }
    if (newest(hit) != before) return {};
  }
  return ranks;
}

bool PrefixRows::BucketsAreSound() const {
  size_t found = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    for (uint32_t id = buckets_[i]; id != kNoRow; id = rows_[id].next) {
      const Row& row = rows_[id];
      if (!row.held || (row.key & (buckets_.size() - 1)) != i) return false;
      if (row.key != KeyOf(row.parent, row.salt, row.tokens)) return false;
      if (++found > num_held_) return false;
    }
  }
  return found == num_held_;
}

// Every row is in the list of its parent, once.
bool PrefixRows::SiblingsAreSound() const {
  uint32_t found = 0;
  const auto walk = [&](uint32_t parent) {
    uint32_t newer = kNoRow;
    for (uint32_t id = first_child(parent); id != kNoRow; id = rows_[id].older_sibling) {
      const Row& row = rows_[id];
      if (!row.held || row.parent != parent || row.newer_sibling != newer) return false;
      if (++found > num_held_) return false;
      newer = id;
    }
    return true;
  };
  if (!walk(kNoRow)) return false;
  for (uint32_t id = 0; id < num_places(); ++id) {
    if (rows_[id].held && !walk(id)) return false;
  }
  return found == num_held_;
}

bool PrefixRows::IsSound() const {
  const std::vector<uint32_t> ranks = Ranks();
  if (ranks.size() != rows_.size()) return false;
  std::vector<uint32_t> num_children(rows_.size());
  uint32_t num_held = 0;
  for (uint32_t id = 0; id < num_places(); ++id) {
    const Row& row = rows_[id];
    if (row.held != (ranks[id] != kNoRow)) return false;
    if (!row.held) continue;
    ++num_held;
    if (row.parent == kNoRow) continue;
    if (!rows_[row.parent].held || ranks[row.parent] < ranks[id]) return false;
    ++num_children[row.parent];
  }
  for (uint32_t id = 0; id < num_places(); ++id) {
    if (rows_[id].held && rows_[id].num_children != num_children[id]) return false;
  }
  return num_held == num_held_ && BucketsAreSound() && SiblingsAreSound();
}

}  // namespace tael::kv
