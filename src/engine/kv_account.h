// How much of the KV pool sequences will want, to decide whether one more may start.
//
// Counted in blocks of each size, and compared in slabs, as the plan does: what fits here can be
// allocated, but for slabs of several sizes that are partly used (then the scheduler reclaims).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"
#include "kv/sequence.h"

namespace tael::engine {

class KvAccount {
 public:
  // `engine` outlives the account.
  explicit KvAccount(const Engine& engine);

  using Blocks = std::vector<uint64_t>;  // of each block size of the pool
  Blocks None() const { return Blocks(sizes_.size(), 0); }

  // What a sequence that holds up to `tokens` has of its own, if the first `shared` of them (whole
  // rows) are somebody else's.
  Blocks For(uint32_t tokens, uint32_t shared) const;
  // What the sequence has still to get until it holds `tokens`, the first `shared` of which it need
  // not compute; the copy of a row that it shares in part is among it.
  Blocks Growth(const kv::Sequence& sequence, uint32_t tokens, uint32_t shared) const;
  // In use now, apart from so many bytes of idle rows.
  Blocks InUse(uint64_t idle_bytes) const;
  bool Fit(const Blocks& blocks) const;

  uint64_t row_bytes() const { return row_bytes_; }

 private:
  struct Size {
    uint64_t slots_per_slab = 0;
    uint64_t blocks_per_row = 0;
    kv::SizeClass size_class{};  // one of those of this size
  };
  struct Group {
    size_t size = 0;         // index into sizes_
    uint64_t most_rows = 0;  // live at a time
  };

  const Engine& engine_;
  std::vector<Size> sizes_;
  std::vector<Group> groups_;
  uint64_t num_slabs_ = 0;
  uint64_t row_bytes_ = 0;
};

// a += b
void Add(KvAccount::Blocks& a, const KvAccount::Blocks& b);

}  // namespace tael::engine
