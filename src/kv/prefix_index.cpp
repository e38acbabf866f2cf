#include "kv/prefix_index.h"

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace tael::kv {
namespace {

constexpr uint32_t kTokens = kernels::kBlockTokens;
// Almost all prompts begin with the same few tokens: less of a first row is not worth a copy.
constexpr uint32_t kLeastOfFirstRow = 8;

PrefixRows::Tokens RowOf(std::span<const TokenId> tokens, size_t row) {
  return PrefixRows::Tokens(tokens.data() + row * kTokens, kTokens);
}

// What a row costs whose windowed blocks have been dropped; where all groups have windows, what a
// whole one costs. Decides how many rows there can be.
uint64_t LeastRowBytes(const Geometry& geometry) {
  uint64_t bytes = 0;
  for (const LayerGroup& group : geometry.groups) {
    if (group.shape.window == 0) bytes += group.block_bytes;
  }
  return bytes > 0 ? bytes : geometry.RowBytes();
}

uint64_t HeapBytes(uint32_t max_rows, size_t num_groups) {
  return PrefixRows::HeapBytes(max_rows) +
         uint64_t{max_rows} * (num_groups * sizeof(BlockId) + sizeof(uint32_t));
}

}  // namespace

Result<std::unique_ptr<PrefixIndex>> PrefixIndex::Create(mem::MemoryBudget& budget,
                                                         const Geometry& geometry, BlockPool& pool,
                                                         const PrefixIndexOptions& options) {
  const uint64_t most = std::min(options.max_bytes, pool.Stats().capacity_bytes);
  const uint64_t max_rows = std::min(most / LeastRowBytes(geometry), kMostRows);
  if (max_rows == 0) {
    return Error{ErrorCode::kInvalidArgument, "the prefix cache holds no row",
                 "its cap is " + FormatSize(most) + ", " + std::to_string(kTokens) +
                     " tokens take " + FormatSize(LeastRowBytes(geometry)) +
                     "; give it more, or turn it off"};
  }
  const uint64_t heap_bytes = HeapBytes(static_cast<uint32_t>(max_rows), geometry.groups.size());
  TAEL_ASSIGN_OR_RETURN(auto heap, budget.ReserveHeap(mem::MemoryTag::kPrefix, heap_bytes));
  std::unique_ptr<PrefixIndex> index(
      new PrefixIndex(geometry, pool, options, static_cast<uint32_t>(max_rows)));
  index->heap_ = std::move(heap);
  index->UpdateHeap();
  return index;
}

PrefixIndex::PrefixIndex(const Geometry& geometry, BlockPool& pool,
                         const PrefixIndexOptions& options, uint32_t max_rows)
    : geometry_(geometry),
      pool_(pool),
      max_bytes_(options.max_bytes),
      rows_(max_rows, options.hash),
      row_(geometry.groups.size()) {
  blocks_.reserve(max_rows * geometry.groups.size());
  path_.reserve(max_rows);
}

// Tells the ledger how much of the index's own memory has been touched.
void PrefixIndex::UpdateHeap() {
  if (heap_.bytes() == 0) return;
  heap_.SetUsed(rows_.HeapBytesInUse() + blocks_.size() * sizeof(BlockId) +
                uint64_t{rows_.num_places()} * sizeof(uint32_t));
}

std::span<const BlockId> PrefixIndex::blocks(uint32_t row) const {
  const size_t num_groups = geometry_.groups.size();
  return std::span(blocks_).subspan(row * num_groups, num_groups);
}

std::span<BlockId> PrefixIndex::mutable_blocks(uint32_t row) {
  const size_t num_groups = geometry_.groups.size();
  return std::span(blocks_).subspan(row * num_groups, num_groups);
}

// ---- finding ----

void PrefixIndex::Walk(std::span<const TokenId> tokens, uint64_t salt) {
  path_.clear();
  uint32_t parent = kNoRow;
  for (size_t row = 0; (row + 1) * kTokens <= tokens.size(); ++row) {
    const uint32_t id = rows_.Find(parent, salt, RowOf(tokens, row));
    if (id == kNoRow) return;
    path_.push_back(id);
    parent = id;
  }
}

// The last row first, so that each row is more recently used than those that follow it.
void PrefixIndex::TouchPath(bool hit) {
  for (size_t i = path_.size(); i-- > 0;) rows_.Touch(path_[i], hit);
}

// Adds the row to path_ that begins as `tokens` go on after it; returns how much of it is the same.
uint32_t PrefixIndex::WalkIntoRow(std::span<const TokenId> tokens, uint64_t salt) {
  const uint32_t parent = path_.empty() ? kNoRow : path_.back();
  const PrefixRows::Beginning found =
      rows_.FindBeginning(parent, salt, tokens.subspan(path_.size() * kTokens));
  if (found.num_tokens < (parent == kNoRow ? kLeastOfFirstRow : 1)) return 0;
  path_.push_back(found.row);
  return found.num_tokens;
}

// Whether the rows of path_ hold every block that the sequence needs to go on at `length`, which is
// in the last of them or at its end. The last ones first: windows end there.
bool PrefixIndex::Covers(uint32_t length, const Sequence& sequence) const {
  for (size_t row = path_.size(); row-- > 0;) {
    const std::span<const BlockId> held = blocks(path_[row]);
    for (size_t i = 0; i < held.size(); ++i) {
      const GroupId group{static_cast<uint32_t>(i)};
      if (held[i] != kNullBlock) continue;
      if (sequence.Needs(group, static_cast<uint32_t>(row), length)) return false;
    }
  }
  return true;
}

uint32_t PrefixIndex::Adopt(std::span<const TokenId> tokens, uint64_t salt, uint32_t most,
                            Sequence& empty) {
  TAEL_CHECK(empty.length() == 0 && empty.bytes_in_use() == 0);
  ++stats_.lookups;
  if (empty.has_tail()) return 0;  // rows do not say what attention their tokens got
  most = std::min(most, empty.first_of_its_own());
  const auto wanted = tokens.first(std::min<size_t>(tokens.size(), most));
  Walk(wanted, salt);
  auto length = static_cast<uint32_t>(path_.size() * kTokens);
  length += WalkIntoRow(wanted, salt);
  while (!path_.empty() && !Covers(length, empty)) {
    path_.pop_back();
    length = static_cast<uint32_t>(path_.size() * kTokens);
  }
  if (path_.empty()) return 0;
  for (size_t row = 0; row < path_.size(); ++row) {
    std::ranges::copy(blocks(path_[row]), row_.begin());
    for (size_t i = 0; i < row_.size(); ++i) {
      const GroupId group{static_cast<uint32_t>(i)};
      if (!empty.Needs(group, static_cast<uint32_t>(row), length)) row_[i] = kNullBlock;
    }
    const auto before = static_cast<uint32_t>(row * kTokens);
    empty.AppendShared(row_, std::min(kTokens, length - before));
  }
  TouchPath(true);
  ++stats_.hits;
  stats_.hit_tokens += length;
  return length;
}

uint32_t PrefixIndex::Pin(std::span<const TokenId> tokens, uint64_t salt) {
  Walk(tokens, salt);
  for (const uint32_t row : path_) rows_.Pin(row);
  return static_cast<uint32_t>(path_.size() * kTokens);
}

void PrefixIndex::Unpin(std::span<const TokenId> tokens, uint64_t salt) {
  Walk(tokens, salt);
  for (const uint32_t row : path_) {
    if (rows_[row].num_pins > 0) rows_.Unpin(row);  // Clear() may have come between
  }
}

// ---- adding ----

void PrefixIndex::Publish(std::span<const TokenId> tokens, uint64_t salt,
                          const Sequence& sequence) {
  if (tokens.size() / kTokens * LeastRowBytes(geometry_) > max_bytes_) {
    ++stats_.refused;
    return;
  }
  const size_t num_rows = std::min<size_t>(tokens.size(), sequence.intact_tokens()) / kTokens;
  Walk(tokens.first(num_rows * kTokens), salt);
  // A pin on the last row keeps the whole path while room is made: the others have one behind them.
  uint32_t last = path_.empty() ? kNoRow : path_.back();
  if (last != kNoRow) rows_.Pin(last);
  for (size_t row = 0; row < path_.size(); ++row) FillRow(path_[row], row, sequence);
  while (path_.size() < num_rows) {
    const uint32_t id = AddRow(last, salt, tokens, path_.size(), sequence);
    if (id == kNoRow) break;
    rows_.Pin(id);
    if (last != kNoRow) rows_.Unpin(last);
    path_.push_back(id);
    last = id;
  }
  if (last != kNoRow) rows_.Unpin(last);
  TouchPath(false);
}

uint32_t PrefixIndex::AddRow(uint32_t parent, uint64_t salt, std::span<const TokenId> tokens,
                             size_t row, const Sequence& sequence) {
  for (size_t i = 0; i < row_.size(); ++i) {
    row_[i] = sequence.table(GroupId{static_cast<uint32_t>(i)})[row];
  }
  const uint64_t bytes = BytesOf(row_);
  if (!MakeRoom(bytes, 1)) return kNoRow;
  const uint32_t id = rows_.AddNewest(parent, salt, RowOf(tokens, row));
  for (const BlockId block : row_) {
    if (block != kNullBlock) pool_.AddRef(block);
  }
  Place(id, row_, bytes);
  return id;
}

uint64_t PrefixIndex::BytesOf(std::span<const BlockId> row) const {
  uint64_t bytes = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] != kNullBlock) bytes += block_bytes(i);
  }
  return bytes;
}

