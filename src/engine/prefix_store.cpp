#include "engine/prefix_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "engine/prefix_context.h"

namespace tael::engine {
namespace {

std::string FileName(const kv::PrefixContext& context) {
  std::array<char, 40> name{};
  std::snprintf(name.data(), name.size(), "prefixes-%016llx.kv",
                static_cast<unsigned long long>(context.Salt()));
  return name.data();
}

}  // namespace

Result<std::unique_ptr<PrefixStore>> PrefixStore::Create(const Engine& engine, Scheduler& scheduler,
                                                         PrefixStoreOptions options) {
  const std::string folder = options.folder.empty() ? "." : options.folder;
  if (::mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return Error{ErrorCode::kIo, "cannot make the folder for saved prefixes",
                 "\"" + folder + "\": " + std::strerror(errno)};
  }
  std::unique_ptr<PrefixStore> store(new PrefixStore(engine, scheduler, std::move(options)));
  TAEL_ASSIGN_OR_RETURN(store->context_, MakePrefixContext(engine));
  store->path_ = folder + "/" + FileName(store->context_);
  return store;
}

Result<kv::Restored> PrefixStore::Restore() {
  const std::lock_guard lock(mutex_);
  std::optional<Result<kv::Restored>> restored;
  scheduler_.WithPrefixIndex([&](kv::PrefixIndex* index) {
    if (index == nullptr) return;
    restored = kv::RestoreSnapshot(path_, context_, engine_.budget(), *index);
    if (!*restored || index->rows().size() != (*restored)->rows) return;
    // The index holds what the file does, and nothing else.
    const auto snapshot = kv::Snapshot::Collect(*index, context_, engine_.budget());
    if (snapshot && (*restored)->left_out == 0) saved_ = snapshot->fingerprint();
  });
  if (!restored) return kv::Restored{};  // nothing is shared, or the scheduler stops
  if (!*restored && restored->error().code == ErrorCode::kNotFound) return kv::Restored{};
  return *std::move(restored);
}

// What the last hour has left.
uint64_t PrefixStore::BytesAllowed() {
  const auto hour_ago = options_.now() - std::chrono::hours(1);
  while (!written_.empty() && written_.front().first <= hour_ago) written_.pop_front();
  uint64_t left = options_.bytes_per_hour;
  for (const auto& [when, bytes] : written_) left -= std::min(left, bytes);
  return left;
}

Result<uint64_t> PrefixStore::Save() {
  const std::lock_guard lock(mutex_);
  std::optional<Result<kv::Snapshot>> collected;
  scheduler_.WithPrefixIndex([&](kv::PrefixIndex* index) {
    if (index == nullptr) return;
    collected.emplace(kv::Snapshot::Collect(*index, context_, engine_.budget(),
                                            {.max_file_bytes = options_.bytes_per_hour}));
  });
  if (!collected) return uint64_t{0};
  if (!*collected) return collected->error();
  const kv::Snapshot& snapshot = **collected;
  if (snapshot.num_rows() == 0 || snapshot.fingerprint() == saved_) return uint64_t{0};
  if (snapshot.file_bytes() > BytesAllowed()) return uint64_t{0};
  // A file that fails half-way has worn the flash, too.
  written_.emplace_back(options_.now(), snapshot.file_bytes());
  TAEL_RETURN_IF_ERROR(snapshot.Write(path_));
  saved_ = snapshot.fingerprint();
  return snapshot.file_bytes();
}

}  // namespace tael::engine
