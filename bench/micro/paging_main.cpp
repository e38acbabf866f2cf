// What paging costs: decode attention over the blocks that the pool hands out after a long life,
// against the same kernel over one contiguous buffer. One JSON object on stdout, for bench/compare;
// lines for people on stderr.
//
//   tael_paging [--pairs 500] [--threads 2] [--context 2048] [--step-ms X] [--seed 1]
//                     [--pages large|small]
//
// The shape is Qwen2.5-0.5B's: 24 layers, 2 KV heads of 64, 7 queries each, f16. Before each
// layer's attention as many bytes are read as the layer has weights, so that keys and values come
// from memory as they do when decoding. The arms take turns layer by layer, and who begins changes.
// Only attention is timed; the difference of a pair is the median of its layers times their number.
// A step is what was read plus attention, or --step-ms.
//
//   pool       blocks of a sequence that grew while others came, grew and went: 10^6 blocks were
//              allocated and freed before
//   line       the same blocks one after the other in one buffer
//   by layer   a buffer for each layer: [block][KV head][K tile | V tile]. Differs from `pool` by
//              the layout of a block, too, which holds eight layers of 8 KiB
//   scattered  the pool's blocks in random order: what the figure would be without runs
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "exec/cpu_set.h"
#include "exec/thread_team.h"
#include "kernels/kernels.h"
#include "kv/block_pool.h"
#include "kv/layer_group.h"
#include "kv/sequence.h"
#include "mem/mapping.h"
#include "mem/memory_budget.h"
#include "tool.h"

namespace tael {
namespace {

constexpr uint32_t kLayers = 24;
constexpr uint32_t kKvHeads = 2;
constexpr uint32_t kHeadDim = 64;
constexpr uint32_t kGroup = 7;
constexpr uint32_t kKeysPerPiece = 128;
constexpr size_t kLayerWeightBytes = size_t{14}
                                     << 20;  // Q4_0: 15 M weights and a share of the head
constexpr uint64_t kPoolBytes = uint64_t{256} << 20;

enum class Pages { kSmall, kLarge };  // of all arms

struct Options {
  Pages pages = Pages::kLarge;
  uint32_t pairs = 500;
  uint32_t threads = 2;
  uint32_t context = 2048;
  double step_ms = 0;  // 0: measured
  uint32_t seed = 1;
};

using bench::Bootstrap;
using bench::Estimate;
using bench::Median;
using bench::Must;
using Clock = std::chrono::steady_clock;
double MicrosSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// A server's life: sequences of mixed lengths are prefilled in chunks, grow token by token, and go.
class Life {
 public:
  Life(const kv::Geometry& geometry, kv::BlockPool& pool, uint32_t seed)
      : geometry_(geometry), pool_(pool), random_(seed) {}

  void Run(uint64_t num_blocks) {
    while (handled_ < num_blocks) Turn(12);
  }
  // One that grows to `context` while the others go on; most of it is prefilled.
  kv::Sequence Grow(uint32_t context) {
    kv::Sequence sequence(geometry_, pool_);
    while (sequence.length() < context) {
      const bool prefill = sequence.length() < context * 3 / 4;
      if (!Extend(sequence, std::min(prefill ? 128u : 1u, context - sequence.length()))) DropOne();
      Turn(12);
    }
    return sequence;
  }

 private:
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }

  bool Extend(kv::Sequence& sequence, uint32_t tokens) {
    const uint64_t before = sequence.bytes_in_use();
    if (!sequence.Extend(tokens)) return false;
    handled_ += (sequence.bytes_in_use() - before) / kv::kTargetBlockBytes;
    sequence.Commit(tokens);
    return true;
  }
  void DropOne() {
    if (others_.empty()) return;
    const size_t at = Below(static_cast<uint32_t>(others_.size()));
    handled_ += others_[at].sequence.bytes_in_use() / kv::kTargetBlockBytes;
    std::swap(others_[at], others_.back());
    others_.pop_back();
  }
  // Everybody gets a token; those at their end go, and a new one comes when there are few.
  void Turn(size_t most) {
    for (size_t i = 0; i < others_.size();) {
      if (others_[i].sequence.length() >= others_[i].end || !Extend(others_[i].sequence, 1)) {
        handled_ += others_[i].sequence.bytes_in_use() / kv::kTargetBlockBytes;
        std::swap(others_[i], others_.back());
        others_.pop_back();
      } else {
        ++i;
      }
    }
    if (others_.size() >= most || Below(16) != 0) return;
    Other other{kv::Sequence(geometry_, pool_), 0};
    const uint32_t prompt = 1 + Below(Below(4) == 0 ? 2048 : 400);
    other.end = prompt + 1 + Below(500);
    for (uint32_t done = 0; done < prompt;) {
      const uint32_t chunk = std::min(128u, prompt - done);
      if (!Extend(other.sequence, chunk)) return;
      done += chunk;
    }
    others_.push_back(std::move(other));
  }

