#include "kv/sequence.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "kv/slot_copy.h"
#include "kv/slot_merge.h"

namespace tael::kv {
namespace {

constexpr uint32_t kTokens = kernels::kBlockTokens;

Window UsualWindow(const LayerShape& shape) {
  return shape.window == 0 ? Window{} : Window{shape.window, shape.sinks, shape.tail};
}

}  // namespace

Sequence::Sequence(const Geometry& geometry, BlockPool& pool)
    : geometry_(&geometry),
      pool_(&pool),
      tables_(geometry.groups.size()),
      requests_(geometry.groups.size()) {
  for (size_t i = 0; i < tables_.size(); ++i) {
    const LayerShape& shape = geometry.groups[i].shape;
    if (shape.tail == 0) continue;
    tables_[i].scores.assign(geometry.groups[i].layers.size(),
                             TailScores(MostSlots(shape), shape.merges));
  }
}

Sequence::Sequence(Sequence&& other) noexcept
    : geometry_(other.geometry_),
      pool_(other.pool_),
      tables_(std::exchange(other.tables_, {})),
      requests_(std::exchange(other.requests_, {})),
      length_(std::exchange(other.length_, 0)),
      limits_(std::exchange(other.limits_, {})) {}

Sequence& Sequence::operator=(Sequence&& other) noexcept {
  if (this == &other) return *this;
  ReleaseAll();
  geometry_ = other.geometry_;
  pool_ = other.pool_;
  tables_ = std::exchange(other.tables_, {});
  requests_ = std::exchange(other.requests_, {});
  length_ = std::exchange(other.length_, 0);
  limits_ = std::exchange(other.limits_, {});
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
  for (size_t i = table.blocks.size(); i-- > first_block;) {
    if (table.bases[i] != nullptr) pool_->Release(table.blocks[i]);
  }
  table.blocks.resize(first_block);
  table.bases.resize(first_block);
  table.gap_begin = std::min(table.gap_begin, static_cast<uint32_t>(first_block));
  table.gap_end = std::min(table.gap_end, static_cast<uint32_t>(first_block));
  if (!table.has_gap()) table.gap_begin = table.gap_end = 0;
}

void Sequence::ReserveTables(uint32_t max_tokens) {
  for (size_t i = 0; i < tables_.size(); ++i) {
    const uint32_t most_copies = 1 + geometry_->groups[i].shape.tail / kTokens;  // of one Extend()
    tables_[i].blocks.reserve(CeilDiv(max_tokens, kTokens) + most_copies);
    tables_[i].bases.reserve(CeilDiv(max_tokens, kTokens));
  }
}

bool Sequence::SharesLastBlock(GroupId group) const {
  return length_ % kTokens != 0 && pool_->refs(table(group)[length_ / kTokens]) > 1;
}

// The blocks that somebody else holds too and that are going to be written until `end` tokens are
// committed, in order.
template <class Visit>
void Sequence::VisitShared(size_t group, uint32_t end, const Visit& visit) const {
  if (end == length_) return;
  const GroupId id{static_cast<uint32_t>(group)};
  if (Chooses(group, end)) {
    const GroupTable& table = tables_[group];
    const Window w = window(id);
    const size_t have = table.bases.size();  // what this pass brings is nobody else's
    const size_t last = std::min<size_t>(have, (w.tail_begin() + w.tail) / kTokens);
    for (size_t block = w.tail_begin() / kTokens; block < last; ++block) {
      if (pool_->refs(table.blocks[block]) > 1) visit(block);
    }
  }
  if (SharesLastBlock(id)) visit(length_ / kTokens);
}

// A request is one run of blocks: first the copies that there have to be, which then take the
// places of what they were made from.
Status Sequence::Extend(uint32_t num_tokens) {
  const std::optional<uint32_t> end = CheckedAdd(length_, num_tokens);
  if (!end)
    return Error{ErrorCode::kContextExceeded, "a sequence holds at most 2^32 - 1 tokens", {}};
  if (num_tokens > 0) Compress();
  const size_t num_blocks = CeilDiv(*end, kTokens);
  for (size_t i = 0; i < tables_.size(); ++i) {
    std::vector<BlockId>& blocks = tables_[i].blocks;
    const size_t have = blocks.size();
    const BlockId last = have > 0 ? blocks.back() : kNullBlock;
    const auto group = static_cast<uint32_t>(i);
    size_t num_copies = 0;
    VisitShared(i, *end, [&num_copies](size_t) { ++num_copies; });
    blocks.resize(std::max(have, num_blocks) + num_copies, kNullBlock);
    requests_[i] = {SizeClass{group}, last, std::span(blocks).subspan(have)};
  }
  const Status status = pool_->Allocate(requests_);
  for (size_t i = 0; i < tables_.size(); ++i) {
    GroupTable& table = tables_[i];
    if (!status) table.blocks.resize(table.bases.size());
    if (status) TakeCopies(i, *end);
    for (size_t b = table.bases.size(); b < table.blocks.size(); ++b) {
      table.bases.push_back(pool_->data(table.blocks[b]));
    }
    for (TailScores& scores : table.scores) scores.BeginPass();
  }
  if (status) BeginObserving(*end);
  return status;
}

// Puts the copies, which lie behind the table's blocks, in their places. All of a block is copied:
// keys are stored transposed, so that those of the first few tokens are spread over all of it.
void Sequence::TakeCopies(size_t group, uint32_t end) {
  GroupTable& table = tables_[group];
  const auto first = table.blocks.begin() + static_cast<ptrdiff_t>(table.bases.size());
  auto copy = first;
  VisitShared(group, end, [&](size_t block) {
    const BlockId from = table.blocks[block], to = *copy++;
    std::memcpy(pool_->data(to), pool_->data(from), geometry_->groups[group].block_bytes);
    table.blocks[block] = to;
    table.bases[block] = pool_->data(to);
    pool_->Release(from);
  });
  table.blocks.erase(first, copy);
}

void Sequence::Commit(uint32_t num_tokens) {
  for (const GroupTable& table : tables_) {
    TAEL_CHECK(uint64_t{length_} + num_tokens <= uint64_t{table.blocks.size()} * kTokens);
  }
  TAEL_CHECK(num_tokens <= MostAtOnce());
  const uint32_t first = first_of_its_own();
  if (first < length_ + num_tokens) limits_.intact = std::min(limits_.intact, first);
  length_ += num_tokens;
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (num_tokens > 0) {
      for (TailScores& scores : tables_[i].scores) scores.EndPass(num_tokens);
      tables_[i].prompt.EndPass();
      if (Chooses(i, length_)) Choose(i);
    }
    DropHidden(i);
  }
}

