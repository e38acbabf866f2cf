// What the command line says, as plain values: command_line.cpp fills them in, the commands use
// them. One struct per command; flags that several commands share have structs of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/speculation.h"
#include "exec/workspace.h"
#include "kernels/kernels.h"
#include "kv/prompt_compression.h"
#include "kv/window_policy.h"
#include "sample/sampler.h"

namespace tael::cli {

struct OutputFlags {
  bool json = false;
  bool verbose = false;
};

// What a model is used for: nothing but other defaults of flags (task.h).
enum class Task : uint8_t { kChat, kCode, kSummary, kDocQa, kTranslate, kReason };

struct ModelFlags {
  std::string path;
  uint64_t budget_bytes = 0;  // 0: auto
  uint32_t threads = 0;       // 0: chosen (exec/cpu_set.h)
  uint32_t context = 0;       // 0: min(trained, what fits)
  exec::Compute compute = exec::Compute::kFast;
  std::optional<kernels::KvTypes> kv_type;
  std::optional<Task> task;
  bool kv_auto = true;       // without kv_type: by layer (engine/kv_types.h),
  bool auto_is_f16 = false;  // or f16 everywhere, because of the task
  std::optional<kernels::KvType> kv_type_k, kv_type_v;  // instead of kv_type's
  bool commit_kv = false;
  mem::Backing kv_backing = mem::Backing::kPrivate;
  bool lock_weights = false;
  kv::WindowPolicy window;      // of no tokens: off
  kv::CompressPolicy compress;  // of prompts
};

struct SamplingFlags {
  sample::SamplerOptions sampler;
  std::optional<uint64_t> seed;  // none: random, and printed
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

// Guessing tokens ahead (engine/speculation.h).
struct SpeculationFlags {
  engine::Speculate when = engine::Speculate::kWhereItPays;
  uint32_t max_draft = engine::Speculation::kMostDraft;
};

// Where text comes from: -p, -f or standard input.
struct TextFlags {
  std::optional<std::string> text;
  std::optional<std::string> file;
};

struct RunOptions {
  OutputFlags output;
  ModelFlags model;
  SamplingFlags sampling;
  SpeculationFlags speculation;
  TextFlags prompt;
  uint32_t max_tokens = 128;
  bool raw = false;
  std::optional<uint32_t> logprobs;
  std::optional<std::string> prompt_tokens;  // JSON arrays of ids
  std::optional<std::string> force_tokens;
};

struct ChatOptions {
  OutputFlags output;
  ModelFlags model;
  SamplingFlags sampling;
  SpeculationFlags speculation;
  std::string system;
  std::optional<uint32_t> max_tokens;  // none: until the model ends, or the context does
};

struct TokenizeOptions {
  OutputFlags output;
  std::string model_path;
  TextFlags text;
  std::vector<std::string> ids;  // for decode
  bool decode = false;
  bool plain = false;
  bool bos = false;
};

struct PlanOptions {
  OutputFlags output;
  ModelFlags model;
  std::optional<uint32_t> sessions;  // none: 1, or what `serve` would choose
  SpeculationFlags speculation;
  bool server = false;               // as `serve` would run
  std::optional<uint64_t> kv_bytes;  // none: what the plan gives to KV
};

struct PackOptions {
  OutputFlags output;
  std::string input;
  std::string output_path;
  uint64_t alignment = 16384;
};

struct InspectOptions {
  OutputFlags output;
  std::string model_path;
};

struct BenchOptions {
  OutputFlags output;
  ModelFlags model;
  uint32_t prompt_tokens = 512;
  uint32_t max_tokens = 64;
  uint32_t repeats = 3;
  uint32_t sessions = 1;  // that decode together
};

struct EvalOptions {
  OutputFlags output;
  ModelFlags model;
  std::optional<std::string> text_file;
  std::optional<std::string> ids_file;
  std::optional<uint32_t> max_tokens;
  std::optional<uint32_t> score_from;
  std::optional<uint32_t> needle;    // prompts at each depth
  std::optional<uint32_t> generate;  // tokens, for `repetition`
  uint64_t seed = 0;
  bool kv_safety = false;  // measure KV types, and write the model's table (kv_safety_file.h)
};

struct ServeOptions {
  OutputFlags output;
  ModelFlags model;
  std::string host = "127.0.0.1";
  uint16_t port = 8080;              // 0: any that is free
  std::optional<uint32_t> sessions;  // that run at once; none: chosen (serving.h)
  uint32_t queue = 32;               // requests that wait
  std::optional<std::string> system_file;
  std::optional<std::string> api_key_file;
  std::string state_folder;  // "": nothing is kept
  bool prefix_cache = true;
  uint64_t prefix_cache_bytes = 0;         // 0: what the KV pool has left
  std::optional<uint64_t> max_body_bytes;  // none: by the context (serve.cpp)
  uint32_t max_connections = 64;
  uint32_t idle_release_s = 0;  // 0: never
};

using CommandOptions =
    std::variant<RunOptions, ChatOptions, PlanOptions, TokenizeOptions, InspectOptions, PackOptions,
                 BenchOptions, EvalOptions, ServeOptions>;

inline const OutputFlags& OutputOf(const CommandOptions& options) {
  return std::visit([](const auto& o) -> const OutputFlags& { return o.output; }, options);
}

}  // namespace tael::cli
