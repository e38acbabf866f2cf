#include "kv/sequence.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"

namespace tael::kv {
namespace {

constexpr uint32_t kTokens = kernels::kBlockTokens;

// The first token that the query at position `length` sees; window 0 sees everything.
uint32_t FirstVisible(uint32_t length, uint32_t window) {
  return window == 0 || length < window ? 0 : length - window + 1;
}

}  // namespace

Sequence::Sequence(const Geometry& geometry, BlockPool& pool)
    : geometry_(&geometry),
      pool_(&pool),
      tables_(geometry.groups.size()),
      requests_(geometry.groups.size()) {}

Sequence::Sequence(Sequence&& other) noexcept
    : geometry_(other.geometry_),
      pool_(other.pool_),
      tables_(std::exchange(other.tables_, {})),
      requests_(std::exchange(other.requests_, {})),
      length_(std::exchange(other.length_, 0)) {}

Sequence& Sequence::operator=(Sequence&& other) noexcept {
  if (this == &other) return *this;
  ReleaseAll();
  geometry_ = other.geometry_;
  pool_ = other.pool_;
  tables_ = std::exchange(other.tables_, {});
  requests_ = std::exchange(other.requests_, {});
  length_ = std::exchange(other.length_, 0);
  return *this;
}

Sequence::~Sequence() { ReleaseAll(); }

void Sequence::ReleaseAll() {
  for (size_t i = tables_.size(); i-- > 0;) ReleaseFrom(i, 0);
}

// Cuts a table to `first_block` entries. Last first: the front of a sequence is what others share.
void Sequence::ReleaseFrom(size_t group, size_t first_block) {
  GroupTable& table = tables_[group];
  if (table.blocks.size() <= first_block) return;
  const size_t first_live = std::max<size_t>(first_block, table.num_dropped);
  for (size_t i = table.blocks.size(); i-- > first_live;) pool_->Release(table.blocks[i]);
  table.blocks.resize(first_block);
  table.bases.resize(first_block);
  table.num_dropped = std::min(table.num_dropped, static_cast<uint32_t>(first_block));
}

void Sequence::ReserveTables(uint32_t max_tokens) {
  for (GroupTable& table : tables_) {
    table.blocks.reserve(CeilDiv(max_tokens, kTokens));
    table.bases.reserve(CeilDiv(max_tokens, kTokens));
  }
}

Status Sequence::Extend(uint32_t num_tokens) {
  const std::optional<uint32_t> end = CheckedAdd(length_, num_tokens);
  if (!end)
    return Error{ErrorCode::kContextExceeded, "a sequence holds at most 2^32 - 1 tokens", {}};
  const size_t num_blocks = CeilDiv(*end, kTokens);
  for (size_t i = 0; i < tables_.size(); ++i) {
    std::vector<BlockId>& blocks = tables_[i].blocks;
    const size_t have = blocks.size();
    const BlockId last = have > 0 ? blocks.back() : kNullBlock;
    if (have < num_blocks) blocks.resize(num_blocks, kNullBlock);
    requests_[i] = {SizeClass{static_cast<uint32_t>(i)}, last, std::span(blocks).subspan(have)};
  }
  const Status status = pool_->Allocate(requests_);
  for (size_t i = 0; i < tables_.size(); ++i) {
    GroupTable& table = tables_[i];
    if (!status) table.blocks.resize(table.bases.size());
    for (size_t b = table.bases.size(); b < table.blocks.size(); ++b) {
      table.bases.push_back(pool_->data(table.blocks[b]));
    }
  }
  return status;
}

void Sequence::Commit(uint32_t num_tokens) {
  for (const GroupTable& table : tables_) {
    TAEL_CHECK(uint64_t{length_} + num_tokens <= uint64_t{table.blocks.size()} * kTokens);
  }
  length_ += num_tokens;
  for (size_t i = 0; i < tables_.size(); ++i) {
    GroupTable& table = tables_[i];
    const uint32_t visible = FirstVisible(length_, geometry_->groups[i].shape.window);
    while (table.num_dropped < visible / kTokens) {
      const uint32_t block = table.num_dropped++;
      pool_->Release(table.blocks[block]);
      table.blocks[block] = kNullBlock;
      table.bases[block] = nullptr;
    }
  }
}

bool Sequence::CanTruncate(uint32_t length) const {
  if (length > length_) return false;
  for (size_t i = 0; i < tables_.size(); ++i) {
    const uint32_t visible = FirstVisible(length, geometry_->groups[i].shape.window);
    if (visible < length && visible / kTokens < tables_[i].num_dropped) return false;
  }
  return true;
}

void Sequence::Truncate(uint32_t length) {
  TAEL_CHECK(CanTruncate(length));
  for (size_t i = tables_.size(); i-- > 0;) ReleaseFrom(i, CeilDiv(length, kTokens));
  length_ = length;
}

Sequence::View Sequence::Blocks(GroupId group) const {
  const GroupTable& table = tables_[static_cast<size_t>(group)];
  return {std::span(table.bases).subspan(table.num_dropped), table.num_dropped * kTokens};
}

std::byte* Sequence::MutableBlock(GroupId group, uint32_t token) const {
  const GroupTable& table = tables_[static_cast<size_t>(group)];
  const uint32_t block = token / kTokens;
  TAEL_CHECK(block >= table.num_dropped && block < table.blocks.size());
  return pool_->data(table.blocks[block]);
}

std::span<const BlockId> Sequence::table(GroupId group) const {
  return tables_[static_cast<size_t>(group)].blocks;
}

uint64_t Sequence::bytes_in_use() const {
  uint64_t bytes = 0;
  for (size_t i = 0; i < tables_.size(); ++i) {
    const uint64_t live = tables_[i].blocks.size() - tables_[i].num_dropped;
    bytes += live * geometry_->groups[i].block_bytes;
  }
  return bytes;
}

}  // namespace tael::kv