bool Sequence::has_tail() const {
  return std::ranges::any_of(geometry_->groups,
                             [](const LayerGroup& group) { return group.shape.tail != 0; });
}

uint32_t Sequence::MostAtOnce() const {
  uint32_t most = observes() ? limits_.compression.at - length_ : UINT32_MAX;
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (geometry_->groups[i].shape.tail == 0) continue;
    const Window w = window(GroupId{static_cast<uint32_t>(i)});
    const uint32_t first = w.tail != 0 ? w.first_choice() : 0;
    most = std::min(most, length_ < first ? first - length_ : kTokens - length_ % kTokens);
  }
  return most;
}

// Whether a tail is chosen anew when the sequence comes to be of this length.
bool Sequence::Chooses(size_t group, uint32_t length) const {
  const Window w = window(GroupId{static_cast<uint32_t>(group)});
  return w.tail != 0 && length % kTokens == 0 && length >= w.first_choice();
}

// The block that the next query does not see any more gives its best tokens to the tail.
void Sequence::Choose(size_t group) {
  GroupTable& table = tables_[group];
  const Window w = window(GroupId{static_cast<uint32_t>(group)});
  const TailScores::Tail tail{w.tail_begin(), w.tail_begin() + w.tail};
  const uint32_t leaving = table.has_gap() ? table.gap_end : tail.end / kTokens;
  const uint32_t oldest = length_ - std::min(length_, geometry_->reach);
  for (size_t layer = 0; layer < table.scores.size(); ++layer) {
    TailScores& scores = table.scores[layer];
    if (!table.has_gap()) scores.BeginTail(tail, tail.begin);
    const TailScores::Choice choice = scores.Choose(tail, leaving * kTokens, oldest);
    if (!choice.parts().empty()) MergeLosers(group, layer, leaving, choice);
    for (const TailScores::Move& move : choice.moves()) {
      std::byte* to = MutableBlock(GroupId{static_cast<uint32_t>(group)}, move.to);
      CopySlot(geometry_->groups[group], layer, table.bases[leaving], move.from % kTokens, to,
               move.to % kTokens);
    }
  }
}

