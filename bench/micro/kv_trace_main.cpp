// What paging is for: one history of sessions of mixed lengths, served from the same number of
// bytes by slots of the longest context each, and by blocks.
//
//   tael_kv_trace ALLOCATOR [--bytes N] [--sessions N] [--seed N]     contiguous or paged
//
// The shape is that of the specification: 24 layers, 2 KV heads of 128, f16, contexts of up to
// 2,048 tokens (48 MiB), 192 MiB in all. A session arrives every 20 steps, says how long it is
// going to be, and writes one token a step. Who cannot be promised that length is refused. Each
// allocator runs in a process of its own: peak PSS is what the kernel says.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "kv/block_pool.h"
#include "kv/layer_group.h"
#include "kv/sequence.h"
#include "mem/mapping.h"
#include "mem/memory_budget.h"
#include "mem/process_memory.h"

namespace tael {
namespace {

constexpr uint32_t kLayers = 24;
constexpr uint32_t kMaxContext = 2048;
constexpr uint32_t kArrivalSteps = 20;
constexpr uint32_t kSampleSteps = 50;

struct Options {
  bool paged = false;
  uint64_t bytes = uint64_t{192} << 20;
  uint32_t sessions = 2000;
  uint32_t seed = 1;
};

// Keeps sessions of tokens somewhere.
class Store {
 public:
  virtual ~Store() = default;
  // False if a session of `tokens` cannot be promised room.
  virtual bool Open(uint32_t session, uint32_t tokens) = 0;
  virtual void Append(uint32_t session) = 0;
  virtual void Close(uint32_t session) = 0;
};

// A slot of the longest context for each session, taken once and kept.
class Slots : public Store {
 public:
  Slots(uint64_t bytes, uint64_t token_bytes)
      : token_bytes_(token_bytes), slot_bytes_(kMaxContext * token_bytes) {
    const size_t count = bytes / slot_bytes_;
    auto memory = mem::AnonymousMapping::Create(count * slot_bytes_);
    if (!memory) std::exit(1);
    memory_ = *std::move(memory);
    for (uint32_t i = 0; i < count; ++i) free_.push_back(i);
  }
  bool Open(uint32_t session, uint32_t) override {
    if (free_.empty()) return false;
    held_.resize(std::max<size_t>(held_.size(), session + 1));
    held_[session] = {free_.back(), 0};
    free_.pop_back();
    return true;
  }
  void Append(uint32_t session) override {
    auto& [slot, length] = held_[session];
    std::memset(memory_.data() + slot * slot_bytes_ + length++ * token_bytes_, 1, token_bytes_);
  }
  void Close(uint32_t session) override { free_.push_back(held_[session].first); }

 private:
  const uint64_t token_bytes_, slot_bytes_;
  mem::AnonymousMapping memory_;
  std::vector<uint32_t> free_;
  std::vector<std::pair<uint32_t, uint32_t>> held_;  // slot and length, by session
};

class Blocks : public Store {
 public:
  Blocks(const kv::Geometry& geometry, uint64_t bytes) : geometry_(geometry) {
    kv::PoolOptions options;
    for (const kv::LayerGroup& group : geometry.groups) {
      options.block_bytes.push_back(group.block_bytes);
    }
    options.capacity_bytes = bytes;
    auto pool = kv::BlockPool::Create(budget_, std::move(options));
    if (!pool) std::exit(1);
    pool_ = *std::move(pool);
    free_rows_ = bytes / geometry.RowBytes();
  }
  bool Open(uint32_t session, uint32_t tokens) override {
    const uint64_t rows = Rows(tokens);
    if (rows > free_rows_) return false;
    free_rows_ -= rows;
    held_.resize(std::max<size_t>(held_.size(), session + 1));
    held_[session] = {std::make_unique<kv::Sequence>(geometry_, *pool_), rows};
    return true;
  }
  void Append(uint32_t session) override {
    kv::Sequence& sequence = *held_[session].first;
    if (!sequence.Extend(1)) std::exit(1);  // it was promised
    for (size_t g = 0; g < geometry_.groups.size(); ++g) {
      const kv::LayerGroup& group = geometry_.groups[g];
      const size_t bytes = group.block_bytes / kernels::kBlockTokens;
      const uint32_t token = sequence.length();
      std::byte* block = sequence.MutableBlock(kv::GroupId{static_cast<uint32_t>(g)}, token);
      std::memset(block + token % kernels::kBlockTokens * bytes, 1, bytes);
    }
    sequence.Commit(1);
  }
  void Close(uint32_t session) override {
    free_rows_ += held_[session].second;
    held_[session].first.reset();
  }

