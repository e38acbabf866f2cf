// mmap and madvise live here and nowhere else. All rounding to pages works on addresses, so it
// holds for any page size (4, 16 or 64 KiB), also for a size that a test injects.
#include "mem/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/fault.h"
#include "base/file_descriptor.h"

namespace tael::mem {
namespace {

std::atomic<size_t> injected_page_size{0};

size_t SystemPageSize() {
  static const size_t size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

Error IoError(const char* what, const std::string& path, int error) {
  return Error{ErrorCode::kIo, what, "\"" + path + "\": " + std::strerror(error)};
}

int OpenForReading(const std::string& path) {
  if (FaultHere(FaultKind::kRead)) {
    errno = EMFILE;
    return -1;
  }
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

// mmap of the house: MAP_FAILED, with errno, when the system or a test says no.
void* Map(void* at, size_t bytes, int protection, int flags, int fd) {
  if (FaultHere(FaultKind::kMap)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return ::mmap(at, bytes, protection, flags, fd, 0);
}

Error OpenError(const std::string& path, int error) {
  if (error == ENOENT || error == ENOTDIR) {
    return Error{ErrorCode::kNotFound, "no such file", "\"" + path + "\""};
  }
  return IoError("cannot open", path, error);
}

// The size of a regular file with at least one byte that can be read.
Result<size_t> ReadableSize(int fd, const std::string& path) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return IoError("cannot stat", path, errno);
  if (S_ISDIR(info.st_mode)) {
    return Error{ErrorCode::kIo, "a directory, not a file", "\"" + path + "\""};
  }
  if (!S_ISREG(info.st_mode)) {
    return Error{ErrorCode::kIo, "not a regular file", "\"" + path + "\""};
  }
  if (info.st_size <= 0) return Error{ErrorCode::kIo, "the file is empty", "\"" + path + "\""};
  char byte = 0;
  const ssize_t got = FaultHere(FaultKind::kRead) ? -1 : ::pread(fd, &byte, 1, 0);
  if (got < 0) return IoError("cannot read", path, errno);
  if (got == 0) return Error{ErrorCode::kIo, "the file is empty", "\"" + path + "\""};
  return static_cast<size_t>(info.st_size);
}

// The part of a mapping that a request covers, in whole pages; empty when there is none.
struct PageRange {
  uintptr_t begin = 0;
  uintptr_t end = 0;

  void* data() const { return reinterpret_cast<void*>(begin); }
  size_t size() const { return end - begin; }
};

// The pages that [offset, offset + length) of `size` bytes at `base` touches.
PageRange RoundOutward(const std::byte* base, size_t size, size_t offset, size_t length) {
  if (offset >= size || length == 0) return {};
  const uintptr_t begin = reinterpret_cast<uintptr_t>(base) + offset;
  const uintptr_t end = begin + std::min(length, size - offset);
  const uintptr_t page = PageSize();
  // A file is mapped at a page of the system; an injected larger page may begin before it.
  return {std::max(begin / page * page, reinterpret_cast<uintptr_t>(base)),
          RoundUp<uintptr_t>(end, SystemPageSize())};
}

// The pages that lie wholly inside it.
PageRange RoundInward(const std::byte* base, size_t size, size_t offset, size_t length) {
  if (offset >= size) return {};
  const uintptr_t begin = reinterpret_cast<uintptr_t>(base) + offset;
  const uintptr_t end = begin + std::min(length, size - offset);
  const uintptr_t page = PageSize();
  const PageRange range{RoundUp(begin, page), end / page * page};
  return range.begin < range.end ? range : PageRange{};
}

void TouchPages(PageRange range) {
  for (uintptr_t at = range.begin; at < range.end; at += SystemPageSize()) {
    static_cast<void>(*reinterpret_cast<const volatile char*>(at));
  }
}

}  // namespace

size_t PageSize() {
  const size_t injected = injected_page_size.load(std::memory_order_relaxed);
  return injected != 0 ? injected : SystemPageSize();
}

void SetPageSizeForTest(size_t bytes) {
  injected_page_size.store(bytes, std::memory_order_relaxed);
}

Result<FileMapping> FileMapping::Open(const std::string& path) {
  FileDescriptor file(OpenForReading(path));
  if (file.get() < 0) return OpenError(path, errno);
  TAEL_ASSIGN_OR_RETURN(const size_t size, ReadableSize(file.get(), path));
  const size_t page = SystemPageSize();
  if (size > std::numeric_limits<size_t>::max() - kReadSlack - page) {
    return IoError("cannot map", path, EFBIG);
  }

  // Zero pages for file and slack first, then the file over them: whatever the file's size is
  // modulo the page, the bytes after its end belong to us and are zero.
  const size_t mapped = RoundUp(size + kReadSlack, page);
  void* const base =
      Map(nullptr, mapped, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  if (base == MAP_FAILED) return IoError("cannot map", path, errno);
  FileMapping out;
  out.data_ = static_cast<const std::byte*>(base);
  out.size_ = size;
  out.mapped_ = mapped;
  out.path_ = path;
  if (Map(base, size, PROT_READ, MAP_SHARED | MAP_FIXED, file.get()) == MAP_FAILED) {
    return IoError("cannot map", path, errno);
  }
  TAEL_ASSIGN_OR_RETURN(out.guard_, BusGuard::Create(out.data_, RoundUp(size, page)));
  out.file_ = std::move(file);
  return out;
}

FileMapping::FileMapping(FileMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)),
      path_(std::move(other.path_)),
      file_(std::move(other.file_)),
      guard_(std::move(other.guard_)) {}

FileMapping& FileMapping::operator=(FileMapping&& other) noexcept {
  FileMapping taken(std::move(other));
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  std::swap(mapped_, taken.mapped_);
  std::swap(path_, taken.path_);
  std::swap(file_, taken.file_);
  std::swap(guard_, taken.guard_);
  return *this;
}

FileMapping::~FileMapping() {
  guard_ = BusGuard();  // before the addresses can belong to somebody else
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), mapped_);
}

void FileMapping::WillNeed(size_t offset, size_t length) const {
  const PageRange range = RoundOutward(data_, size_, offset, length);
  if (range.size() > 0) ::madvise(range.data(), range.size(), MADV_WILLNEED);
}

void FileMapping::Populate(size_t offset, size_t length) const {
  const PageRange range = RoundOutward(data_, size_, offset, length);
  if (range.size() == 0) return;
#ifdef MADV_POPULATE_READ
  // Only an old kernel (EINVAL) falls through: on any other failure touching would raise SIGBUS.
  if (::madvise(range.data(), range.size(), MADV_POPULATE_READ) == 0 || errno != EINVAL) return;
#endif
  TouchPages(range);
}

void FileMapping::Drop(size_t offset, size_t length) const {
  const PageRange range = RoundInward(data_, size_, offset, length);
  if (range.size() > 0) ::madvise(range.data(), range.size(), MADV_DONTNEED);
}

void FileMapping::Forget(size_t offset, size_t length) const {
  Drop(offset, length);
  if (!file_.is_open() || length == 0) return;  // to the kernel no length is everything
  ::posix_fadvise(file_.get(), static_cast<off_t>(offset), static_cast<off_t>(length),
                  POSIX_FADV_DONTNEED);
}

Result<uint64_t> FileMapping::Lock() const {
  const PageRange range = RoundOutward(data_, size_, 0, size_);
  int failed = -1;
#ifdef MLOCK_ONFAULT
  failed = ::mlock2(range.data(), range.size(), MLOCK_ONFAULT);  // nothing is read here
#endif
  if (failed != 0 && errno != ENOMEM && errno != EPERM) {
    failed = ::mlock(range.data(), range.size());
  }
  if (failed == 0) return range.size();
  const int error = errno;
  struct rlimit limit = {};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  return Error{ErrorCode::kIo, "the weights cannot be locked in memory",
               std::string(std::strerror(error)) + ": the process may lock " +
                   std::to_string(limit.rlim_cur) + " bytes and needs " +
                   std::to_string(range.size()) + "; raise the limit (ulimit -l, LimitMEMLOCK=)"};
}

void FileMapping::Evict() const {
  if (size_ == 0) return;
  // The last page is the file's alone, whatever its size is.
  ::madvise(const_cast<std::byte*>(data_), RoundUp(size_, SystemPageSize()), MADV_DONTNEED);
  ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_DONTNEED);
}

