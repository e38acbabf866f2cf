#include "kv/snapshot.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

namespace tael::kv {
namespace {

static_assert(std::endian::native == std::endian::little);  // structs go to the file as they are

// The line end in it finds copies that were made as if it were text.
constexpr std::array<char, 8> kMagic = {'T', 'A', 'E', 'L', 'K', 'V', '\r', '\n'};
constexpr uint32_t kVersion = 1;
struct FileHead {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t num_groups = 0;
  uint64_t file_bytes = 0;
  uint64_t num_rows = 0;
  std::array<uint64_t, 4> context{};
};
static_assert(sizeof(FileHead) == 64);

using RowHead = Snapshot::Row;
static_assert(sizeof(RowHead) == 88);

constexpr std::array<const char*, 4> kContextNames = {"model", "KV type", "rotation of positions",
                                                      "window"};

std::array<uint64_t, 4> HashesOf(const PrefixContext& context) {
  std::array<uint64_t, 4> hashes{};
  const std::array<const std::string*, 4> fields = {&context.model, &context.kv_type, &context.rope,
                                                    &context.window};
  for (size_t i = 0; i < fields.size(); ++i)
    hashes[i] = Hash64(fields[i]->data(), fields[i]->size());
  return hashes;
}

template <class T>
void Append(std::vector<std::byte>& bytes, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto* from = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), from, from + sizeof(T));
}

void AppendHash(std::vector<std::byte>& bytes) {
  Append(bytes, Hash64(bytes.data(), bytes.size()));
}

uint64_t BlockHash(const std::byte* block, size_t bytes, uint64_t key, size_t group) {
  return Hash64(block, bytes, key + group);
}

uint64_t FileHeadBytes(size_t num_groups) {
  return sizeof(FileHead) + (num_groups + 1) * sizeof(uint64_t);
}

uint64_t RowHeadBytes(size_t num_groups) { return sizeof(RowHead) + num_groups + sizeof(uint64_t); }

}  // namespace

// ---- saving ----

Snapshot::Snapshot(const PrefixIndex& index, const PrefixContext& context)
    : geometry_(&index.geometry()),
      pool_(&index.pool()),
      standstill_(index.pool()),
      context_(context),
      file_bytes_(FileHeadBytes(index.geometry().groups.size())) {}

Snapshot::~Snapshot() {
  for (const BlockId block : blocks_) {
    if (block != kNullBlock) pool_->Release(block);
  }
}

Result<Snapshot> Snapshot::Collect(const PrefixIndex& index, const PrefixContext& context,
                                   mem::MemoryBudget& budget, const SnapshotOptions& options) {
  const PrefixRows& rows = index.rows();
  Snapshot snapshot(index, context);
  const uint64_t row_bytes = sizeof(Row) + snapshot.geometry_->groups.size() * sizeof(BlockId);
  TAEL_ASSIGN_OR_RETURN(
      snapshot.memory_,
      budget.ReserveHeap(mem::MemoryTag::kSnapshot,
                         rows.size() * row_bytes + rows.num_places() * sizeof(uint32_t)));
  snapshot.rows_.reserve(rows.size());
  snapshot.blocks_.reserve(rows.size() * snapshot.geometry_->groups.size());
  std::vector<uint32_t> place_of(rows.num_places(), kNoRow);
  for (const bool hit : {true, false}) {
    for (uint32_t id = rows.newest(hit); id != kNoRow; id = rows.older(id)) {
      const std::span<const BlockId> blocks = index.blocks(id);
      const uint64_t bytes = snapshot.file_bytes_ + snapshot.BytesOf(blocks);
      if (bytes > options.max_file_bytes) return snapshot;
      const uint32_t parent = rows[id].parent;
      place_of[id] = static_cast<uint32_t>(snapshot.rows_.size());
      snapshot.Add(rows[id], parent == kNoRow ? kNoRow : place_of[parent], blocks);
      snapshot.file_bytes_ = bytes;
    }
  }
  return snapshot;
}