 private:
  static uint64_t Rows(uint32_t tokens) {
    return (tokens + kernels::kBlockTokens - 1) / kernels::kBlockTokens;
  }
  const kv::Geometry& geometry_;
  mem::MemoryBudget budget_{0};
  std::unique_ptr<kv::BlockPool> pool_;
  uint64_t free_rows_ = 0;
  std::vector<std::pair<std::unique_ptr<kv::Sequence>, uint64_t>> held_;  // and its rows
};

// Of ten sessions seven are questions, two are talks and one reads a document.
uint32_t DrawLength(std::mt19937& rng) {
  const uint32_t kind = rng() % 10;
  if (kind < 7) return 64 + rng() % 192;
  if (kind < 9) return 256 + rng() % 768;
  return 1024 + rng() % (kMaxContext - 1024 + 1);
}

void Run(const Options& options, const kv::Geometry& geometry, Store& store) {
  std::mt19937 rng(options.seed);
  struct Live {
    uint32_t id, left;
  };
  std::vector<Live> live;
  uint64_t peak_pss = 0, tokens = 0;
  uint32_t opened = 0, refused = 0, most_live = 0;
  for (uint32_t step = 0; opened < options.sessions || !live.empty(); ++step) {
    if (step % kArrivalSteps == 0 && opened < options.sessions) {
      const uint32_t length = DrawLength(rng);
      if (store.Open(opened, length)) {
        live.push_back({opened, length});
      } else {
        ++refused;
      }
      ++opened;
    }
    for (Live& session : live) {
      store.Append(session.id);
      ++tokens;
      if (--session.left == 0) store.Close(session.id);
    }
    std::erase_if(live, [](const Live& session) { return session.left == 0; });
    most_live = std::max(most_live, static_cast<uint32_t>(live.size()));
    if (step % kSampleSteps != 0) continue;
    if (const auto pss = mem::ReadPssBytes()) peak_pss = std::max(peak_pss, *pss);
  }
  std::printf(
      "{\"allocator\": \"%s\", \"bytes\": %llu, \"token_bytes\": %llu, \"sessions\": %u, "
      "\"refused\": %u, \"most_at_once\": %u, \"tokens\": %llu, \"peak_pss_bytes\": %llu}\n",
      options.paged ? "paged" : "contiguous", static_cast<unsigned long long>(options.bytes),
      static_cast<unsigned long long>(geometry.BytesPerToken()), options.sessions, refused,
      most_live, static_cast<unsigned long long>(tokens),
      static_cast<unsigned long long>(peak_pss));
}

std::optional<Options> Parse(int argc, char** argv) {
  Options options;
  if (argc < 2 || argc % 2 != 0) return std::nullopt;
  options.paged = std::string_view(argv[1]) == "paged";
  if (!options.paged && std::string_view(argv[1]) != "contiguous") return std::nullopt;
  for (int i = 2; i < argc; i += 2) {
    const std::string_view name = argv[i];
    const unsigned long long value = std::strtoull(argv[i + 1], nullptr, 10);
    if (name == "--bytes") {
      options.bytes = value;
    } else if (name == "--sessions") {
      options.sessions = static_cast<uint32_t>(value);
    } else if (name == "--seed") {
      options.seed = static_cast<uint32_t>(value);
    } else {
      return std::nullopt;
    }
  }
  return options;
}

}  // namespace
}  // namespace tael

int main(int argc, char** argv) {
  using namespace tael;
  const std::optional<Options> options = Parse(argc, argv);
  if (!options) {
    std::fputs("usage: tael_kv_trace contiguous|paged [--bytes N] [--sessions N] [--seed N]\n",
               stderr);
    return 2;
  }
  const std::vector<kv::LayerShape> layers(kLayers, {.num_kv_heads = 2, .head_dim = 128});
  const kv::Geometry geometry = kv::MakeGeometry(layers, kernels::Active());
  std::unique_ptr<Store> store;
  if (options->paged) {
    store = std::make_unique<Blocks>(geometry, options->bytes);
  } else {
    store = std::make_unique<Slots>(options->bytes, geometry.BytesPerToken());
  }
  Run(*options, geometry, *store);
  return 0;
}
