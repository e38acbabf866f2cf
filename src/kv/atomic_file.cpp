#include "kv/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/fault.h"

namespace tael::kv {
namespace {

// So much may lie in the page cache at a time.
constexpr uint64_t kStepBytes = uint64_t{4} << 20;

Error IoError(const char* what, const std::string& path, int error) {
  return Error{ErrorCode::kIo, what, "\"" + path + "\": " + std::strerror(error)};
}

Error OpenError(const char* what, const std::string& path, int error) {
  if (error == ENOENT || error == ENOTDIR) {
    return Error{ErrorCode::kNotFound, "no such file or folder", "\"" + path + "\""};
  }
  return IoError(what, path, error);
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// A renamed file is safe once its folder is. Not every file system can sync one: best effort.
void SyncFolder(const std::string& path) {
  const FileDescriptor folder(
      ::open(FolderOf(path).c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY | O_NONBLOCK));
  if (folder.is_open()) static_cast<void>(::fsync(folder.get()));
}

}  // namespace

// ---- writing ----

NewFile::NewFile(std::string path, FileDescriptor file)
    : path_(std::move(path)), temporary_(path_ + ".new"), file_(std::move(file)) {}

Result<NewFile> NewFile::Create(const std::string& path) {
  // What a crash left behind goes away first, and so does what somebody else put there to read.
  ::unlink((path + ".new").c_str());
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  FileDescriptor file(::open((path + ".new").c_str(), kFlags, S_IRUSR | S_IWUSR));
  if (!file.is_open()) return OpenError("cannot create", path + ".new", errno);
  return NewFile(path, std::move(file));
}

NewFile::~NewFile() {
  if (file_.is_open()) ::unlink(temporary_.c_str());
}

Error NewFile::Failed(const char* what, int error) const {
  Error out = IoError(what, temporary_, error);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    out.detail += "; make room, or give it less to keep";
  }
  return out;
}

Status NewFile::Write(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::write(file_.get(), from, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Failed("cannot write", got < 0 ? errno : ENOSPC);
    from += got;
    bytes -= static_cast<size_t>(got);
    written_ += static_cast<uint64_t>(got);
  }
  if (written_ - synced_ < kStepBytes) return {};
  if (::fdatasync(file_.get()) != 0) return Failed("cannot write", errno);
  ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_DONTNEED);
  synced_ = written_;
  return {};
}

Status NewFile::Commit() {
  if (::fsync(file_.get()) != 0) return Failed("cannot write", errno);
  ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_DONTNEED);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return IoError("cannot replace", path_, errno);
  }
  file_ = FileDescriptor();
  SyncFolder(path_);
  return {};
}

// ---- reading ----

OldFile::OldFile(std::string path, FileDescriptor file, uint64_t size)
    : path_(std::move(path)), file_(std::move(file)), size_(size) {}

Result<OldFile> OldFile::Open(const std::string& path) {
  const bool fault = FaultHere(FaultKind::kRead);
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  FileDescriptor file(fault ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) return OpenError("cannot open", path, fault ? EMFILE : errno);
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) return IoError("cannot stat", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return Error{ErrorCode::kIo, "not a regular file", "\"" + path + "\""};
  }
  return OldFile(path, std::move(file), static_cast<uint64_t>(info.st_size));
}

Error OldFile::PastTheEnd() const {
  return Error{ErrorCode::kMalformed, "cut short",
               "\"" + path_ + "\" ends at " + std::to_string(size_) + " bytes"};
}

Status OldFile::Read(void* data, size_t bytes) {
  if (bytes > left()) return PastTheEnd();
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    if (FaultHere(FaultKind::kRead)) return IoError("cannot read", path_, EIO);
    const ssize_t got = ::pread(file_.get(), to, bytes, static_cast<off_t>(offset_));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return IoError("cannot read", path_, errno);
    if (got == 0) return PastTheEnd();  // it has become shorter
    to += got;
    bytes -= static_cast<size_t>(got);
    offset_ += static_cast<uint64_t>(got);
  }
  if (offset_ - dropped_ >= kStepBytes) {
    ::posix_fadvise(file_.get(), 0, static_cast<off_t>(offset_), POSIX_FADV_DONTNEED);
    dropped_ = offset_;
  }
  return {};
}

Status OldFile::Skip(uint64_t bytes) {
  if (bytes > left()) return PastTheEnd();
  offset_ += bytes;
  return {};
}

}  // namespace tael::kv
