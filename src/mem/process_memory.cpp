#include "mem/process_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>

#include "base/checked.h"
#include "base/fault.h"

namespace tael::mem {
namespace {

// The number of "Name:   123 kB" in bytes.
Result<uint64_t> FindKilobytes(std::string_view text, std::string_view name) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(name) || line.substr(name.size()).substr(0, 1) != ":") continue;
    line.remove_prefix(name.size() + 1);
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
    uint64_t kilobytes = 0;
    const auto [stop, ec] = std::from_chars(line.data(), line.data() + line.size(), kilobytes);
    const std::string_view unit(stop, static_cast<size_t>(line.data() + line.size() - stop));
    const std::optional<uint64_t> bytes = CheckedMul<uint64_t>(kilobytes, 1024);
    if (ec != std::errc{} || unit != " kB" || !bytes) break;
    return *bytes;
  }
  return Error{ErrorCode::kMalformed, "process memory: no such field", std::string(name)};
}

// Calls parse(text) on a file of /proc that fits 8 KiB. No heap: a sampler must not disturb what it
// measures.
template <class Parse>
auto ReadProc(const char* path, Parse parse) -> decltype(parse(std::string_view())) {
  std::array<char, 8192> buffer;
  const int fd = FaultHere(FaultKind::kRead) ? -1 : ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return Error{ErrorCode::kIo, "cannot open", std::string(path) + ": " + std::strerror(errno)};
  }
  size_t size = 0;
  ssize_t got = 0;
  do {
    got = ::read(fd, buffer.data() + size, buffer.size() - size);
    if (got > 0) size += static_cast<size_t>(got);
  } while (got > 0 || (got < 0 && errno == EINTR));
  const int error = errno;
  ::close(fd);
  if (got < 0) {
    return Error{ErrorCode::kIo, "cannot read", std::string(path) + ": " + std::strerror(error)};
  }
  return parse(std::string_view(buffer.data(), size));
}

}  // namespace

Result<ProcessMemory> ParseProcStatus(std::string_view text) {
  ProcessMemory out;
  TAEL_ASSIGN_OR_RETURN(out.rss_anon_bytes, FindKilobytes(text, "RssAnon"));
  TAEL_ASSIGN_OR_RETURN(out.rss_file_bytes, FindKilobytes(text, "RssFile"));
  TAEL_ASSIGN_OR_RETURN(out.rss_shmem_bytes, FindKilobytes(text, "RssShmem"));
  TAEL_ASSIGN_OR_RETURN(const uint64_t program, FindKilobytes(text, "VmExe"));
  TAEL_ASSIGN_OR_RETURN(const uint64_t libraries, FindKilobytes(text, "VmLib"));
  out.text_bytes = program + libraries;
  return out;
}

Result<uint64_t> ParseSmapsRollup(std::string_view text) { return FindKilobytes(text, "Pss"); }

Result<ProcessMemory> ReadProcessMemory() { return ReadProc("/proc/self/status", ParseProcStatus); }

Result<uint64_t> ReadPssBytes() { return ReadProc("/proc/self/smaps_rollup", ParseSmapsRollup); }

}  // namespace tael::mem
