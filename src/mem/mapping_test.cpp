#include "mem/mapping.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "mem/process_memory.h"

namespace tael::mem {
namespace {

using ::testing::HasSubstr;

size_t SystemPage() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

// A folder that is removed with everything in it; a page size that goes back to the system's.
class MappingTest : public ::testing::Test {
 protected:
  MappingTest()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                ("mapping_test." + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~MappingTest() override {
    SetPageSizeForTest(0);
    std::filesystem::remove_all(folder_);
  }

  std::string FileOf(size_t size) {
    const std::string path = (folder_ / ("f" + std::to_string(size))).string();
    std::ofstream(path, std::ios::binary) << std::string(size, 'x');
    return path;
  }

  std::string OpenError(const std::string& path, ErrorCode code) {
    const Result<FileMapping> mapping = FileMapping::Open(path);
    if (mapping) return "opened";
    EXPECT_EQ(ToString(mapping.error().code), ToString(code));
    EXPECT_THAT(mapping.error().Message(), HasSubstr(path));
    return mapping.error().Message();
  }

  std::filesystem::path folder_;
};

TEST_F(MappingTest, BytesPastTheEndAreReadableZerosForAnySize) {
  const size_t page = SystemPage();
  for (const size_t size : {size_t{1}, page - 64, page - 63, page - 1, page, page + 1, 3 * page}) {
    const Result<FileMapping> mapping = FileMapping::Open(FileOf(size));
    ASSERT_TRUE(mapping) << mapping.error().Message();
    ASSERT_EQ(mapping->bytes().size(), size);
    EXPECT_EQ(mapping->bytes().front(), std::byte{'x'});
    EXPECT_EQ(mapping->bytes().back(), std::byte{'x'});
    const std::byte* end = mapping->bytes().data() + size;
    EXPECT_EQ(std::count(end, end + FileMapping::kReadSlack, std::byte{0}),
              std::ptrdiff_t{FileMapping::kReadSlack})
        << size;
  }
}

TEST_F(MappingTest, EachBadPathHasItsOwnError) {
  EXPECT_THAT(OpenError((folder_ / "none").string(), ErrorCode::kNotFound), HasSubstr("no such"));
  EXPECT_THAT(OpenError(FileOf(1) + "/below", ErrorCode::kNotFound), HasSubstr("no such file"));
  EXPECT_THAT(OpenError(folder_.string(), ErrorCode::kIo), HasSubstr("a directory"));
  EXPECT_THAT(OpenError(FileOf(0), ErrorCode::kIo), HasSubstr("empty"));
  EXPECT_THAT(OpenError("/dev/null", ErrorCode::kIo), HasSubstr("not a regular file"));
  const std::string fifo = (folder_ / "fifo").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(OpenError(fifo, ErrorCode::kIo), HasSubstr("not a regular file"));
}

TEST_F(MappingTest, AnUnreadableFileIsAnIoError) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const std::string path = FileOf(10);
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  EXPECT_THAT(OpenError(path, ErrorCode::kIo), HasSubstr("cannot open"));
}

TEST_F(MappingTest, AFileThatCannotBeMappedIsAnIoError) {
  // The kernel serves reads of it, but has no mmap for it.
  const std::string path = "/sys/devices/system/cpu/online";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no sysfs in this environment";
  EXPECT_THAT(OpenError(path, ErrorCode::kIo), HasSubstr("cannot map"));
}

TEST_F(MappingTest, AMovedMappingLeavesNothingBehind) {
  Result<FileMapping> opened = FileMapping::Open(FileOf(100));
  ASSERT_TRUE(opened);
  FileMapping first = *std::move(opened);
  const std::byte* data = first.bytes().data();
  FileMapping second = std::move(first);
  EXPECT_TRUE(first.bytes().empty());  // NOLINT: empty by contract
  EXPECT_EQ(second.bytes().data(), data);
  Result<FileMapping> other = FileMapping::Open(FileOf(200));
  ASSERT_TRUE(other);
  second = *std::move(other);
  EXPECT_EQ(second.bytes().size(), 200u);
  EXPECT_THAT(second.path(), HasSubstr("f200"));
}

// How many pages of the bytes are present in this process; -1 if the kernel does not tell.
int PresentPages(std::span<const std::byte> bytes) {
  const auto page = reinterpret_cast<uintptr_t>(bytes.data()) / SystemPage();
  std::vector<uint64_t> entries((bytes.size() + SystemPage() - 1) / SystemPage());
  const size_t size = entries.size() * sizeof(uint64_t);
  const int fd = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  const ssize_t got =
      ::pread(fd, entries.data(), size, static_cast<off_t>(page * sizeof(uint64_t)));
  ::close(fd);
  if (got != static_cast<ssize_t>(size)) return -1;
  return static_cast<int>(
      std::count_if(entries.begin(), entries.end(), [](uint64_t entry) { return entry >> 63; }));
}

TEST_F(MappingTest, PopulateMapsThePagesOfARange) {
  const size_t page = SystemPage();
  const Result<FileMapping> mapping = FileMapping::Open(FileOf(256 * page + 1));
  ASSERT_TRUE(mapping);
  if (PresentPages(mapping->bytes()) < 0) GTEST_SKIP() << "no page map in this environment";
  mapping->WillNeed(0, SIZE_MAX);
  EXPECT_EQ(PresentPages(mapping->bytes()), 0) << "read ahead is not mapped yet";
  mapping->Populate(64 * page - 1, 2);
  EXPECT_EQ(PresentPages(mapping->bytes().subspan(63 * page, 2 * page)), 2);
  EXPECT_LT(PresentPages(mapping->bytes()), 257);
  mapping->Populate(0, SIZE_MAX);
  EXPECT_EQ(PresentPages(mapping->bytes()), 257);
}

TEST_F(MappingTest, DropLeavesPagesThatAreOnlyPartlyInsideForAnyPageSize) {
  for (const size_t page : {size_t{4096}, size_t{16384}, size_t{65536}}) {
    if (page < SystemPage()) continue;
    const Result<FileMapping> mapping = FileMapping::Open(FileOf(8 * page));
    ASSERT_TRUE(mapping);
    if (PresentPages(mapping->bytes()) < 0) GTEST_SKIP() << "no page map in this environment";
    mapping->Populate(0, SIZE_MAX);
    SetPageSizeForTest(page);
    mapping->Drop(16384 + 32, page - 1);  // no whole page
    EXPECT_EQ(PresentPages(mapping->bytes()), static_cast<int>(8 * page / SystemPage()));
    mapping->Drop(16384 + 32, 4 * page);  // three of them, wherever the mapping begins
    EXPECT_EQ(PresentPages(mapping->bytes()), static_cast<int>(5 * page / SystemPage()));
    SetPageSizeForTest(0);
  }
}

TEST_F(MappingTest, LockedBytesAreWholePages) {
  const Result<FileMapping> mapping = FileMapping::Open(FileOf(3 * SystemPage() + 1));
  ASSERT_TRUE(mapping);
  const Result<uint64_t> locked = mapping->Lock();
  if (!locked) {
    EXPECT_THAT(locked.error().Message(), HasSubstr("raise the limit"));
    GTEST_SKIP() << "the system refuses: " << locked.error().Message();
  }
  EXPECT_EQ(*locked, 4 * SystemPage());
}

TEST_F(MappingTest, AdviceBeyondTheFileIsHarmless) {
  const Result<FileMapping> mapping = FileMapping::Open(FileOf(100));
  ASSERT_TRUE(mapping);
  for (const size_t injected : {size_t{0}, size_t{16384}, size_t{65536}}) {
    SetPageSizeForTest(injected);
    for (const size_t offset : {size_t{0}, size_t{99}, size_t{100}, SIZE_MAX}) {
      for (const size_t length : {size_t{0}, size_t{1}, SIZE_MAX}) {
        mapping->WillNeed(offset, length);
        mapping->Populate(offset, length);
      }
    }
  }
  const FileMapping empty;
  empty.WillNeed(0, 1);
  empty.Populate(0, 1);
  EXPECT_EQ(mapping->bytes().back(), std::byte{'x'});
}

TEST_F(MappingTest, AnonymousMemoryIsZeroAndAligned) {
  for (const size_t alignment : {size_t{0}, size_t{64}, size_t{65536}, size_t{1} << 21}) {
    const Result<AnonymousMapping> mapping = AnonymousMapping::Create(100001, alignment);
    ASSERT_TRUE(mapping) << mapping.error().Message();
    const auto address = reinterpret_cast<uintptr_t>(mapping->data());
    EXPECT_EQ(address % std::max(alignment, SystemPage()), 0u);
    ASSERT_EQ(mapping->size(), 100001u);
    mapping->data()[0] = std::byte{1};
    EXPECT_EQ(mapping->data()[100000], std::byte{0});
    mapping->data()[100000] = std::byte{1};
  }
}

TEST_F(MappingTest, AnonymousAddressSpaceCostsNoMemoryUntilTouched) {
  const Result<AnonymousMapping> mapping = AnonymousMapping::Create(size_t{1} << 40);
  ASSERT_TRUE(mapping) << mapping.error().Message();
  mapping->data()[(size_t{1} << 40) - 1] = std::byte{1};
}

TEST_F(MappingTest, WhoRunsOverEitherEndOfAnonymousMemoryIsStopped) {
  for (const Backing backing : {Backing::kPrivate, Backing::kMemoryFile}) {
    for (const size_t alignment : {size_t{0}, size_t{1} << 21}) {
      const Result<AnonymousMapping> mapping =
          AnonymousMapping::Create(3 * SystemPage(), alignment, backing);
      ASSERT_TRUE(mapping) << mapping.error().Message();
      volatile std::byte* const data = mapping->data();
      data[mapping->size() - 1] = std::byte{1};
      EXPECT_DEATH(data[mapping->size()] = std::byte{1}, "");
      EXPECT_DEATH(*(data - 1) = std::byte{1}, "");
    }
  }
}

TEST_F(MappingTest, ImpossibleAnonymousMemoryIsAnError) {
  EXPECT_EQ(AnonymousMapping::Create(0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(AnonymousMapping::Create(10, 48).error().code, ErrorCode::kInvalidArgument);
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX / 2}) {
    const Result<AnonymousMapping> mapping = AnonymousMapping::Create(bytes);
    ASSERT_FALSE(mapping) << bytes;
    EXPECT_EQ(mapping.error().code, ErrorCode::kIo);
  }
  EXPECT_EQ(AnonymousMapping::Create(10, size_t{1} << 63).error().code, ErrorCode::kIo);
}

TEST_F(MappingTest, DiscardZeroesWholePagesOnlyForAnyPageSize) {
  for (const size_t page : {size_t{4096}, size_t{16384}, size_t{65536}}) {
    if (page < SystemPage()) continue;
    SetPageSizeForTest(page);
    EXPECT_EQ(PageSize(), page);
    const Result<AnonymousMapping> mapping = AnonymousMapping::Create(4 * page);
    ASSERT_TRUE(mapping);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(mapping->data()) % page, 0u);
    std::byte* const data = mapping->data();
    std::fill_n(data, 4 * page, std::byte{1});
    mapping->Discard(1, 2 * page);  // only page 1 lies wholly inside [1, 2 * page + 1)
    EXPECT_EQ(std::count(data, data + page, std::byte{1}), static_cast<std::ptrdiff_t>(page));
    EXPECT_EQ(std::count(data + page, data + 2 * page, std::byte{1}), 0);
    EXPECT_EQ(std::count(data + 2 * page, data + 4 * page, std::byte{1}),
              static_cast<std::ptrdiff_t>(2 * page));
    mapping->Discard(2 * page + 1, page - 1);  // no whole page
    mapping->Discard(3 * page, page - 1);
    mapping->Discard(SIZE_MAX, SIZE_MAX);
    EXPECT_EQ(std::count(data + 2 * page, data + 4 * page, std::byte{1}),
              static_cast<std::ptrdiff_t>(2 * page));
    mapping->Discard(3 * page, SIZE_MAX);
    EXPECT_EQ(std::count(data + 3 * page, data + 4 * page, std::byte{1}), 0);
  }
}

TEST_F(MappingTest, AMemoryFileCanBeMappedAgainAndGivesItsPagesBack) {
  const size_t page = PageSize();
  constexpr size_t kPages = 1024;  // the kernel counts what is resident in steps of some dozen
  const Result<AnonymousMapping> mapping =
      AnonymousMapping::Create(kPages * page, 0, Backing::kMemoryFile);
  ASSERT_TRUE(mapping.has_value());
  std::memset(mapping->data(), 7, mapping->size());
  void* const again = ::mmap(nullptr, mapping->file_offset() + mapping->size(), PROT_READ,
                             MAP_SHARED, mapping->file().get(), 0);
  ASSERT_NE(again, MAP_FAILED);
  const auto* view = static_cast<const char*>(again) + mapping->file_offset();
  EXPECT_EQ(view[(kPages - 1) * page], 7);
  const uint64_t before = ReadProcessMemory()->rss_shmem_bytes;
  mapping->Discard(0, kPages / 2 * page);
  EXPECT_EQ(view[0], 0);
  EXPECT_EQ(mapping->data()[page], std::byte{0});
  EXPECT_EQ(view[kPages / 2 * page], 7);
  EXPECT_LE(ReadProcessMemory()->rss_shmem_bytes, before - kPages / 4 * page);
  ::munmap(again, mapping->file_offset() + mapping->size());
}

TEST_F(MappingTest, APrivateMappingHasNoFile) {
  EXPECT_FALSE(AnonymousMapping::Create(4096)->file().is_open());
}

TEST_F(MappingTest, AMovedAnonymousMappingLeavesNothingBehind) {
  AnonymousMapping first = AnonymousMapping::Create(4096).value();
  std::byte* const data = first.data();
  data[0] = std::byte{7};
  AnonymousMapping second = std::move(first);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT: empty by contract
  EXPECT_EQ(first.size(), 0u);
  second = AnonymousMapping::Create(8192).value();
  EXPECT_EQ(second.size(), 8192u);
  EXPECT_EQ(second.data()[0], std::byte{0});
}

}  // namespace
}  // namespace tael::mem
