// The rows of a prefix index in a file, so that they need not be computed again after a restart.
//
//   header   magic, version, sizes, what the KV depends on (a hash of each field of its context),
//            the groups' block sizes; hash of all that
//   row      parent (an earlier row), hit, salt, key, 16 token ids, which groups' blocks follow;
//            hash of all that
//   block    its bytes; their hash, seeded with the row's key and the group
//
// Numbers are little endian. Rows lie in the order of their worth, parents before those that follow
// them, so that where there is less room than the file holds the first ones are what to take.
//
// The bytes may be anybody's: nothing is believed that can be checked. An unlucky bit is found by
// the hashes, an absurd number by its bounds; and if anything is wrong, the index is left with what
// it had before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "kv/atomic_file.h"
#include "kv/prefix_context.h"
#include "kv/prefix_index.h"
#include "mem/memory_budget.h"

namespace tael::kv {

struct SnapshotOptions {
  uint64_t max_file_bytes = UINT64_MAX;  // rows beyond it are left out, those worth least first
};

// What is going to be written: the rows as they are now, their blocks held until it dies.
class Snapshot {
 public:
  // As it lies in the file.
  struct Row {
    uint32_t parent = kNoRow;  // index of an earlier row
    uint32_t hit = 0;
    uint64_t salt = 0;
    uint64_t key = 0;
    std::array<TokenId, kernels::kBlockTokens> tokens{};
  };

  // On the thread that owns the index. Rows that another context's salt hides are saved like all
  // others: a salt goes with its row. Fails: kOutOfBudget, for the list of rows.
  static Result<Snapshot> Collect(const PrefixIndex& index, const PrefixContext& context,
                                  mem::MemoryBudget& budget, const SnapshotOptions& options = {});
  Snapshot(Snapshot&&) noexcept = default;
  Snapshot& operator=(Snapshot&&) = delete;
  ~Snapshot();

  uint64_t num_rows() const { return rows_.size(); }
  uint64_t file_bytes() const { return file_bytes_; }
  // Equal for equal rows with equal blocks, whatever their order.
  uint64_t fingerprint() const { return fingerprint_; }

  // Any thread, while others run: nobody writes blocks that are shared. Needs no memory to speak
  // of. Fails: kIo (naming a full disk), kNotFound for a missing folder; then an older file is
  // still there and whole.
  Status Write(const std::string& path) const;

 private:
  Snapshot(const PrefixIndex& index, const PrefixContext& context);
  uint64_t BytesOf(std::span<const BlockId> blocks) const;
  void Add(const PrefixRows::Row& row, uint32_t parent, std::span<const BlockId> blocks);
  Status WriteRow(size_t row, NewFile& file) const;
  std::span<const BlockId> blocks(size_t row) const;

  const Geometry* geometry_;
  BlockPool* pool_;
  BlockPool::Standstill standstill_;  // goes after the blocks
  PrefixContext context_;
  mem::Reservation memory_;
  std::vector<Row> rows_;
  std::vector<BlockId> blocks_;  // [rows_.size()][groups]
  uint64_t file_bytes_ = 0;
  uint64_t fingerprint_ = 0;
};

struct Restored {
  uint64_t rows = 0;      // added to the index
  uint64_t known = 0;     // rows that it had already
  uint64_t left_out = 0;  // rows for which there was no room
  uint64_t bytes = 0;     // of the blocks of those added
};

// Adds the rows of a file to the index, as those used least recently, and evicts nothing for them.
// Reads straight into blocks. Fails: kNotFound; kIo; kMalformed for damage of any kind;
// kUnsupported for another version, or KV of another model, type, rotation, window or shape, naming
// which; kOutOfBudget. After a failure the index is as it was.
Result<Restored> RestoreSnapshot(const std::string& path, const PrefixContext& context,
                                 mem::MemoryBudget& budget, PrefixIndex& index);

}  // namespace tael::kv