uint64_t Snapshot::BytesOf(std::span<const BlockId> blocks) const {
  uint64_t bytes = RowHeadBytes(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i] != kNullBlock) bytes += geometry_->groups[i].block_bytes + sizeof(uint64_t);
  }
  return bytes;
}

void Snapshot::Add(const PrefixRows::Row& row, uint32_t parent, std::span<const BlockId> blocks) {
  rows_.push_back(
      {.parent = parent, .hit = row.hit, .salt = row.salt, .key = row.key, .tokens = row.tokens});
  uint64_t present = 1;
  for (const BlockId block : blocks) {
    if (block != kNullBlock) pool_->AddRef(block);
    blocks_.push_back(block);
    present = present * 2 + (block != kNullBlock ? 1 : 0);
  }
  fingerprint_ += Hash64(&row.key, sizeof(row.key), present);
}

std::span<const BlockId> Snapshot::blocks(size_t row) const {
  const size_t num_groups = geometry_->groups.size();
  return std::span(blocks_).subspan(row * num_groups, num_groups);
}

Status Snapshot::Write(const std::string& path) const {
  TAEL_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  std::vector<std::byte> head;
  Append(head, FileHead{.num_groups = static_cast<uint32_t>(geometry_->groups.size()),
                        .file_bytes = file_bytes_,
                        .num_rows = rows_.size(),
                        .context = HashesOf(context_)});
  for (const LayerGroup& group : geometry_->groups) Append(head, uint64_t{group.block_bytes});
  AppendHash(head);
  TAEL_RETURN_IF_ERROR(file.Write(head.data(), head.size()));
  for (size_t row = 0; row < rows_.size(); ++row) TAEL_RETURN_IF_ERROR(WriteRow(row, file));
  return file.Commit();
}

Status Snapshot::WriteRow(size_t index, NewFile& file) const {
  const Row& row = rows_[index];
  std::vector<std::byte> head;
  Append(head, row);
  for (const BlockId block : blocks(index)) Append(head, std::byte{block != kNullBlock});
  AppendHash(head);
  TAEL_RETURN_IF_ERROR(file.Write(head.data(), head.size()));
  for (size_t i = 0; i < geometry_->groups.size(); ++i) {
    if (blocks(index)[i] == kNullBlock) continue;
    const std::byte* data = pool_->data(blocks(index)[i]);
    const size_t bytes = geometry_->groups[i].block_bytes;
    TAEL_RETURN_IF_ERROR(file.Write(data, bytes));
    const uint64_t hash = BlockHash(data, bytes, row.key, i);
    TAEL_RETURN_IF_ERROR(file.Write(&hash, sizeof(hash)));
  }
  return {};
}

// ---- restoring ----

namespace {

class Restorer {
 public:
  Restorer(const std::string& path, OldFile file, PrefixIndex& index)
      : path_(path),
        file_(std::move(file)),
        index_(index),
        groups_(index.geometry().groups),
        blocks_(groups_.size(), kNullBlock),
        near_(groups_.size(), kNullBlock),
        requests_(groups_.size()) {}

  Status CheckHead(const PrefixContext& context);
  Status ReadRows(mem::MemoryBudget& budget);
  void TakeBack() {
    for (size_t i = added_.size(); i-- > 0;) index_.Remove(added_[i]);
  }
  const Restored& restored() const { return restored_; }

 private:
  Error Damaged(const char* what) const {
    return Error{ErrorCode::kMalformed, "a damaged snapshot",
                 "\"" + path_ + "\": " + what + "; remove it, it will be written again"};
  }
  Error Other(const std::string& what) const {
    return Error{ErrorCode::kUnsupported, "a snapshot that does not fit",
                 "\"" + path_ + "\" has " + what + "; remove it, or use another folder"};
  }
  Status CheckShape(const FileHead& head, std::span<const uint64_t> block_bytes);
  Status ReadHead(uint32_t row, RowHead& head);
  Result<bool> ReadRow(uint32_t row);
  bool AllocateBlocks();
  Status ReadBlocks(uint64_t key);
  void ReleaseBlocks();
  uint64_t BytesOfBlocks(uint64_t more_each) const;

