// How soon the first token comes when nothing of the model is in the page cache, and what that
// takes: one run of one way to read the file. One JSON object on stdout.
//
//   tael_cold_start MODEL chosen|ahead|all|first|lazy|heap [--threads N]
//                   [--advice sequential|random]
//
//   chosen  what Tael does: ahead where a CPU is spare, else first
//   ahead   read in the order of use while the first pass computes
//   all     everything is read before the first pass
//   first   embeddings and three layers, the rest as pages are touched (the specification's)
//   lazy    everything as pages are touched
//   heap    the file is read() into memory first, as an engine with its own copy does; the passes
//           then find it in the page cache, and the copy counts
//
// --advice is what the kernel is told of the whole mapping (MADV_SEQUENTIAL, MADV_RANDOM). Speed of
// decoding 64 tokens afterwards is told too: advice stays in force.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "mem/mapping.h"

namespace tael {
namespace {

constexpr uint32_t kPromptTokens = 32;
constexpr uint32_t kDecodeTokens = 64;

double Milliseconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - since)
      .count();
}

void ForgetPages(const char* path) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

std::unique_ptr<mem::AnonymousMapping> ReadWhole(const char* path) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  const off_t size = fd < 0 ? 0 : ::lseek(fd, 0, SEEK_END);
  if (size <= 0) return nullptr;
  auto copy = mem::AnonymousMapping::Create(static_cast<size_t>(size));
  if (!copy) return nullptr;
  off_t done = 0;
  while (done < size) {
    const ssize_t got = ::pread(fd, copy->data() + done, static_cast<size_t>(size - done), done);
    if (got <= 0) break;
    done += got;
  }
  ::close(fd);
  return std::make_unique<mem::AnonymousMapping>(*std::move(copy));
}

struct Options {
  const char* path = nullptr;
  std::string way;
  size_t threads = 0;
  int advice = MADV_NORMAL;
};

// Before the weights are read: the engine itself gives none.
void Advise(const engine::Engine& engine, int advice) {
  const std::span<const std::byte> bytes = engine.model().mapping().bytes();
  if (advice != MADV_NORMAL) {
    ::madvise(const_cast<std::byte*>(bytes.data()), bytes.size(), advice);  // starts at a page
  }
}

bool FeedTokens(engine::Session& session, uint32_t count) {
  std::vector<TokenId> tokens;
  for (uint32_t i = 0; i < count; ++i) tokens.push_back(TokenId{100 + static_cast<int>(i)});
  return session.Feed(tokens, {}, [](size_t, std::span<float>) {}).has_value();
}

int Measure(const Options& options, std::optional<exec::WarmUp> warm_up) {
  ForgetPages(options.path);
  const auto start = std::chrono::steady_clock::now();
  std::unique_ptr<mem::AnonymousMapping> copy;
  if (options.way == "heap") copy = ReadWhole(options.path);
  engine::EngineOptions wanted;
  wanted.model_path = options.path;
  wanted.num_threads = options.threads;
  wanted.context_length = 256;
  wanted.warm_up = warm_up;
  auto engine = engine::Engine::Create(wanted);
  if (!engine) {
    std::fprintf(stderr, "%s\n", engine.error().Message().c_str());
    return 1;
  }
  Advise(**engine, options.advice);
  engine::Session session = (*engine)->NewSession();
  if (!FeedTokens(session, kPromptTokens)) return 1;
  const double first_token_ms = Milliseconds(start);
  struct rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto decode = std::chrono::steady_clock::now();
  for (uint32_t i = 0; i < kDecodeTokens; ++i) {
    if (!FeedTokens(session, 1)) return 1;
  }
  std::printf(
      "{\"way\": \"%s\", \"first_token_ms\": %.1f, \"peak_rss_bytes\": %lld, "
      "\"major_faults\": %ld, \"decode_tps\": %.2f}\n",
      options.way.c_str(), first_token_ms, static_cast<long long>(usage.ru_maxrss) * 1024,
      usage.ru_majflt, kDecodeTokens / Milliseconds(decode) * 1000);
  return 0;
}

bool Parse(int argc, char** argv, Options& options) {
  if (argc < 3 || argc % 2 == 0) return false;
  options.path = argv[1];
  options.way = argv[2];
  for (int i = 3; i < argc; i += 2) {
    const std::string_view name = argv[i], value = argv[i + 1];
    if (name == "--threads") {
      options.threads = std::strtoull(argv[i + 1], nullptr, 10);
    } else if (name == "--advice" && value == "sequential") {
      options.advice = MADV_SEQUENTIAL;
    } else if (name == "--advice" && value == "random") {
      options.advice = MADV_RANDOM;
    } else {
      return false;
    }
  }
  return true;
}

int Main(int argc, char** argv) {
  const std::map<std::string, std::optional<exec::WarmUp>> ways = {
      {"chosen", std::nullopt},      {"ahead", exec::WarmUp::kAhead},
      {"all", exec::WarmUp::kAll},   {"first", exec::WarmUp::kFirstLayers},
      {"lazy", exec::WarmUp::kNone}, {"heap", std::nullopt}};
  Options options;
  const auto way = Parse(argc, argv, options) ? ways.find(options.way) : ways.end();
  if (way != ways.end()) return Measure(options, way->second);
  std::fputs(
      "usage: tael_cold_start MODEL chosen|ahead|all|first|lazy|heap [--threads N] "
      "[--advice sequential|random]\n",
      stderr);
  return 2;
}

}  // namespace
}  // namespace tael

int main(int argc, char** argv) { return tael::Main(argc, argv); }