  struct Other {
    kv::Sequence sequence;
    uint32_t end;
  };
  const kv::Geometry& geometry_;
  kv::BlockPool& pool_;
  std::mt19937 random_;
  std::vector<Other> others_;
  uint64_t handled_ = 0;
};

// Where a layer's blocks lie.
struct LayerBlocks {
  std::vector<const std::byte*> blocks;
  size_t layer_offset = 0;
};
using Arm = std::vector<LayerBlocks>;

Arm PoolArm(const kv::Geometry& geometry, const kv::Sequence& sequence) {
  Arm arm(kLayers);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const kv::LayerPlace& place = geometry.places[layer];
    const auto view = sequence.Blocks(place.group);
    arm[layer] = {{view.blocks.begin(), view.blocks.end()}, place.layer_offset};
  }
  return arm;
}

Arm ScatteredArm(Arm arm, uint32_t seed) {
  for (LayerBlocks& layer : arm)
    std::shuffle(layer.blocks.begin(), layer.blocks.end(), std::mt19937(seed));
  return arm;
}

mem::AnonymousMapping MapBuffer(size_t bytes, const Options& options) {
  auto memory = Must(mem::AnonymousMapping::Create(bytes, mem::LargePageBytes()));
  if (options.pages == Pages::kLarge) {
    memory.UseLargePages();
  } else {
    memory.UseSmallPages();
  }
  return memory;
}

// The same blocks, one after the other.
Arm LineArm(const kv::Geometry& geometry, const Arm& from, const mem::AnonymousMapping& memory) {
  Arm arm = from;
  const size_t group_bytes = from[0].blocks.size() * geometry.groups[0].block_bytes;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const kv::LayerGroup& group = geometry.group(geometry.places[layer].group);
    const auto index = static_cast<size_t>(geometry.places[layer].group);
    std::byte* out = memory.data() + index * group_bytes;
    for (const std::byte*& block : arm[layer].blocks) {
      std::memcpy(out + arm[layer].layer_offset, block + arm[layer].layer_offset,
                  group.layer_bytes);
      block = out;
      out += group.block_bytes;
    }
  }
  return arm;
}

// The same keys and values, copied together layer by layer.
Arm ByLayerArm(const Arm& from, size_t tile_bytes, const mem::AnonymousMapping& memory) {
  Arm arm(kLayers);
  std::byte* out = memory.data();
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (const std::byte* block : from[layer].blocks) {
      std::memcpy(out, block + from[layer].layer_offset, tile_bytes);
      arm[layer].blocks.push_back(out);
      out += tile_bytes;
    }
  }
  return arm;
}

struct alignas(64) ThreadState {
  std::vector<float> scores = std::vector<float>(kGroup * kKeysPerPiece);
  std::vector<float> out = std::vector<float>(kGroup * kHeadDim);
  uint64_t sum = 0;
};

class Attention {
 public:
  Attention(const Options& options, const kv::Geometry& geometry, exec::ThreadTeam& team)
      : options_(options),
        geometry_(geometry),
        kv_(kernels::Active().kv[static_cast<size_t>(kernels::KvType::kF16)]),
        vec_(kernels::Active().vec),
        team_(team),
        threads_(team.size()),
        queries_(kGroup * kHeadDim, 0.05f) {}

  // Reads a layer's weights, then attends; the microseconds of both.
  struct Times {
    double read_us = 0;
    double attend_us = 0;
  };
  Times Layer(const LayerBlocks& layer, std::span<const uint64_t> weights) {
    Times times;
    team_.Run([&](size_t thread) {
      team_.Barrier();
      const auto start = Clock::now();
      const exec::Range mine = exec::SplitRange(weights.size(), 512, thread, team_.size());
      uint64_t sum = 0;
      for (size_t i = mine.begin; i < mine.end; ++i) sum += weights[i];
      threads_[thread].sum += sum;
      team_.Barrier();
      const auto read = Clock::now();
      Attend(layer, thread);
      team_.Barrier();
      if (thread == 0) {
        times.attend_us = MicrosSince(read);
        times.read_us = std::chrono::duration<double, std::micro>(read - start).count();
      }
    });
    return times;
  }
  float Check() const {
    float sum = 0;
    for (const ThreadState& state : threads_)
      sum += state.out[0] + static_cast<float>(state.sum & 1);
    return sum;
  }