  const std::string& path_;
  OldFile file_;
  PrefixIndex& index_;
  const std::vector<LayerGroup>& groups_;
  uint64_t num_rows_ = 0;
  std::vector<std::byte> head_;  // scratch: a row's, with what follows it
  std::vector<bool> present_;    // of the row being read
  std::vector<BlockId> blocks_;  // of the row being read
  std::vector<BlockId> near_;    // by group: the last one that was read
  std::vector<BlockPool::Request> requests_;
  std::vector<uint32_t> ids_;  // in the index, by row of the file
  std::vector<uint32_t> added_;
  Restored restored_;
};

Status Restorer::CheckHead(const PrefixContext& context) {
  FileHead head;
  TAEL_RETURN_IF_ERROR(file_.Read(&head, sizeof(head)));
  if (head.magic != kMagic) return Damaged("it does not begin as one");
  if (head.version != kVersion) {
    return Other("version " + std::to_string(head.version) + " of the format, not " +
                 std::to_string(kVersion));
  }
  if (head.num_groups != groups_.size()) {
    return Other(std::to_string(head.num_groups) + " groups of layers, not " +
                 std::to_string(groups_.size()));
  }
  std::vector<uint64_t> block_bytes(groups_.size());
  uint64_t hash = 0;
  TAEL_RETURN_IF_ERROR(file_.Read(block_bytes.data(), block_bytes.size() * sizeof(uint64_t)));
  TAEL_RETURN_IF_ERROR(file_.Read(&hash, sizeof(hash)));
  std::vector<std::byte> bytes;
  Append(bytes, head);
  for (const uint64_t each : block_bytes) Append(bytes, each);
  if (hash != Hash64(bytes.data(), bytes.size()))
    return Damaged("its header is not what was written");
  const std::array<uint64_t, 4> hashes = HashesOf(context);
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (head.context[i] != hashes[i])
      return Other("the KV of another " + std::string(kContextNames[i]));
  }
  return CheckShape(head, block_bytes);
}

Status Restorer::CheckShape(const FileHead& head, std::span<const uint64_t> block_bytes) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (block_bytes[i] == groups_[i].block_bytes) continue;
    return Other("blocks of " + std::to_string(block_bytes[i]) + " bytes, not " +
                 std::to_string(groups_[i].block_bytes));
  }
  if (head.file_bytes != file_.size()) {
    return Error{ErrorCode::kMalformed, "a damaged snapshot",
                 "\"" + path_ + "\" has " + std::to_string(file_.size()) + " bytes of " +
                     std::to_string(head.file_bytes)};
  }
  if (head.num_rows > std::min<uint64_t>(kMostRows, file_.left() / RowHeadBytes(groups_.size()))) {
    return Damaged("it cannot hold as many rows as it says");
  }
  num_rows_ = head.num_rows;
  return {};
}

// Stops, which is no error, where there is no room for more.
Status Restorer::ReadRows(mem::MemoryBudget& budget) {
  TAEL_ASSIGN_OR_RETURN(const auto memory, budget.ReserveHeap(mem::MemoryTag::kSnapshot,
                                                              num_rows_ * 2 * sizeof(uint32_t)));
  ids_.reserve(num_rows_);
  added_.reserve(num_rows_);
  for (uint32_t row = 0; row < num_rows_; ++row) {
    TAEL_ASSIGN_OR_RETURN(const bool goes_on, ReadRow(row));
    if (goes_on) continue;
    restored_.left_out = num_rows_ - row;
    return {};
  }
  if (file_.left() > 0) return Damaged("there is more behind its last row");
  return {};
}

