// RAII over mmap: a model file mapped read-only, and anonymous memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/file_descriptor.h"
#include "base/result.h"
#include "mem/bus_guard.h"

namespace tael::mem {

// The system's page size; tests inject others (never a constant in code).
size_t PageSize();
// A power of two not below the system's page size, or 0 to go back to it.
void SetPageSizeForTest(size_t bytes);

// Bytes of the large pages that the system gives to anonymous memory on request; 0 where it does
// not, or where they are larger than 2 MiB (64 KiB base pages have 512 MiB ones).
size_t LargePageBytes();

// A whole file, mapped PROT_READ and MAP_SHARED: clean pages that the kernel may drop and reload.
// At least kReadSlack bytes past the end of the file are readable zeros.
class FileMapping {
 public:
  static constexpr size_t kReadSlack = 64;

  // Fails: kNotFound; kIo for a directory, an unreadable or empty file, or a failed map. The
  // message names the path. A file that shrinks afterwards reads as zeros where it was cut, and
  // damaged() tells.
  static Result<FileMapping> Open(const std::string& path);

  FileMapping() = default;
  FileMapping(FileMapping&& other) noexcept;
  FileMapping& operator=(FileMapping&& other) noexcept;
  ~FileMapping();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  // True once a part of the file turned out to be gone: nothing computed from it can be trusted.
  bool damaged() const { return guard_.damaged(); }

  // Asks the kernel to read [offset, offset + length) ahead; rounds outward to pages.
  void WillNeed(size_t offset, size_t length) const;
  // Maps the pages of the range now (page cache hits cost no I/O), so that kernels do not fault
  // on every page. Rounds outward to pages; best effort.
  void Populate(size_t offset, size_t length) const;
  // Unmaps the pages that lie wholly inside the range: they leave the process's memory, stay in the
  // page cache as long as the kernel likes, and come back with the next touch.
  void Drop(size_t offset, size_t length) const;
  // As Drop, and asks the kernel to take the pages out of the page cache too, which then has room
  // for others. Best effort.
  void Forget(size_t offset, size_t length) const;
  // Keeps the pages that are in memory, and those that come, from being dropped. Returns the bytes
  // that count as locked: whole pages. Fails: kIo, with the limit and the way out.
  Result<uint64_t> Lock() const;
  // Forgets the whole file.
  void Evict() const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t mapped_ = 0;  // including slack
  std::string path_;
  FileDescriptor file_;
  BusGuard guard_;
};

// Where the pages of an AnonymousMapping come from.
enum class Backing {
  kPrivate,
  kMemoryFile,  // an unnamed file of the kernel's (memfd): parts of it can be mapped once more
};

// Anonymous memory, committed page by page on first touch. Zero-filled. Pages around it cannot be
// touched: who runs over either end finds out, and the kernel lists each mapping by itself.
class AnonymousMapping {
 public:
  // `alignment` 0 means a page, as does anything smaller. Reserves address space only: the caller
  // holds a Reservation (memory_budget.h) for what it is going to touch.
  // Fails: kIo when the address space says no; kInvalidArgument for no bytes or an alignment that
  // is no power of two.
  static Result<AnonymousMapping> Create(size_t bytes, size_t alignment = 0,
                                         Backing backing = Backing::kPrivate);

  AnonymousMapping() = default;
  AnonymousMapping(AnonymousMapping&& other) noexcept;
  AnonymousMapping& operator=(AnonymousMapping&& other) noexcept;
  ~AnonymousMapping();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // Of kMemoryFile: the file, and where in it data() is. Not open otherwise.
  const FileDescriptor& file() const { return file_; }
  size_t file_offset() const { return static_cast<size_t>(data_ - base_); }

  // Commits page by page, also where the system hands out 2 MiB pages on first touch: for memory
  // of which unused parts must not be touched. Best effort.
  void UseSmallPages() const;
  // Asks for pages of LargePageBytes() where a whole one fits. Best effort.
  void UseLargePages() const;

  // Touches every page, so that none has to be found later. Best effort.
  void Commit() const;

  // Gives the pages that lie wholly inside [offset, offset + length) back to the kernel; they read
  // as zeros afterwards. Rounds inward.
  void Discard(size_t offset, size_t length) const;

 private:
  void Guard() const;

  std::byte* base_ = nullptr;  // as mapped
  size_t mapped_ = 0;
  std::byte* data_ = nullptr;  // aligned
  size_t size_ = 0;
  FileDescriptor file_;
};

}  // namespace tael::mem
