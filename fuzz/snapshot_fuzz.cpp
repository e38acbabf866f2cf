// Feeds bytes to the reader of snapshots, with their hashes made right first: a fuzzer cannot guess
// those, and an adversary need not. Whatever it says, the pool and the index are sound afterwards,
// and after an error they hold what they held before.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "kv/snapshot.h"

namespace {

using tael::kv::BlockPool;
using tael::kv::Geometry;
using tael::kv::Hash64;
using tael::kv::PrefixContext;
using tael::kv::PrefixIndex;

constexpr size_t kGroups = 2;
constexpr size_t kBlockBytes = 64;
constexpr size_t kHeader = 64 + (kGroups + 1) * 8;
constexpr size_t kRowHead = 88 + kGroups + 8;

struct Cache {
  tael::mem::MemoryBudget budget{0};
  Geometry geometry;
  std::unique_ptr<BlockPool> pool;
  std::unique_ptr<PrefixIndex> index;

  Cache() {
    geometry.groups.resize(kGroups);
    for (auto& group : geometry.groups) group.block_bytes = kBlockBytes;
    geometry.groups[1].shape.window = 40;
    pool = *BlockPool::Create(budget, {.block_bytes = {kBlockBytes, kBlockBytes},
                                       .capacity_bytes = 1u << 20,
                                       .slab_bytes = 4096,
                                       .page_bytes = 4096});
    index = *PrefixIndex::Create(budget, geometry, *pool, {.max_bytes = 1u << 20});
  }
};

template <class T>
void Put(std::string& bytes, size_t at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

template <class T>
T Get(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

void RepairHeader(std::string& bytes) {
  Put(bytes, 0, std::array<char, 8>{'T', 'A', 'E', 'L', 'K', 'V', '\r', '\n'});
  Put(bytes, 8, uint32_t{1});
  Put(bytes, 12, static_cast<uint32_t>(kGroups));
  Put(bytes, 16, uint64_t{bytes.size()});
  for (size_t i = 0; i < 4; ++i) Put(bytes, 32 + 8 * i, Hash64("", 0));
  for (size_t i = 0; i < kGroups; ++i) Put(bytes, 64 + 8 * i, uint64_t{kBlockBytes});
  Put(bytes, kHeader - 8, Hash64(bytes.data(), kHeader - 8));
}

void RepairRows(std::string& bytes) {
  std::vector<uint64_t> keys;
  for (size_t at = kHeader; at + kRowHead <= bytes.size();) {
    const auto parent = Get<uint32_t>(bytes, at);
    std::string hashed(80, '\0');
    Put(hashed, 0, parent < keys.size() ? keys[parent] : uint64_t{0});
    std::memcpy(hashed.data() + 8, bytes.data() + at + 8, 8);     // salt
    std::memcpy(hashed.data() + 16, bytes.data() + at + 24, 64);  // tokens
    keys.push_back(Hash64(hashed.data(), hashed.size()));
    Put(bytes, at + 16, keys.back());
    Put(bytes, at + kRowHead - 8, Hash64(bytes.data() + at, kRowHead - 8));
    const size_t row = at;
    at += kRowHead;
    for (size_t i = 0; i < kGroups; ++i) {
      if (bytes[row + 88 + i] != 1) continue;
      if (at + kBlockBytes + 8 > bytes.size()) return;
      Put(bytes, at + kBlockBytes, Hash64(bytes.data() + at, kBlockBytes, keys.back() + i));
      at += kBlockBytes + 8;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Cache& cache = *new Cache;
  static const int file = ::memfd_create("snapshot", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size > kHeader && (data[size - 1] & 7) != 0) {  // now and then as they are
    RepairHeader(bytes);
    RepairRows(bytes);
  }
  TAEL_CHECK(::ftruncate(file, 0) == 0);
  TAEL_CHECK(::pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  const auto restored = RestoreSnapshot(path, PrefixContext{}, cache.budget, *cache.index);
  TAEL_CHECK(cache.pool->CheckInvariants());
  TAEL_CHECK(cache.index->CheckInvariants());
  if (!restored) {
    TAEL_CHECK(!restored.error().Message().empty());
    TAEL_CHECK(cache.index->Stats().rows == 0);
  }
  cache.index->Clear();
  TAEL_CHECK(cache.pool->Stats().num_blocks_in_use == 0);
  return 0;
}