Status Restorer::ReadHead(uint32_t row, RowHead& head) {
  head_.resize(sizeof(RowHead) + groups_.size());
  uint64_t hash = 0;
  TAEL_RETURN_IF_ERROR(file_.Read(head_.data(), head_.size()));
  TAEL_RETURN_IF_ERROR(file_.Read(&hash, sizeof(hash)));
  if (hash != Hash64(head_.data(), head_.size())) return Damaged("a row is not what was written");
  std::memcpy(&head, head_.data(), sizeof(head));
  if ((head.parent != kNoRow && head.parent >= row) || head.hit > 1) {
    return Damaged("a row follows one that is not before it");
  }
  present_.assign(groups_.size(), false);
  for (size_t i = 0; i < groups_.size(); ++i) {
    const std::byte present = head_[sizeof(RowHead) + i];
    if (present > std::byte{1}) return Damaged("a row has half a block");
    present_[i] = present == std::byte{1};
  }
  return {};
}

// False where there is no room for the row.
Result<bool> Restorer::ReadRow(uint32_t row) {
  RowHead head;
  TAEL_RETURN_IF_ERROR(ReadHead(row, head));
  const uint32_t parent = head.parent == kNoRow ? kNoRow : ids_[head.parent];
  if (index_.rows().KeyOf(parent, head.salt, head.tokens) != head.key) {
    return Damaged("a row's tokens are not those of its key");
  }
  if (const uint32_t known = index_.FindRow(parent, head.salt, head.tokens); known != kNoRow) {
    ids_.push_back(known);
    ++restored_.known;
    TAEL_RETURN_IF_ERROR(file_.Skip(BytesOfBlocks(sizeof(uint64_t))));
    return true;
  }
  if (!AllocateBlocks()) return false;
  if (Status status = ReadBlocks(head.key); !status) {
    ReleaseBlocks();
    return std::move(status).error();
  }
  const uint32_t id = index_.Restore(parent, head.salt, head.tokens, head.hit != 0, blocks_);
  if (id == kNoRow) {
    ReleaseBlocks();
    return false;
  }
  ids_.push_back(id);
  added_.push_back(id);
  ++restored_.rows;
  restored_.bytes += BytesOfBlocks(0);
  return true;
}

uint64_t Restorer::BytesOfBlocks(uint64_t more_each) const {
  uint64_t bytes = 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (present_[i]) bytes += groups_[i].block_bytes + more_each;
  }
  return bytes;
}

bool Restorer::AllocateBlocks() {
  for (size_t i = 0; i < groups_.size(); ++i) {
    blocks_[i] = kNullBlock;
    const size_t count = present_[i] ? 1 : 0;
    requests_[i] = {SizeClass{static_cast<uint32_t>(i)}, near_[i],
                    std::span(blocks_).subspan(i, count)};
  }
  if (!index_.pool().Allocate(requests_)) {
    std::ranges::fill(blocks_, kNullBlock);
    return false;
  }
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (present_[i]) near_[i] = blocks_[i];
  }
  return true;
}

Status Restorer::ReadBlocks(uint64_t key) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (!present_[i]) continue;
    std::byte* data = index_.pool().data(blocks_[i]);
    const size_t bytes = groups_[i].block_bytes;
    uint64_t hash = 0;
    TAEL_RETURN_IF_ERROR(file_.Read(data, bytes));
    TAEL_RETURN_IF_ERROR(file_.Read(&hash, sizeof(hash)));
    if (hash != BlockHash(data, bytes, key, i)) return Damaged("a block is not what was written");
  }
  return {};
}

void Restorer::ReleaseBlocks() {
  for (BlockId& block : blocks_) {
    if (block != kNullBlock) index_.pool().Release(block);
    block = kNullBlock;
  }
}

}  // namespace

Result<Restored> RestoreSnapshot(const std::string& path, const PrefixContext& context,
                                 mem::MemoryBudget& budget, PrefixIndex& index) {
  TAEL_ASSIGN_OR_RETURN(OldFile file, OldFile::Open(path));
  Restorer restorer(path, std::move(file), index);
  TAEL_RETURN_IF_ERROR(restorer.CheckHead(context));
  if (Status status = restorer.ReadRows(budget); !status) {
    restorer.TakeBack();
    return std::move(status).error();
  }
  return restorer.restored();
}

}  // namespace tael::kv