// Parts lie in the tail, or in the block that leaves it room.
void Sequence::MergeLosers(size_t group, size_t layer, uint32_t leaving,
                           const TailScores::Choice& choice) {
  const GroupTable& table = tables_[group];
  const LayerGroup& layers = geometry_->groups[group];
  const Window w = window(GroupId{static_cast<uint32_t>(group)});
  std::array<SlotPart, kTokens + 1> parts;
  for (size_t i = 0; i < choice.num_parts; ++i) {
    const auto& [slot, weight, shift] = choice.merged[i];
    const bool in_tail = slot < w.tail_begin() + w.tail;
    parts[i] = {table.bases[in_tail ? slot / kTokens : leaving], slot % kTokens, weight, shift};
  }
  MergeSlots(layers, layer, geometry_->rotations[layers.layers[layer]],
             std::span(parts).first(choice.num_parts),
             MutableBlock(GroupId{static_cast<uint32_t>(group)}, choice.to), choice.to % kTokens);
}

// The first token from length() on that sees another part of the text than the geometry says.
uint32_t Sequence::FirstOfItsOwn(size_t group) const {
  const GroupId id{static_cast<uint32_t>(group)};
  const Window usual = UsualWindow(geometry_->groups[group].shape);
  const Window now = window(id);
  if (tables_[group].horizon > usual.FirstVisible(length_)) return length_;
  return now == usual ? UINT32_MAX : std::max(length_, now.tokens);
}

uint32_t Sequence::first_of_its_own() const {
  uint32_t first = UINT32_MAX;
  for (size_t i = 0; i < tables_.size(); ++i) first = std::min(first, FirstOfItsOwn(i));
  return first;
}

void Sequence::DropBlock(GroupTable& table, size_t block) {
  pool_->Release(table.blocks[block]);
  table.blocks[block] = kNullBlock;
  table.bases[block] = nullptr;
}

// Widens the gap to all blocks that the next query does not see.
void Sequence::DropHidden(size_t group) {
  const GroupId id{static_cast<uint32_t>(group)};
  GroupTable& table = tables_[group];
  const Window w = window(id);
  const uint32_t begin = (w.tail_begin() + w.tail) / kTokens + table.kept;
  const uint32_t end = FirstVisible(id, length_) / kTokens;
  if (!table.has_gap()) {
    if (end <= begin) return;
    table.gap_begin = table.gap_end = begin;
  }
  while (table.gap_end < end) DropBlock(table, table.gap_end++);
  while (table.gap_begin > begin) DropBlock(table, --table.gap_begin);
}

void Sequence::PinFirst(uint32_t tokens) {
  TAEL_CHECK(length_ == 0);
  limits_.pinned = tokens;
}

void Sequence::LimitWindow(uint32_t tokens) {
  if (tokens == limits_.window) return;
  ForgetCompression();
  for (size_t i = 0; i < tables_.size(); ++i) {
    tables_[i].horizon = FirstVisible(GroupId{static_cast<uint32_t>(i)}, length_);
    const bool narrows = tokens != 0 && tokens < geometry_->groups[i].shape.window;
    tables_[i].tail_is_lost = tables_[i].tail_is_lost || narrows;
    if (tokens != 0) tables_[i].kept = tables_[i].in_place = 0;
  }
  limits_.window = tokens;
  for (size_t i = 0; i < tables_.size(); ++i) DropHidden(i);
}

