#include "kv/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fault.h"
#include "kv/testing.h"

namespace tael::kv {
namespace {

constexpr uint64_t kSalt = 77;
constexpr size_t kGroups = 2;
constexpr size_t kHeader = 64 + (kGroups + 1) * 8;
constexpr size_t kRowHead = 88 + kGroups + 8;
constexpr size_t kBlockAndHash = kTestBlock + 8;

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

template <class T>
void Put(std::string& bytes, size_t at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

// A pool and an index, as a process has them.
struct Cache {
  mem::MemoryBudget budget{0};
  Geometry geometry = TestGeometry(std::array<uint32_t, kGroups>{0, 40});
  std::unique_ptr<BlockPool> pool;
  std::unique_ptr<PrefixIndex> index;

  explicit Cache(size_t pool_blocks = 512, size_t cap_blocks = 512)
      : pool(TestPool(budget, geometry, pool_blocks)),
        index(*PrefixIndex::Create(budget, geometry, *pool,
                                   {.max_bytes = cap_blocks * kTestBlock})) {}
  ~Cache() {
    EXPECT_TRUE(index->CheckInvariants());
    index.reset();
    EXPECT_TRUE(pool->CheckInvariants());
    EXPECT_EQ(pool->Stats().num_blocks_in_use, 0u);
  }
  Sequence Adopted(std::span<const TokenId> tokens, uint64_t salt = kSalt) {
    Sequence sequence(geometry, *pool);
    index->Adopt(tokens, salt, 0xffffffff, sequence);
    EXPECT_TRUE(Holds(sequence, tokens, salt));
    return sequence;
  }
  uint32_t Held(std::span<const TokenId> tokens, uint64_t salt = kSalt) {
    return Adopted(tokens, salt).length();
  }
  Sequence Serve(std::span<const TokenId> tokens, uint64_t salt = kSalt) {
    Sequence sequence = Adopted(tokens, salt);
    EXPECT_TRUE(Feed(sequence, tokens, tokens.size(), salt).has_value());
    index->Publish(tokens, salt, sequence);
    return sequence;
  }
};

struct SnapshotTest : testing::Test {
  const PrefixContext context{.model = "m", .kv_type = "f16", .rope = "r", .window = "w"};
  const std::string folder = testing::TempDir() + "tael_snapshot_" + std::to_string(::getpid());
  const std::string path = folder + "/prefix";

  void SetUp() override { std::filesystem::create_directories(folder); }
  void TearDown() override { std::filesystem::remove_all(folder); }

  Status Save(const Cache& cache, SnapshotOptions options = {}) {
    mem::MemoryBudget budget(0);
    TAEL_ASSIGN_OR_RETURN(const Snapshot snapshot,
                          Snapshot::Collect(*cache.index, context, budget, options));
    return snapshot.Write(path);
  }
  Result<Restored> Restore(Cache& cache) { return Restore(cache, context); }
  Result<Restored> Restore(Cache& cache, const PrefixContext& with) {
    mem::MemoryBudget budget(0);
    return RestoreSnapshot(path, with, budget, *cache.index);
  }
  // Two prompts that share two rows, one under another salt, and one that was hit.
  void SaveExample() {
    Cache cache;
    FillExample(cache);
    ASSERT_TRUE(Save(cache).has_value());
  }
  static void FillExample(Cache& cache) {
    cache.Serve(Text(0, 70));
    auto branch = Text(0, 64);
    for (size_t i = 35; i < branch.size(); ++i) branch[i] = TokenId{static_cast<int>(1000 + i)};
    cache.Serve(branch);
    cache.Serve(Text(0, 33), kSalt + 1);
    cache.Serve(Text(500, 48));
    EXPECT_EQ(cache.Held(Text(500, 48)), 48u);
  }

  // Restoring fails with one of these, and whoever lives in the cache does not notice.
  void ExpectRefused(std::vector<ErrorCode> codes, const PrefixContext& with) {
    Cache cache;
    const auto text = Text(0, 40);
    const Sequence running = cache.Serve(text, kSalt + 9);
    cache.Serve(Text(7000, 54));
    const PrefixStats before = cache.index->Stats();
    const uint64_t blocks = cache.pool->Stats().num_blocks_in_use;
    const auto restored = Restore(cache, with);
    ASSERT_FALSE(restored.has_value());
    EXPECT_THAT(codes, testing::Contains(restored.error().code)) << restored.error().Message();
    EXPECT_GT(restored.error().Message().size(), 10u);
    const PrefixStats after = cache.index->Stats();
    EXPECT_EQ(after.rows, before.rows);
    EXPECT_EQ(after.bytes, before.bytes);
    EXPECT_EQ(after.idle_bytes, before.idle_bytes);
    EXPECT_EQ(after.evicted, before.evicted);
    EXPECT_EQ(cache.pool->Stats().num_blocks_in_use, blocks);
    EXPECT_TRUE(cache.index->CheckInvariants());
    EXPECT_TRUE(Holds(running, text, kSalt + 9));
    EXPECT_EQ(cache.Held(Text(7000, 54)), 48u);
  }
  void ExpectRefused(ErrorCode code) { ExpectRefused({code}, context); }

  // The example, changed, with the header's hash made right again.
  void SaveChanged(const std::function<void(std::string&)>& change) {
    SaveExample();
    std::string bytes = ReadAll(path);
    change(bytes);
    Put(bytes, kHeader - 8, Hash64(bytes.data(), kHeader - 8));
    WriteAll(path, bytes);
  }
  // Makes the hash of the first row's head right again.
  static void SealFirstRow(std::string& bytes) {
    Put(bytes, kHeader + kRowHead - 8, Hash64(bytes.data() + kHeader, kRowHead - 8));
  }
};

// ---- there and back ----

TEST_F(SnapshotTest, WhatWasSavedIsFoundAgain) {
  Cache first;
  FillExample(first);
  ASSERT_TRUE(Save(first).has_value());
  Cache second;
  const auto restored = Restore(second);
  ASSERT_TRUE(restored.has_value()) << restored.error().Message();
  EXPECT_EQ(restored->rows, first.index->Stats().rows);
  EXPECT_EQ(restored->bytes, first.index->bytes());
  EXPECT_EQ(restored->left_out, 0u);
  EXPECT_EQ(second.index->bytes(), first.index->bytes());
  EXPECT_TRUE(second.index->CheckInvariants());
  for (const size_t length : {70u, 64u, 33u, 20u}) {
    EXPECT_EQ(second.Held(Text(0, length)), first.Held(Text(0, length))) << length;
  }
  EXPECT_EQ(second.Held(Text(0, 70)), 64u);
  EXPECT_EQ(second.Held(Text(0, 33), kSalt + 1), 32u);
  EXPECT_EQ(second.Held(Text(500, 48)), 48u);
  EXPECT_EQ(second.index->Stats().idle_bytes, second.index->bytes());
}

TEST_F(SnapshotTest, SavingWhatWasRestoredGivesTheSameFile) {
  SaveExample();
  const std::string bytes = ReadAll(path);
  Cache cache;
  ASSERT_TRUE(Restore(cache).has_value());
  ASSERT_TRUE(Save(cache).has_value());
  EXPECT_TRUE(ReadAll(path) == bytes);
}

TEST_F(SnapshotTest, OnlyItsOwnerMayReadAFileAndNothingElseIsLeft) {
  SaveExample();
  struct stat info = {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const std::filesystem::directory_iterator entries(folder);
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
}

TEST_F(SnapshotTest, RestoredRowsAreTheFirstToGo) {
  SaveExample();
  Cache cache;
  cache.Serve(Text(7000, 48));
  ASSERT_TRUE(Restore(cache).has_value());
  // But for those that were hit before they were saved: three of two blocks each.
  const uint64_t never_hit = cache.index->bytes() - 6 * kTestBlock - 6 * kTestBlock;
  EXPECT_EQ(cache.index->Evict(never_hit), never_hit);
  EXPECT_EQ(cache.Held(Text(0, 70)), 0u);
  EXPECT_EQ(cache.Held(Text(500, 48)), 48u);
  EXPECT_EQ(cache.Held(Text(7000, 48)), 48u);
}

TEST_F(SnapshotTest, RestoringTwiceAddsNothing) {
  SaveExample();
  Cache cache;
  ASSERT_TRUE(Restore(cache).has_value());
  const uint64_t bytes = cache.index->bytes();
  const auto again = Restore(cache);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->rows, 0u);
  EXPECT_EQ(again->known, cache.index->Stats().rows);
  EXPECT_EQ(cache.index->bytes(), bytes);
}

TEST_F(SnapshotTest, WithLessRoomTheRowsWorthMostAreTaken) {
  SaveExample();
  for (const auto& [pool_blocks, cap_blocks] : {std::pair(512u, 7u), std::pair(64u, 512u)}) {
    Cache cache(pool_blocks, cap_blocks);
    Sequence other(cache.geometry, *cache.pool);
    if (pool_blocks == 64) {
      ASSERT_TRUE(other.Extend(28 * 16).has_value());  // 8 blocks are left
    }
    const auto restored = Restore(cache);
    ASSERT_TRUE(restored.has_value()) << restored.error().Message();
    EXPECT_GT(restored->left_out, 0u);
    EXPECT_EQ(cache.Held(Text(500, 48)), 48u);  // it was hit
    EXPECT_LE(cache.index->bytes(), 8 * kTestBlock);
  }
}

TEST_F(SnapshotTest, AFileIsNoLargerThanAllowed) {
  Cache cache;
  FillExample(cache);
  for (const size_t rows : {0u, 1u, 3u, 5u}) {
    const uint64_t most = kHeader + rows * (kRowHead + 2 * kBlockAndHash) + 10;
    ASSERT_TRUE(Save(cache, {.max_file_bytes = most}).has_value());
    EXPECT_LE(std::filesystem::file_size(path), most);
    Cache other;
    const auto restored = Restore(other);
    ASSERT_TRUE(restored.has_value());
    EXPECT_EQ(restored->rows, rows);
    EXPECT_EQ(other.Held(Text(500, 48)), std::min<size_t>(rows, 3) * 16);
  }
}

TEST_F(SnapshotTest, TheIndexMayForgetRowsWhileTheyAreWritten) {
  Cache cache;
  FillExample(cache);
  {
    const auto snapshot = Snapshot::Collect(*cache.index, context, cache.budget);
    ASSERT_TRUE(snapshot.has_value());
    cache.index->Clear();
    EXPECT_GT(cache.pool->Stats().num_blocks_in_use, 0u);
    Status status = Error{};
    std::thread([&] { status = snapshot->Write(path); }).join();
    ASSERT_TRUE(status.has_value());
  }
  EXPECT_EQ(cache.pool->Stats().num_blocks_in_use, 0u);
  ASSERT_TRUE(Restore(cache).has_value());
  EXPECT_EQ(cache.Held(Text(0, 70)), 64u);
}

TEST_F(SnapshotTest, BlocksStayWhereTheyAreUntilTheyAreWritten) {
  Cache cache;
  {
    std::vector<Sequence> others;
    for (int i = 0; i < 4; ++i) {
      cache.Serve(Text(i * 1000, 160));
      others.emplace_back(cache.geometry, *cache.pool);
      ASSERT_TRUE(others.back().Extend(48 * 16).has_value());
    }
  }
  {
    const auto snapshot = Snapshot::Collect(*cache.index, context, cache.budget);
    ASSERT_TRUE(snapshot.has_value());
    EXPECT_TRUE(cache.pool->Compact().empty());
  }
  const auto moves = cache.pool->Compact();
  EXPECT_FALSE(moves.empty());
  cache.index->Follow(moves);
}

TEST_F(SnapshotTest, ALongListOfRowsIsInTheLedger) {
  Cache cache(8192, 8192);
  for (int i = 0; i < 20; ++i) cache.Serve(Text(i * 1000, 640));
  const auto snapshot_bytes = [&] {
    return cache.budget.Snapshot().parts[static_cast<size_t>(mem::MemoryTag::kSnapshot)];
  };
  {
    const auto snapshot = Snapshot::Collect(*cache.index, context, cache.budget);
    ASSERT_TRUE(snapshot.has_value());
    EXPECT_GT(snapshot_bytes().used_bytes, 800u * 90);
  }
  EXPECT_EQ(snapshot_bytes().reserved_bytes, 0u);
  mem::MemoryBudget small(1000);
  const auto refused = Snapshot::Collect(*cache.index, context, small);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBudget);
}

// ---- B8: damage ----

TEST_F(SnapshotTest, AFileThatIsNotThereOrNoFileIsRefused) {
  ExpectRefused(ErrorCode::kNotFound);
  std::filesystem::create_directories(path);
  ExpectRefused(ErrorCode::kIo);
  std::filesystem::remove_all(path);
  WriteAll(path, "");
  ExpectRefused(ErrorCode::kMalformed);
  WriteAll(path, std::string(100000, 'x'));
  ExpectRefused(ErrorCode::kMalformed);
}

TEST_F(SnapshotTest, AFileCutAtAnySectionIsRefused) {
  SaveExample();
  const std::string bytes = ReadAll(path);
  // Where the header, a row's head, a block or its hash ends.
  std::vector<size_t> edges = {0, 8, 12, 16, 64, kHeader - 8, kHeader};
  for (size_t at = kHeader; at < bytes.size();) {
    const size_t num_blocks =
        static_cast<size_t>(bytes[at + 88]) + static_cast<size_t>(bytes[at + 89]);
    edges.push_back(at + 88);
    edges.push_back(at + kRowHead - 8);
    at += kRowHead;
    edges.push_back(at);
    for (size_t i = 0; i < num_blocks; ++i, at += kBlockAndHash) {
      edges.push_back(at + kTestBlock);
      edges.push_back(at + kBlockAndHash);
    }
  }
  ASSERT_EQ(edges.back(), bytes.size());
  edges.pop_back();
  ASSERT_GT(edges.size(), 50u);
  for (const size_t edge : edges) {
    for (const size_t size : {edge, edge + 1}) {
      SCOPED_TRACE(size);
      WriteAll(path, bytes.substr(0, size));
      ExpectRefused(ErrorCode::kMalformed);
    }
  }
  WriteAll(path, bytes + "x");
  ExpectRefused(ErrorCode::kMalformed);
}

// The same, where the header admits to the shorter file.
TEST_F(SnapshotTest, AFileWhoseHeaderWasMadeToFitItsCutIsRefused) {
  SaveExample();
  const size_t whole = ReadAll(path).size();
  for (size_t size = kHeader; size < whole; size += 61) {
    SCOPED_TRACE(size);
    SaveChanged([&](std::string& bytes) {
      bytes.resize(size);
      Put(bytes, 16, uint64_t{size});
    });
    ExpectRefused(ErrorCode::kMalformed);
  }
}

TEST_F(SnapshotTest, AnyFlippedBitIsNoticed) {
  SaveExample();
  const std::string bytes = ReadAll(path);
  std::mt19937 random(1);
  for (int i = 0; i < 400; ++i) {
    std::string flipped = bytes;
    // The header and the first row's head in full detail, the rest at random.
    const size_t bit =
        i < 200 ? random() % ((kHeader + kRowHead) * 8) : random() % (bytes.size() * 8);
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    WriteAll(path, flipped);
    SCOPED_TRACE(bit);
    // In the version and the number of groups it looks like another kind of file.
    ExpectRefused({ErrorCode::kMalformed, ErrorCode::kUnsupported}, context);
  }
}

TEST_F(SnapshotTest, AnotherModelTypeRotationOrWindowIsRefused) {
  SaveExample();
  for (const auto field : {&PrefixContext::model, &PrefixContext::kv_type, &PrefixContext::rope,
                           &PrefixContext::window}) {
    PrefixContext other = context;
    other.*field += "2";
    ExpectRefused({ErrorCode::kUnsupported}, other);
  }
  PrefixContext swapped = context;
  std::swap(swapped.model, swapped.kv_type);
  ExpectRefused({ErrorCode::kUnsupported}, swapped);
  Cache cache;
  PrefixContext tenant = context;
  tenant.tenant = "t";  // a matter of salts
  EXPECT_TRUE(Restore(cache, tenant).has_value());
}

TEST_F(SnapshotTest, AnotherVersionOrShapeIsRefused) {
  SaveChanged([](std::string& bytes) { Put(bytes, 8, uint32_t{2}); });
  ExpectRefused(ErrorCode::kUnsupported);
  SaveChanged([](std::string& bytes) { Put(bytes, 12, uint32_t{3}); });
  ExpectRefused(ErrorCode::kUnsupported);
  SaveChanged([](std::string& bytes) { Put(bytes, 64, uint64_t{128}); });
  ExpectRefused(ErrorCode::kUnsupported);
}

TEST_F(SnapshotTest, AbsurdNumbersAreRefusedAtOnce) {
  for (const uint64_t absurd :
       {uint64_t{1000}, uint64_t{1} << 32, uint64_t{1} << 60, ~uint64_t{0}}) {
    SaveChanged([&](std::string& bytes) { Put(bytes, 24, absurd); });  // rows
    ExpectRefused(ErrorCode::kMalformed);
    SaveChanged([&](std::string& bytes) { Put(bytes, 16, absurd); });  // bytes
    ExpectRefused(ErrorCode::kMalformed);
  }
  SaveChanged([](std::string& bytes) { Put(bytes, 12, 0xffffffffu); });  // groups
  ExpectRefused(ErrorCode::kUnsupported);
  SaveChanged(
      [](std::string& bytes) { Put(bytes, 24, uint64_t{1}); });  // fewer rows than there are
  ExpectRefused(ErrorCode::kMalformed);
}

TEST_F(SnapshotTest, ARowThatCannotBeIsRefusedThoughItsHashIsRight) {
  for (const uint32_t parent : {0u, 1u, 1000u, 0xfffffffeu}) {  // itself, a later one, none
    SaveChanged([&](std::string& bytes) {
      Put(bytes, kHeader, parent);
      SealFirstRow(bytes);
    });
    ExpectRefused(ErrorCode::kMalformed);
  }
  SaveChanged([](std::string& bytes) {  // other tokens than those of its key
    Put(bytes, kHeader + 24, int32_t{-5});
    SealFirstRow(bytes);
  });
  ExpectRefused(ErrorCode::kMalformed);
  SaveChanged([](std::string& bytes) {  // another salt
    Put(bytes, kHeader + 8, uint64_t{1});
    SealFirstRow(bytes);
  });
  ExpectRefused(ErrorCode::kMalformed);
  SaveChanged([](std::string& bytes) {  // a block that may be there
    bytes[kHeader + 88] = 2;
    SealFirstRow(bytes);
  });
  ExpectRefused(ErrorCode::kMalformed);
  SaveChanged([](std::string& bytes) {  // no block, though its bytes follow
    bytes[kHeader + 88] = 0;
    SealFirstRow(bytes);
  });
  ExpectRefused(ErrorCode::kMalformed);
}

TEST_F(SnapshotTest, BlocksThatChangedPlacesAreNoticed) {
  SaveChanged([](std::string& bytes) {
    const size_t first = kHeader + kRowHead, second = first + kBlockAndHash;
    const std::string block = bytes.substr(first, kBlockAndHash);
    bytes.replace(first, kBlockAndHash, bytes.substr(second, kBlockAndHash));
    bytes.replace(second, kBlockAndHash, block);
  });
  ExpectRefused(ErrorCode::kMalformed);
}

TEST_F(SnapshotTest, AnyReadThatFailsLeavesEverythingAsItWas) {
  SaveExample();
  uint64_t n = 1;
  for (bool fired = true; fired; ++n) {
    ASSERT_LT(n, 1000u);
    Cache cache;
    cache.Serve(Text(7000, 54));
    const uint64_t blocks = cache.pool->Stats().num_blocks_in_use;
    const FaultInjection fault(FaultKind::kRead, n);
    const auto restored = Restore(cache);
    fired = fault.fired();
    if (!fired) break;
    ASSERT_FALSE(restored.has_value()) << n;
    EXPECT_EQ(restored.error().code, ErrorCode::kIo);
    EXPECT_EQ(cache.pool->Stats().num_blocks_in_use, blocks);
  }
  EXPECT_GT(n, 20u);
}

// ---- B8: saving that fails ----

TEST_F(SnapshotTest, AFullDiskLeavesTheOldFile) {
  SaveExample();
  const std::string before = ReadAll(path);
  Cache cache;
  for (int i = 0; i < 20; ++i) cache.Serve(Text(i * 1000, 64));
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t most : {rlim_t{0}, rlim_t{10}, rlim_t{100}, rlim_t{5000}}) {
    const rlimit small = {most, limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const Status status = Save(cache);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);  // before anything is printed
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_TRUE(ReadAll(path) == before);
    EXPECT_FALSE(std::filesystem::exists(path + ".new"));
  }
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(Save(cache).has_value());
}

TEST_F(SnapshotTest, AFolderThatIsMissingIsNamed) {
  Cache cache;
  mem::MemoryBudget budget(0);
  const auto snapshot = Snapshot::Collect(*cache.index, context, budget);
  ASSERT_TRUE(snapshot.has_value());
  const Status status = snapshot->Write(folder + "/none/prefix");
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(status.error().Message(), testing::HasSubstr("/none/"));
}

TEST_F(SnapshotTest, KilledWhileSavingTheOldFileOrTheNewOneIsThereAndWhole) {
  SaveExample();
  uint64_t old_rows = 0;
  {
    Cache old(4096, 4096);
    const auto restored = Restore(old);
    ASSERT_TRUE(restored.has_value()) << restored.error().Message();
    old_rows = restored->rows;
  }
  Cache cache(4096, 4096);
  for (int i = 0; i < 40; ++i) cache.Serve(Text(i * 1000, 640));
  const uint64_t rows = cache.index->Stats().rows;
  std::mt19937 random(3);
  bool saw_old = false, saw_leftover = false;
  for (int i = 0; i < 25; ++i) {
    SaveExample();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (;;) static_cast<void>(Save(cache));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    saw_leftover = saw_leftover || std::filesystem::exists(path + ".new");
    Cache other(4096, 4096);
    const auto restored = Restore(other);
    ASSERT_TRUE(restored.has_value()) << restored.error().Message();
    EXPECT_TRUE(restored->rows == rows || restored->rows == old_rows) << restored->rows;
    if (restored->rows != rows) saw_old = true;
  }
  EXPECT_TRUE(saw_old || saw_leftover);  // or nobody was killed while saving
  EXPECT_TRUE(Save(cache).has_value());
}

}  // namespace
}  // namespace tael::kv