// The blocks of a row that rows_ has just got; their references are the index's already.
void PrefixIndex::Place(uint32_t id, std::span<const BlockId> row, uint64_t bytes) {
  blocks_.resize(size_t{rows_.num_places()} * row.size(), kNullBlock);
  std::ranges::copy(row, mutable_blocks(id).begin());
  bytes_ += bytes;
  UpdateHeap();
}

// Blocks that the row has lost, or never had, and the sequence holds.
void PrefixIndex::FillRow(uint32_t id, size_t row, const Sequence& sequence) {
  for (size_t i = 0; i < row_.size(); ++i) {
    const BlockId block = sequence.table(GroupId{static_cast<uint32_t>(i)})[row];
    if (block == kNullBlock || blocks(id)[i] != kNullBlock) continue;
    if (!MakeRoom(block_bytes(i), 0)) continue;
    pool_.AddRef(block);
    mutable_blocks(id)[i] = block;
    bytes_ += block_bytes(i);
  }
}

uint32_t PrefixIndex::FindRow(uint32_t parent, uint64_t salt, PrefixRows::Tokens tokens) {
  return rows_.Find(parent, salt, tokens);
}

uint32_t PrefixIndex::Restore(uint32_t parent, uint64_t salt, PrefixRows::Tokens tokens, bool hit,
                              std::span<const BlockId> row) {
  const uint64_t bytes = BytesOf(row);
  if (rows_.full() || bytes > max_bytes_ - bytes_) return kNoRow;
  const uint32_t id =
      rows_.AddOldest(parent, salt, tokens, hit && (parent == kNoRow || rows_[parent].hit));
  Place(id, row, bytes);
  return id;
}