size_t LargePageBytes() {
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  std::string enabled;
  size_t bytes = 0;
  if (!std::getline(std::ifstream(folder + "enabled"), enabled)) return 0;
  if (enabled.find("[never]") != std::string::npos) return 0;
  if (!(std::ifstream(folder + "hpage_pmd_size") >> bytes)) return 0;
  constexpr size_t kMost = size_t{2} << 20;
  return bytes <= kMost && std::has_single_bit(bytes) ? bytes : 0;
}

namespace {

// A file of `bytes` zeros that has no name and takes no memory yet.
FileDescriptor MemoryFile(size_t bytes) {
  FileDescriptor file(FaultHere(FaultKind::kMap) ? -1 : ::memfd_create("tael", MFD_CLOEXEC));
  if (file.is_open() && ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return {};
  return file;
}

}  // namespace

Result<AnonymousMapping> AnonymousMapping::Create(size_t bytes, size_t alignment, Backing backing) {
  if (bytes == 0 || (alignment != 0 && !std::has_single_bit(alignment))) {
    return Error{ErrorCode::kInvalidArgument, "cannot map anonymous memory",
                 std::to_string(bytes) + " bytes aligned to " + std::to_string(alignment) +
                     " (at least one byte, and a power of two)"};
  }
  const size_t align = std::max(alignment, PageSize());
  const size_t guard = SystemPageSize();
  const std::optional<size_t> padded = CheckedAdd(bytes, align);
  const std::optional<size_t> rounded =
      padded ? CheckedAdd(*padded, 2 * guard + SystemPageSize() - 1) : std::nullopt;
  const size_t mapped = rounded ? *rounded / SystemPageSize() * SystemPageSize() : 0;
  const Error no_room{ErrorCode::kIo, "the address space has no room",
                      std::to_string(bytes) + " bytes aligned to " + std::to_string(align)};
  if (mapped == 0) return no_room;
  AnonymousMapping out;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (backing == Backing::kMemoryFile) {
    out.file_ = MemoryFile(mapped);
    if (!out.file_.is_open()) {
      return Error{ErrorCode::kIo, "cannot make a memory file", std::strerror(errno)};
    }
    flags = MAP_SHARED | MAP_NORESERVE;
  }
  void* const base = Map(nullptr, mapped, PROT_READ | PROT_WRITE, flags, out.file_.get());
  if (base == MAP_FAILED) return no_room;
  out.base_ = static_cast<std::byte*>(base);
  out.mapped_ = mapped;
  out.data_ = reinterpret_cast<std::byte*>(
      RoundUp<uintptr_t>(reinterpret_cast<uintptr_t>(base) + guard, align));
  out.size_ = bytes;
  out.Guard();
  return out;
}

AnonymousMapping::AnonymousMapping(AnonymousMapping&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      mapped_(std::exchange(other.mapped_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      file_(std::move(other.file_)) {}

AnonymousMapping& AnonymousMapping::operator=(AnonymousMapping&& other) noexcept {
  AnonymousMapping taken(std::move(other));
  std::swap(base_, taken.base_);
  std::swap(mapped_, taken.mapped_);
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  std::swap(file_, taken.file_);
  return *this;
}

AnonymousMapping::~AnonymousMapping() {
  if (base_ != nullptr) ::munmap(base_, mapped_);
}

// What lies around data() is there for its alignment, and to be run into.
void AnonymousMapping::Guard() const {
  const PageRange used = RoundOutward(data_, size_, 0, size_);
  const auto begin = reinterpret_cast<uintptr_t>(base_);
  ::mprotect(base_, used.begin - begin, PROT_NONE);
  ::mprotect(reinterpret_cast<void*>(used.end), begin + mapped_ - used.end, PROT_NONE);
}

void AnonymousMapping::UseLargePages() const { ::madvise(base_, mapped_, MADV_HUGEPAGE); }

void AnonymousMapping::UseSmallPages() const { ::madvise(base_, mapped_, MADV_NOHUGEPAGE); }

void AnonymousMapping::Commit() const {
  const PageRange range = RoundOutward(data_, size_, 0, size_);
#ifdef MADV_POPULATE_WRITE
  if (::madvise(range.data(), range.size(), MADV_POPULATE_WRITE) == 0) return;
#endif
  for (uintptr_t at = range.begin; at < range.end; at += SystemPageSize()) {
    *reinterpret_cast<volatile char*>(at) = 0;
  }
}

void AnonymousMapping::Discard(size_t offset, size_t length) const {
  const PageRange range = RoundInward(data_, size_, offset, length);
  // Of a file only a hole gives the pages back.
  const int how = file_.is_open() ? MADV_REMOVE : MADV_DONTNEED;
  if (range.size() > 0) ::madvise(range.data(), range.size(), how);
}

}  // namespace tael::mem