 private:
  // As exec/attention.cpp does for one row: pieces of 128 keys of a KV head, dealt out in turn.
  void Attend(const LayerBlocks& layer, size_t thread) {
    ThreadState& state = threads_[thread];
    const kv::LayerGroup& group = geometry_.groups[0];
    const uint32_t pieces = (options_.context + kKeysPerPiece - 1) / kKeysPerPiece;
    for (uint32_t unit = 0; unit < pieces * kKvHeads; ++unit) {
      if (unit % team_.size() != thread) continue;
      const uint32_t begin = unit % pieces * kKeysPerPiece;
      const uint32_t count = std::min(kKeysPerPiece, options_.context - begin);
      kernels::AttendCall call{};
      call.blocks = layer.blocks.data() + begin / kernels::kBlockTokens;
      call.tile_offset = layer.layer_offset + unit / pieces * group.head_bytes;
      call.num_tokens = count;
      call.head_dim = kHeadDim;
      call.num_rows = kGroup;
      call.q = queries_.data();
      call.q_stride = kHeadDim;
      call.scores = state.scores.data();
      call.score_stride = kKeysPerPiece;
      kv_.scores(call);
      std::ranges::fill(state.out, 0.0f);
      for (uint32_t row = 0; row < kGroup; ++row) {
        float* scores = state.scores.data() + row * kKeysPerPiece;
        vec_.exp_sum(scores, vec_.max(scores, count), count);
      }
      call.tile_offset += group.k_tile_bytes;
      call.out = state.out.data();
      call.out_stride = kHeadDim;
      kv_.values(call);
    }
  }

  const Options& options_;
  const kv::Geometry& geometry_;
  const kernels::KvTable& kv_;
  const kernels::VectorTable& vec_;
  exec::ThreadTeam& team_;
  std::vector<ThreadState> threads_;
  std::vector<float> queries_;
};

struct Comparison {
  std::vector<double> difference_us;  // of a pair: attention of one step, first arm - second
  std::vector<double> first_us, second_us, step_us;
};

Comparison Compare(const Options& options, Attention& attention, const Arm& first,
                   const Arm& second, std::span<const uint64_t> weights) {
  Comparison out;
  const size_t layer_words = kLayerWeightBytes / sizeof(uint64_t);
  for (uint32_t pair = 0; pair < options.pairs + 5; ++pair) {
    // A neighbour that takes the core hits a layer or two of a pair: the median of the layers does
    // not see it, as their sum would.
    std::vector<double> us[2], difference;
    double read = 0;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint32_t turn = 0; turn < 2; ++turn) {
        const uint32_t arm = (turn + pair + layer) % 2;
        const auto times = attention.Layer((arm == 0 ? first : second)[layer],
                                           weights.subspan(layer * layer_words, layer_words));
        us[arm].push_back(times.attend_us);
        read += times.read_us / 2;
      }
      difference.push_back(us[0].back() - us[1].back());
    }
    if (pair < 5) continue;  // warming up
    out.difference_us.push_back(kLayers * Median(difference));
    out.first_us.push_back(kLayers * Median(us[0]));
    out.second_us.push_back(kLayers * Median(us[1]));
    out.step_us.push_back(read + out.first_us.back());
  }
  return out;
}

// The key of a comparison and its figures, as a member of the JSON object; the same for people.
void Print(const char* key, const char* name, const Options& options, const Comparison& result) {
  const Estimate us = Bootstrap(result.difference_us, options.seed);
  const double step = options.step_ms > 0 ? options.step_ms * 1000 : Median(result.step_us);
  std::printf(
      "\"%s\": {\"difference_us\": %.3f, \"low_us\": %.3f, \"high_us\": %.3f, \"first_us\": %.1f, "
      "\"second_us\": %.1f, \"step_us\": %.1f, \"pairs\": %zu}",
      key, us.median, us.low, us.high, Median(result.first_us), Median(result.second_us), step,
      result.difference_us.size());
  std::fprintf(stderr,
               "%-17s %+.1f us (%.0f and %.0f us), step %.2f ms: %+.3f %%, 95 %% of the bootstrap "
               "in [%+.3f, %+.3f] %%, %zu pairs\n",
               name, us.median, Median(result.first_us), Median(result.second_us), step / 1000,
               100 * us.median / step, 100 * us.low / step, 100 * us.high / step,
               result.difference_us.size());
}

void PrintRuns(const Arm& arm, size_t block_bytes) {
  size_t runs = 0, blocks = 0, in_long_runs = 0;
  for (const LayerBlocks& layer : arm) {
    size_t length = 0;
    for (size_t i = 0; i <= layer.blocks.size(); ++i) {
      const bool goes_on =
          i > 0 && i < layer.blocks.size() && layer.blocks[i] == layer.blocks[i - 1] + block_bytes;
      if (!goes_on && length > 0) {
        ++runs;
        blocks += length;
        if (length >= 4) in_long_runs += length;
        length = 0;
      }
      ++length;
    }
  }
  std::fprintf(stderr,
               "pool: runs of %.1f blocks on average, %.0f %% of blocks in runs of four or more\n",
               static_cast<double>(blocks) / static_cast<double>(runs),
               100.0 * static_cast<double>(in_long_runs) / static_cast<double>(blocks));
}

