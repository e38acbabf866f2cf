// Files that are written whole or not at all, and read front to back in small steps: what a
// snapshot needs of the file system. Neither side keeps what it has gone past in the page cache,
// which counts against a memory limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/file_descriptor.h"
#include "base/result.h"

namespace tael::kv {

// A new content for `path`. Until Commit() has returned, whoever opens `path` finds the old one,
// also after a crash; without Commit() it stays.
class NewFile {
 public:
  // Readable by its owner only: it holds what users said. Fails: kIo, kNotFound (the folder).
  static Result<NewFile> Create(const std::string& path);
  NewFile(NewFile&&) noexcept = default;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  Status Write(const void* data, size_t bytes);  // Fails: kIo, naming a full disk
  Status Commit();

 private:
  NewFile(std::string path, FileDescriptor file);
  Error Failed(const char* what, int error) const;

  std::string path_;
  std::string temporary_;
  FileDescriptor file_;
  uint64_t written_ = 0;
  uint64_t synced_ = 0;
};

class OldFile {
 public:
  // Fails: kNotFound; kIo for whatever is no regular file that can be read.
  static Result<OldFile> Open(const std::string& path);

  uint64_t size() const { return size_; }
  uint64_t left() const { return size_ - offset_; }
  Status Read(void* data, size_t bytes);  // Fails: kMalformed past the end; kIo
  Status Skip(uint64_t bytes);            // Fails: kMalformed past the end

 private:
  OldFile(std::string path, FileDescriptor file, uint64_t size);
  Error PastTheEnd() const;

  std::string path_;
  FileDescriptor file_;
  uint64_t size_ = 0;
  uint64_t offset_ = 0;
  uint64_t dropped_ = 0;  // of the page cache
};

}  // namespace tael::kv