// ---- giving back ----

// Makes the cap hold with so many bytes and rows (0 or 1) more, if it can.
bool PrefixIndex::MakeRoom(uint64_t bytes, uint32_t num_rows) {
  if (bytes > max_bytes_) return false;  // nothing that could be evicted would help
  const auto fits = [&](uint64_t) {
    return bytes_ <= max_bytes_ - bytes && (num_rows == 0 || !rows_.full());
  };
  GiveBackUntil(fits);
  return fits(0);
}

uint64_t PrefixIndex::Evict(uint64_t bytes) {
  return GiveBackUntil([&](uint64_t given_back) { return given_back >= bytes; });
}

// Least valuable rows first. One pass is enough: when the last row of a chain is gone, the one
// before it comes later.
template <class Enough>
uint64_t PrefixIndex::GiveBackUntil(const Enough& enough) {
  uint64_t given_back = 0;
  for (const bool hit : {false, true}) {
    for (uint32_t row = rows_.oldest(hit); row != kNoRow && !enough(given_back);) {
      const uint32_t next = rows_.newer(row);
      given_back += GiveBack(row);
      row = next;
    }
  }
  return given_back;
}

uint64_t PrefixIndex::GiveBack(uint32_t row) {
  if (rows_[row].num_pins > 0) return 0;
  const uint64_t before = bytes_;
  if (rows_[row].num_children == 0 && IsIdle(row)) {
    Remove(row);
    ++stats_.evicted;
  } else {
    for (size_t i = 0; i < row_.size(); ++i) {
      BlockId& block = mutable_blocks(row)[i];
      if (geometry_.groups[i].shape.window == 0 || block == kNullBlock) continue;
      if (pool_.refs(block) == 1) ReleaseBlock(i, block);
    }
  }
  return before - bytes_;
}