void FillWithValues(const Arm& arm, size_t bytes) {
  std::mt19937 random(7);
  for (const LayerBlocks& layer : arm) {
    for (const std::byte* block : layer.blocks) {
      auto* out = reinterpret_cast<uint16_t*>(const_cast<std::byte*>(block + layer.layer_offset));
      for (size_t i = 0; i < bytes / 2; ++i)
        out[i] = static_cast<uint16_t>(0x3000 + random() % 0x800);
    }
  }
}

int Main(const Options& options) {
  const kv::LayerShape shape{.num_kv_heads = kKvHeads, .head_dim = kHeadDim};
  const kv::Geometry geometry =
      kv::MakeGeometry(std::vector<kv::LayerShape>(kLayers, shape), kernels::Active());
  mem::MemoryBudget budget(uint64_t{1} << 32);
  kv::PoolOptions pool_options;
  pool_options.capacity_bytes = kPoolBytes;
  pool_options.slab_bytes = size_t{2} << 20;  // as engine/plan.cpp
  pool_options.large_pages = options.pages == Pages::kLarge;
  for (const auto& group : geometry.groups) pool_options.block_bytes.push_back(group.block_bytes);
  const auto pool = Must(kv::BlockPool::Create(budget, pool_options));
  Life life(geometry, *pool, options.seed);
  life.Run(1000000);
  const kv::Sequence sequence = life.Grow(options.context);

  const Arm paged = PoolArm(geometry, sequence);
  const size_t layer_bytes = geometry.groups[0].layer_bytes;
  FillWithValues(paged, layer_bytes);
  const size_t num_blocks = paged[0].blocks.size();
  const auto line_memory = MapBuffer(num_blocks * geometry.RowBytes(), options);
  const Arm line = LineArm(geometry, paged, line_memory);
  const auto layer_memory = MapBuffer(num_blocks * kLayers * layer_bytes, options);
  const Arm by_layer = ByLayerArm(paged, layer_bytes, layer_memory);
  const std::vector<uint64_t> weights(kLayers * kLayerWeightBytes / sizeof(uint64_t), 3);

  const auto choice =
      exec::ChooseCpus(exec::ReadCpuTopology(exec::AffinityCpus()), options.threads);
  const auto team = Must(exec::ThreadTeam::Create(choice.num_threads, choice.cpus));
  Attention attention(options, geometry, *team);
  std::fprintf(stderr, "%s kernels, %s, context %u\n", kernels::Active().isa, choice.why.c_str(),
               options.context);
  PrintRuns(paged, geometry.groups[0].block_bytes);
  const auto compare = [&](const char* key, const char* name, const Arm& first, const Arm& second) {
    Print(key, name, options, Compare(options, attention, first, second, weights));
  };
  std::printf("{");
  compare("line", "pool - line", paged, line);
  std::printf(", ");
  compare("by_layer", "pool - by layer", paged, by_layer);
  std::printf(", ");
  compare("scattered", "scattered - line", ScatteredArm(paged, options.seed), line);
  std::printf("}\n");
  return attention.Check() == 12345.0f ? 1 : 0;  // the sums are used
}

bool SetFlag(Options& options, std::string_view flag, const std::string& text) {
  if (flag == "--pages") {
    options.pages = text == "small" ? Pages::kSmall : Pages::kLarge;
    return text == "small" || text == "large";
  }
  const double value = std::atof(text.c_str());
  if (flag == "--step-ms") {
    options.step_ms = value;
    return value > 0;
  }
  const std::pair<std::string_view, uint32_t*> counts[] = {{"--pairs", &options.pairs},
                                                           {"--threads", &options.threads},
                                                           {"--context", &options.context},
                                                           {"--seed", &options.seed}};
  for (const auto& [name, count] : counts) {
    if (name != flag) continue;
    *count = static_cast<uint32_t>(value);
    return value >= 1;
  }
  return false;
}

Options Parse(std::span<char*> args) {
  Options options;
  for (size_t i = 1; i < args.size(); i += 2) {
    if (i + 1 < args.size() && SetFlag(options, args[i], args[i + 1])) continue;
    std::fprintf(stderr,
                 "usage: tael_paging [--pairs 500] [--threads 2] [--context 2048] "
                 "[--step-ms X] [--seed 1] [--pages large|small]\n");
    std::exit(2);
  }
  return options;
}

}  // namespace
}  // namespace tael

int main(int argc, char** argv) {
  return tael::Main(tael::Parse({argv, static_cast<size_t>(argc)}));
}