Window Sequence::window(GroupId group) const {
  const GroupTable& table = tables_[static_cast<size_t>(group)];
  Window out = UsualWindow(geometry_->group(group).shape);
  uint32_t most_pinned = UINT32_MAX;
  if (out.tail != 0) most_pinned = out.tokens - out.tail - Window::kLeastRecent;
  if (table.tail_is_lost) out.tail = 0;
  if (limits_.window != 0 && (out.tokens == 0 || limits_.window < out.tokens)) {
    out.tokens = limits_.window;
  }
  if (out.tokens == 0) return {};
  const uint32_t pinned = std::min({limits_.pinned, out.tokens / 2, most_pinned});
  if (out.sinks != 0) out.sinks = std::max(out.sinks, pinned);
  if (table.has_gap()) out.sinks = std::min(out.sinks, table.gap_begin * kTokens);
  out.sinks = std::min(out.sinks, out.tokens - 1);
  return out;
}

uint32_t Sequence::FirstVisible(GroupId group, uint32_t position) const {
  return std::max(window(group).FirstVisible(position),
                  tables_[static_cast<size_t>(group)].horizon);
}

uint32_t Sequence::hidden_tokens() const {
  uint32_t hidden = length_;
  for (size_t i = 0; i < tables_.size() && hidden > 0; ++i) {
    const GroupId group{static_cast<uint32_t>(i)};
    const uint32_t first = FirstVisible(group, length_ - 1);
    const Window w = window(group);
    const uint32_t kept = w.sinks + w.tail + tables_[i].kept * kTokens;
    hidden = std::min(hidden, first - std::min(first, kept));
  }
  return hidden;
}

uint32_t Sequence::intact_tokens() const {
  return has_tail() ? 0 : std::min(length_, limits_.intact);
}

// Whether the query at `length` finds what its window shows.
bool Sequence::Sees(size_t group, uint32_t length) const {
  const GroupTable& table = tables_[group];
  const Window w = window(GroupId{static_cast<uint32_t>(group)});
  if (w.tail != 0 && length > w.sinks) return false;  // scores cannot forget what came behind
  const uint32_t first = w.FirstVisible(length);
  if (table.kept != 0) {
    return length <= table.in_place * kTokens || length >= limits_.compressed_at;
  }
  if (first >= length) return true;
  if (table.has_gap() && length <= table.gap_begin * kTokens) return true;
  return first >= table.horizon && (!table.has_gap() || first / kTokens >= table.gap_end);
}

bool Sequence::CanTruncate(uint32_t length) const {
  if (length >= length_) return length == length_;
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (!Sees(i, length)) return false;
  }
  return true;
}

void Sequence::Truncate(uint32_t length) {
  TAEL_CHECK(CanTruncate(length));
  if (length < length_) ForgetCompression();
  for (size_t i = tables_.size(); i-- > 0;) {
    ReleaseFrom(i, CeilDiv(length, kTokens));
    if (length < length_) {
      for (TailScores& scores : tables_[i].scores) scores.Forget();
    }
    if (length < tables_[i].horizon) tables_[i].horizon = tables_[i].kept = 0;
    if (length == 0 && limits_.window == 0) tables_[i].tail_is_lost = false;
  }
  length_ = length;
  if (length <= limits_.intact) limits_.intact = UINT32_MAX;
}

Sequence Sequence::Fork() const {
  Sequence fork(*geometry_, *pool_);
  const size_t num_blocks = CeilDiv(length_, kTokens);
  for (size_t i = 0; i < tables_.size(); ++i) {
    const GroupTable& table = tables_[i];
    const auto end = static_cast<ptrdiff_t>(num_blocks);
    fork.tables_[i] = {.blocks = {table.blocks.begin(), table.blocks.begin() + end},
                       .bases = {table.bases.begin(), table.bases.begin() + end},
                       .gap_begin = table.gap_begin,
                       .gap_end = table.gap_end,
                       .horizon = table.horizon,
                       .scores = table.scores,
                       .tail_is_lost = table.tail_is_lost,
                       .prompt = table.prompt,
                       .kept = table.kept,
                       .in_place = table.in_place};
    for (size_t b = 0; b < num_blocks; ++b) {
      if (table.bases[b] != nullptr) pool_->AddRef(table.blocks[b]);
    }
  }
  fork.length_ = length_;
  fork.limits_ = limits_;
  return fork;
}