bool PrefixIndex::IsIdle(uint32_t row) const {
  return std::ranges::all_of(
      blocks(row), [&](BlockId block) { return block == kNullBlock || pool_.refs(block) == 1; });
}

void PrefixIndex::ReleaseBlock(size_t group, BlockId& block) {
  pool_.Release(block);
  block = kNullBlock;
  bytes_ -= block_bytes(group);
}

void PrefixIndex::Remove(uint32_t row) {
  rows_.Remove(row);
  for (size_t i = 0; i < row_.size(); ++i) {
    BlockId& block = mutable_blocks(row)[i];
    if (block != kNullBlock) ReleaseBlock(i, block);
  }
}

void PrefixIndex::Clear() {
  for (const bool hit : {false, true}) {
    for (uint32_t row = rows_.oldest(hit); row != kNoRow;) {
      const uint32_t next = rows_.newer(row);
      while (rows_[row].num_pins > 0) rows_.Unpin(row);
      Remove(row);
      row = next;
    }
  }
}

// ---- accounts ----

void PrefixIndex::Follow(std::span<const BlockPool::Move> moves) {
  if (moves.empty()) return;
  for (BlockId& id : blocks_) id = BlockPool::After(moves, id);
}

PrefixStats PrefixIndex::Stats() const {
  PrefixStats stats = stats_;
  stats.rows = rows_.size();
  stats.bytes = bytes_;
  stats.rejected_hits = rows_.num_rejected();
  for (uint32_t row = 0; row < rows_.num_places(); ++row) {
    if (!rows_[row].held || rows_[row].num_pins > 0) continue;
    for (size_t i = 0; i < row_.size(); ++i) {
      const BlockId block = blocks(row)[i];
      if (block != kNullBlock && pool_.refs(block) == 1) stats.idle_bytes += block_bytes(i);
    }
  }
  return stats;
}

bool PrefixIndex::CheckInvariants() const {
  uint64_t bytes = 0;
  for (uint32_t row = 0; row < rows_.num_places(); ++row) {
    for (size_t i = 0; i < row_.size(); ++i) {
      const BlockId block = blocks(row)[i];
      if (block == kNullBlock) continue;
      if (!rows_[row].held || pool_.refs(block) == 0) return false;
      bytes += block_bytes(i);
    }
  }
  return bytes == bytes_ && bytes_ <= max_bytes_ && rows_.IsSound();
}

}  // namespace tael::kv