void Sequence::AppendShared(std::span<const BlockId> row, uint32_t num_tokens) {
  TAEL_CHECK(row.size() == tables_.size() && length_ % kTokens == 0);
  TAEL_CHECK(num_tokens > 0 && num_tokens <= kTokens);
  for (size_t i = 0; i < tables_.size(); ++i) {
    GroupTable& table = tables_[i];
    TAEL_CHECK(table.blocks.size() == length_ / kTokens);
    if (row[i] == kNullBlock) {
      const auto end = static_cast<uint32_t>(table.blocks.size());
      if (!table.has_gap()) table.gap_begin = table.gap_end = end;
      TAEL_CHECK(table.gap_end == end);
      ++table.gap_end;
    } else {
      pool_->AddRef(row[i]);
    }
    table.blocks.push_back(row[i]);
    table.bases.push_back(row[i] == kNullBlock ? nullptr : pool_->data(row[i]));
  }
  length_ += num_tokens;
}

bool Sequence::Needs(GroupId group, uint32_t block, uint32_t length) const {
  return block < CeilDiv(window(group).sinks, kTokens) ||
         block >= FirstVisible(group, length) / kTokens;
}

void Sequence::Follow(std::span<const BlockPool::Move> moves) {
  if (moves.empty()) return;
  for (GroupTable& table : tables_) {
    for (size_t i = 0; i < table.blocks.size(); ++i) {
      if (table.blocks[i] == kNullBlock) continue;
      table.blocks[i] = BlockPool::After(moves, table.blocks[i]);
      table.bases[i] = pool_->data(table.blocks[i]);
    }
  }
}

Sequence::View Sequence::Blocks(GroupId group) const {
  const GroupTable& table = tables_[static_cast<size_t>(group)];
  const std::span bases(table.bases);
  const Window w = window(group);
  const size_t pinned = w.tail_begin() / kTokens;
  const size_t tail = table.has_gap() ? w.tail / kTokens + table.kept : 0;
  return {.sinks = bases.first(std::min(pinned, bases.size())),
          .tail = tail != 0 ? bases.subspan(pinned, tail) : bases.first(0),
          .blocks = bases.subspan(table.gap_end),
          .first_token = table.gap_end * kTokens,
          .tail_slot = w.tail_begin(),
          .first_slot = table.gap_begin * kTokens,
          .window = w,
          .horizon = table.horizon};
}

std::span<int64_t> Sequence::Masses(GroupId group, size_t index) {
  if (window(group).tail == 0) return {};
  return tables_[static_cast<size_t>(group)].scores[index].masses();
}

std::span<const int64_t> Sequence::Masses(GroupId group, size_t index) const {
  if (window(group).tail == 0) return {};
  return tables_[static_cast<size_t>(group)].scores[index].masses();
}

std::span<const uint32_t> Sequence::TailPositions(GroupId group, size_t index) const {
  const Window w = window(group);
  const GroupTable& table = tables_[static_cast<size_t>(group)];
  if (w.tail == 0 || !table.has_gap()) return {};
  return table.scores[index].positions({w.tail_begin(), w.tail_begin() + w.tail});
}

std::span<const float> Sequence::TailBiases(GroupId group, size_t index) const {
  if (window(group).tail == 0) return {};
  return tables_[static_cast<size_t>(group)].scores[index].biases();
}

std::byte* Sequence::MutableBlock(GroupId group, uint32_t token) const {
  const GroupTable& table = tables_[static_cast<size_t>(group)];
  const uint32_t block = token / kTokens;
  TAEL_CHECK(block < table.blocks.size() && table.bases[block] != nullptr);
  TAEL_CHECK(pool_->refs(table.blocks[block]) == 1);  // nobody writes what others read
  return pool_->data(table.blocks[block]);
}

std::span<const BlockId> Sequence::table(GroupId group) const {
  return tables_[static_cast<size_t>(group)].blocks;
}

uint64_t Sequence::bytes_in_use() const {
  uint64_t bytes = 0;
  for (size_t i = 0; i < tables_.size(); ++i) {
    const uint64_t dropped = tables_[i].gap_end - tables_[i].gap_begin;
    const uint64_t live = tables_[i].blocks.size() - dropped;
    bytes += live * geometry_->groups[i].block_bytes;
  }
  return bytes;
}

}  // namespace tael::kv
