#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/units.h"
#include "cli/flag_values.h"
#include "cli/task.h"
#include "exec/thread_team.h"

namespace tael::cli {
namespace {

constexpr uint64_t kMaxBenchSessions = 128;  // a token of each has to fit one pass
constexpr const char* kVersion = "tael 0.1.0";

// A flag whose text is turned into a value by one of our own parsers.
template <class T>
CLI::Option* AddParsed(CLI::App* app, const std::string& name, const std::string& help,
                       std::function<Result<T>(const std::string&)> parse,
                       std::function<void(T)> store) {
  return app->add_option_function<std::string>(
      name,
      [name, parse, store](const std::string& text) {
        Result<T> value = parse(text);
        if (!value) throw CLI::ValidationError(name, value.error().Message());
        store(*std::move(value));
      },
      help);
}

template <class T>
struct CountOf {
  using Type = T;
};
template <class T>
struct CountOf<std::optional<T>> {
  using Type = T;
};

template <class Target>
CLI::Option* AddCount(CLI::App* app, const std::string& name, Target& target,
                      const std::string& help, uint64_t min, uint64_t max) {
  const auto parse = [min, max](const std::string& text) { return ParseCount(text, min, max); };
  return AddParsed<uint64_t>(app, name, help, parse,
                             [&target](uint64_t value) {
                               target = static_cast<typename CountOf<Target>::Type>(value);
                             })
      ->type_name("N");
}

void AddOutputFlags(CLI::App* app, OutputFlags& output) {
  app->add_flag("--json", output.json, "One JSON object on stdout, for machines");
  app->add_flag("-v,--verbose", output.verbose, "More on stderr: memory, timings");
}

void AddModelPath(CLI::App* app, std::string& path) {
  app->add_option("-m,--model", path, "Model file (GGUF)")->required()->type_name("FILE");
}

void AddTextFlags(CLI::App* app, TextFlags& text, const std::string& what) {
  auto* given = app->add_option("-p,--prompt", text.text, what + "; without -p and -f, stdin");
  given->type_name("TEXT");
  app->add_option("-f,--file", text.file, "The same, from a file, byte for byte")
      ->type_name("FILE")
      ->excludes(given);
}

// Before the flags whose defaults it sets: what is given is stored in the order in which flags were
// added, wherever they stand on the command line, so that theirs win.
void AddTaskFlag(CLI::App* app, ModelFlags& model) {
  AddParsed<Task>(app, "--task",
                  "Other defaults for --kv-type and --window: code, summary: q8, 512..1024; "
                  "doc-qa: q8, 2048..4096; translate, reason: f16, off; chat: as without",
                  ParseTask, [&model](Task task) { ApplyTask(task, model); })
      ->type_name("TASK");
}

void AddKvTypeFlags(CLI::App* app, ModelFlags& model) {
  using kernels::KvType, kernels::KvTypes;
  AddParsed<std::optional<KvTypes>>(
      app, "--kv-type",
      "How keys and values are stored: f16; q8: 8 bits, half the memory; k8v4: 8-bit keys, 4-bit "
      "values; f32; auto (default): q8, or f16 where a task or a table of `tael eval --kv-safety` "
      "asks for it, and in layers that need it",
      ParseKvTypes,
      [&model](std::optional<KvTypes> types) {
        model.kv_type = types;
        model.kv_auto = !types;
      })
      ->type_name("TYPE");
  AddParsed<KvType>(app, "--kv-type-k", "Of keys alone: f16, q8 or f32", ParseKeyType,
                    [&model](KvType type) { model.kv_type_k = type; })
      ->type_name("TYPE");
  AddParsed<KvType>(app, "--kv-type-v", "Of values alone: f16, q8, q4 or f32", ParseValueType,
                    [&model](KvType type) { model.kv_type_v = type; })
      ->type_name("TYPE");
}

void AddWindowFlags(CLI::App* app, kv::WindowPolicy& window) {
  window.best = true;
  AddParsed<kv::WindowPolicy>(
      app, "--window",
      "Tokens that a layer keeps, on average: the first few and the last. N..M: N, and up to M "
      "while there is room; auto: as many as the budget holds, and where that is less than the "
      "model's context, --evict heavy; off: all, and what is longer is refused",
      ParseWindow,
      [&window](const kv::WindowPolicy& given) {
        window.tokens = given.tokens;
        window.start = given.start;
        window.most = given.most;
      })
      ->type_name("N")
      ->default_str("off");
  AddCount(app, "--sinks", window.sinks, "First tokens that a window never drops", 0, kMaxTokens)
      ->default_str("4");
  AddParsed<kv::WindowShape>(app, "--window-shape",
                             "uniform, or layered: shallow layers keep less, deep ones more",
                             ParseWindowShape,
                             [&window](kv::WindowShape shape) {
                               window.shape = shape;
                               window.best = false;
                             })
      ->type_name("SHAPE")
      ->default_str("layered");
  AddCount(app, "--floor", window.floor, "Memory pressure shrinks a window to this at least", 1,
           kMaxTokens)
      ->default_str("256");
  AddParsed<kv::Evict>(app, "--evict",
                       "What becomes of tokens that leave a window: drop; heavy: those that got "
                       "most attention stay, in a quarter of it; merge: so they do, and means of "
                       "the others",
                       ParseEvict,
                       [&window](kv::Evict evict) {
                         window.evict = evict;
                         window.best = false;
                         const bool by_task = window.tokens == kv::WindowPolicy::kAuto;
                         if (kv::ChoosesByAttention(evict) && by_task) window.start = 0;
                       })
      ->type_name("HOW")
      ->default_str("drop");
}

void AddCompressFlag(CLI::App* app, kv::CompressPolicy& compress) {
  AddParsed<kv::CompressPolicy>(
      app, "--compress-prompt",
      "What stays of a prompt once it has been read: N% of its tokens, or N; those that its end "
      "looks at. auto: 40% of prompts of more than 256 tokens; off: all",
      ParseCompressPolicy, [&compress](kv::CompressPolicy policy) { compress = policy; })
      ->type_name("HOW")
      ->default_str("off");
}

void AddModelFlags(CLI::App* app, ModelFlags& model) {
  AddModelPath(app, model.path);
  AddParsed<uint64_t>(app, "--budget",
                      "Memory cap: 600M, 1.8G, 512Mi, bytes; auto: what the system can spare",
                      ParseBudget, [&model](uint64_t bytes) { model.budget_bytes = bytes; })
      ->type_name("SIZE");
  AddCount(app, "--threads", model.threads,
           "Threads, at most one for each usable CPU; default: one for each big core", 1,
           exec::ThreadTeam::kMaxThreads);
  AddCount(app, "--ctx", model.context, "Tokens of context; default: min(trained, what fits)", 1,
           kMaxTokens);
  AddTaskFlag(app, model);
  AddCompressFlag(app, model.compress);
  AddKvTypeFlags(app, model);
  AddWindowFlags(app, model.window);
  AddParsed<exec::Compute>(app, "--compute",
                           "fast (8-bit activations) or reference (f32 activations)", ParseCompute,
                           [&model](exec::Compute compute) { model.compute = compute; })
      ->type_name("HOW");
  AddParsed<bool>(app, "--pool-commit",
                  "KV memory is taken as it is used (lazy) or at start (eager)", ParsePoolCommit,
                  [&model](bool commit) { model.commit_kv = commit; })
      ->type_name("WHEN")
      ->default_str("lazy");
  AddParsed<mem::Backing>(app, "--pool-backing",
                          "KV memory is private, or a memory file (memfd) that can be mapped again",
                          ParsePoolBacking,
                          [&model](mem::Backing backing) { model.kv_backing = backing; })
      ->type_name("HOW")
      ->default_str("private");
  app->add_flag("--mlock", model.lock_weights,
                "Keep the system from dropping weights; a warning where it refuses");
}

void AddSamplingFlags(CLI::App* app, SamplingFlags& sampling) {
  sample::SamplerOptions& s = sampling.sampler;
  AddCount(app, "--seed", sampling.seed, "Same seed, same text; default: random, and printed", 0,
           UINT64_MAX);
  app->add_option("--temp", s.temperature, "Temperature; 0 is greedy")->capture_default_str();
  app->add_option("--top-k", s.top_k, "Only the k likeliest tokens; 0: off")->capture_default_str();
  app->add_option("--top-p", s.top_p, "The likeliest tokens that make up p; 1: off")
      ->capture_default_str();
  app->add_option("--min-p", s.min_p, "At least p times as likely as the likeliest; 0: off")
      ->capture_default_str();
  app->add_option("--repeat-penalty", s.repeat_penalty, "Of tokens seen lately; 1: off")
      ->capture_default_str();
  app->add_option("--stop", sampling.stop, "Ends the answer before this text; may be repeated")
      ->type_name("TEXT")
      ->type_size(1)
      ->allow_extra_args(false)
      ->check([](const std::string& text) {
        return text.empty() ? std::string("a stop string must not be empty") : std::string();
      });
  app->add_flag("--ignore-eos", sampling.ignore_eos, "Go on after an end-of-text token");
}

void AddSpeculationFlag(CLI::App* app, SpeculationFlags& speculation) {
  AddParsed<SpeculationFlags>(
      app, "--speculate",
      "Guess tokens from the text and check them together; the answer stays the same. auto: where "
      "it pays; off; N: N tokens at every match, as far as the kernels check them exactly",
      ParseSpeculation, [&speculation](SpeculationFlags flags) { speculation = flags; })
      ->type_name("HOW");
}

// Registers a command; its options live in `slot` when the command is the one that was given.
template <class Options>
CLI::App* AddCommand(CLI::App& app, CommandOptions& chosen, const char* name, const char* help,
                     const char* example, std::shared_ptr<Options> options) {
  CLI::App* command = app.add_subcommand(name, help);
  command->footer(std::string("Example:\n  ") + example);
  command->callback([&chosen, options] { chosen = *options; });
  AddOutputFlags(command, options->output);
  return command;
}

void AddRun(CLI::App& app, CommandOptions& chosen) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* run = AddCommand(app, chosen, "run", "Answer one prompt",
                             "tael run -m model.gguf -p \"Why is the sky blue?\" -n 200", options);
  AddModelFlags(run, options->model);
  AddSamplingFlags(run, options->sampling);
  AddSpeculationFlag(run, options->speculation);
  AddTextFlags(run, options->prompt, "The prompt");
  AddCount(run, "-n,--max-tokens", options->max_tokens, "Tokens of the answer at most", 0,
           kMaxTokens)
      ->default_str("128");
  run->add_flag("--raw", options->raw,
                "Continue the prompt as it is, control tokens parsed: no chat template");
  AddCount(run, "--logprobs", options->logprobs, "With --json: the K likeliest at each token", 0,
           1000)
      ->type_name("K");
  run->add_option("--prompt-tokens", options->prompt_tokens,
                  "The prompt as a JSON array of ids; nothing is added")
      ->type_name("IDS")
      ->excludes("--prompt")
      ->excludes("--file");
  run->add_option("--force-tokens", options->force_tokens,
                  "Teacher forcing: these ids are the answer")
      ->type_name("IDS");
}

void AddChat(CLI::App& app, CommandOptions& chosen) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* chat = AddCommand(app, chosen, "chat", "Talk, turn by turn",
                              "tael chat -m model.gguf --system \"Be brief.\"", options);
  AddModelFlags(chat, options->model);
  AddSamplingFlags(chat, options->sampling);
  AddSpeculationFlag(chat, options->speculation);
  chat->add_option("--system", options->system, "What the model is told first")->type_name("TEXT");
  AddCount(chat, "-n,--max-tokens", options->max_tokens,
           "Tokens of an answer at most; default: what the context holds", 1, kMaxTokens);
}

void AddPlan(CLI::App& app, CommandOptions& chosen) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* plan =
      AddCommand(app, chosen, "plan", "Say what fits a budget, before loading anything",
                 "tael plan -m model.gguf --budget 1.8G --sessions 4", options);
  AddModelFlags(plan, options->model);
  AddSpeculationFlag(plan, options->speculation);
  AddCount(plan, "--sessions", options->sessions,
           "Sessions at once, each with the whole context; default: 1", 1, kMaxBenchSessions);
  plan->add_flag("--server", options->server, "As `tael serve` would run with these flags");
  AddParsed<uint64_t>(plan, "--kv-bytes",
                      "Say what so many bytes of KV hold, instead of the plan's", ParseSize,
                      [options](uint64_t bytes) { options->kv_bytes = bytes; })
      ->type_name("SIZE");
}

void AddPack(CLI::App& app, CommandOptions& chosen) {
  auto options = std::make_shared<PackOptions>();
  CLI::App* pack =
      AddCommand(app, chosen, "pack", "Copy a model so that its tensors begin at pages",
                 "tael pack model.gguf packed.gguf --align 16384", options);
  pack->add_option("input", options->input, "Model file (GGUF)")->required()->type_name("IN");
  pack->add_option("output", options->output_path, "File to write")->required()->type_name("OUT");
  AddParsed<uint64_t>(pack, "--align", "Page size of the machines that will map it", ParsePageSize,
                      [options](uint64_t bytes) { options->alignment = bytes; })
      ->type_name("BYTES")
      ->default_str("16384");
}

void AddTokenize(CLI::App& app, CommandOptions& chosen) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* tokenize = AddCommand(app, chosen, "tokenize", "Turn text into token ids, or back",
                                  "tael tokenize -m model.gguf -p \"Hello\"\n"
                                  "  tael tokenize -m model.gguf --decode 19556 28 905",
                                  options);
  AddModelPath(tokenize, options->model_path);
  AddTextFlags(tokenize, options->text, "The text (with --decode: ids)");
  tokenize->add_flag("--decode", options->decode, "Ids to text");
  tokenize->add_flag("--plain", options->plain, "Control tokens in the text are text");
  tokenize->add_flag("--bos", options->bos, "Put the begin-of-text token in front");
  tokenize->add_option("ids", options->ids, "With --decode: ids, or a JSON array of them");
}

void AddInspect(CLI::App& app, CommandOptions& chosen) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* inspect = AddCommand(app, chosen, "inspect", "Show what a model file holds",
                                 "tael inspect -m model.gguf", options);
  AddModelPath(inspect, options->model_path);
}

void AddBench(CLI::App& app, CommandOptions& chosen) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* bench = AddCommand(app, chosen, "bench", "Measure speed and memory",
                               "tael bench -m model.gguf -p 512 -n 64 --threads 2", options);
  AddModelFlags(bench, options->model);
  AddCount(bench, "-p,--prompt-tokens", options->prompt_tokens, "Tokens of the prompt", 1,
           kMaxTokens)
      ->default_str("512");
  AddCount(bench, "-n,--max-tokens", options->max_tokens, "Tokens decoded after it", 1, kMaxTokens)
      ->default_str("64");
  AddCount(bench, "--sessions", options->sessions,
           "Sessions that decode together; speeds are of all of them", 1, kMaxBenchSessions)
      ->default_str("1");
  AddCount(bench, "-r,--repeats", options->repeats, "Timed runs; medians are shown", 1, 1000)
      ->default_str("3");
}

void AddEval(CLI::App& app, CommandOptions& chosen) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* eval =
      AddCommand(app, chosen, "eval", "Measure perplexity, and what a window costs",
                 "tael eval -m model.gguf -f text.txt --ctx 2048 --window 512", options);
  AddModelFlags(eval, options->model);
  auto* text = eval->add_option("-f,--file", options->text_file, "Text to evaluate");
  text->type_name("FILE");
  eval->add_option("--ids", options->ids_file, "A JSON array of ids instead; nothing is added")
      ->type_name("FILE")
      ->excludes(text);
  AddCount(eval, "--tokens", options->max_tokens, "Only the first N tokens of it", 2, kMaxTokens);
  AddCount(eval, "--score-from", options->score_from,
           "First position of a chunk that is scored; default: half of the context", 0, kMaxTokens);
  AddCount(eval, "--needle", options->needle,
           "Also hide pass keys in N prompts of --ctx tokens at each depth, and ask for them", 1,
           1000);
  AddCount(eval, "--generate", options->generate,
           "Also go on with N tokens after half a chunk, and say how much of that repeats", 1,
           kMaxTokens);
  AddCount(eval, "--seed", options->seed, "Of the keys and of what is generated", 0, UINT64_MAX)
      ->default_str("0");
  eval->add_flag("--kv-safety", options->kv_safety,
                 "Measure q8 and k8v4 keys and values against f16 instead, and write a table for "
                 "--kv-type auto: FILE.kv-safety.json beside the model, or in the user's cache");
}

void AddServe(CLI::App& app, CommandOptions& chosen) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* serve =
      AddCommand(app, chosen, "serve", "Serve the OpenAI API over HTTP",
                 "tael serve -m model.gguf --budget 1G --system-file system.txt", options);
  AddModelFlags(serve, options->model);
  serve
      ->add_option("--host", options->host,
                   "Address to listen on; others than this machine's own "
                   "need --api-key-file")
      ->capture_default_str();
  AddCount(serve, "--port", options->port, "Port to listen on; 0: any, and printed", 0, 65535)
      ->default_str("8080");
  AddCount(serve, "--sessions", options->sessions, "Requests that run at once; default: 4", 1,
           kMaxBenchSessions);
  AddCount(serve, "--queue", options->queue, "Requests that wait for them", 0, 4096)
      ->default_str("32");
  serve
      ->add_option("--system-file", options->system_file,
                   "System prompt of conversations that bring none; kept in memory")
      ->type_name("FILE");
  serve
      ->add_option("--api-key-file", options->api_key_file,
                   "Keys that clients must show, one a line")
      ->type_name("FILE");
  serve
      ->add_option("--state-dir", options->state_folder,
                   "Keep computed prompts there, and read them back at the start")
      ->type_name("FOLDER");
  AddParsed<PrefixCache>(serve, "--prefix-cache",
                         "Compute equal beginnings of prompts once, and keep so much KV for that: "
                         "on: what the KV pool has left",
                         ParsePrefixCache,
                         [options](const PrefixCache& cache) {
                           options->prefix_cache = cache.on;
                           options->prefix_cache_bytes = cache.max_bytes;
                         })
      ->type_name("on|off|SIZE")
      ->default_str("on");
  AddParsed<uint64_t>(serve, "--max-body",
                      "Largest body of a request; default: 32 bytes for each token of --ctx, 64Ki "
                      "to 512Ki, or 256Ki",
                      ParseSize, [options](uint64_t bytes) { options->max_body_bytes = bytes; })
      ->type_name("SIZE");
  AddCount(serve, "--max-connections", options->max_connections, "Connections at once", 1, 4096)
      ->default_str("64");
  AddCount(serve, "--idle-release", options->idle_release_s,
           "Give the weights' memory back after so many seconds without work; 0: never", 0,
           kMaxTokens)
      ->default_str("0")
      ->type_name("SECONDS");
}

// Text that begins with a dash ("- milk") would be taken for a flag: it is joined to its own.
std::vector<std::string> JoinTextValues(std::vector<std::string> args) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kTextFlags = {
      {{"-p", "--prompt"},
       {"--prompt", "--prompt"},
       {"--stop", "--stop"},
       {"--system", "--system"}}};
  if (args.empty() || args[0] == "bench") return args;  // its -p is a number
  std::vector<std::string> joined;
  for (size_t i = 0; i < args.size(); ++i) {
    const auto flag = std::find_if(kTextFlags.begin(), kTextFlags.end(),
                                   [&](const auto& names) { return names.first == args[i]; });
    if (flag != kTextFlags.end() && i + 1 < args.size() && args[i + 1].starts_with('-')) {
      joined.push_back(std::string(flag->second) + "=" + args[++i]);
    } else {
      joined.push_back(std::move(args[i]));
    }
  }
  return joined;
}

Error Usage(const std::string& message) {
  return Error{ErrorCode::kInvalidArgument, "command line", message + " (tael --help)"};
}

// What the library would not say well, or not notice.
Status CheckArguments(const CLI::App& app, const std::vector<std::string>& args) {
  const auto is_named = [&args](const CLI::App* command) { return command->check_name(args[0]); };
  if (!args.empty() && !args[0].starts_with('-') && app.get_subcommands(is_named).empty()) {
    return Usage("unknown command \"" + args[0] + "\"");
  }
  for (const std::string& arg : args) {
    if (arg == "--") break;
    if (arg.starts_with("--") && arg.find('=') == arg.size() - 1) {
      return Usage(arg + " has no value");
    }
  }
  return {};
}

}  // namespace

Result<std::variant<CommandOptions, HelpText>> ParseCommandLine(int argc, char** argv) {
  using Parsed = std::variant<CommandOptions, HelpText>;
  try {
    CLI::App app("Small language models inside a hard memory budget", "tael");
    CommandOptions chosen;
    app.require_subcommand(1);
    app.set_version_flag("--version", kVersion);
    AddRun(app, chosen);
    AddChat(app, chosen);
    AddPlan(app, chosen);
    AddTokenize(app, chosen);
    AddInspect(app, chosen);
    AddPack(app, chosen);
    AddBench(app, chosen);
    AddEval(app, chosen);
    AddServe(app, chosen);
    std::vector<std::string> args = JoinTextValues({argv + 1, argv + std::max(argc, 1)});
    TAEL_RETURN_IF_ERROR(CheckArguments(app, args));
    std::reverse(args.begin(), args.end());  // as the library wants them
    try {
      app.parse(std::move(args));
    } catch (const CLI::CallForVersion&) {
      return Parsed{HelpText{std::string(kVersion) + "\n"}};
    } catch (const CLI::CallForHelp&) {
      return Parsed{HelpText{app.help()}};
    } catch (const CLI::CallForAllHelp&) {
      return Parsed{HelpText{app.help("", CLI::AppFormatMode::All)}};
    } catch (const CLI::ParseError& error) {
      return Usage(error.what());
    }
    return Parsed{std::move(chosen)};
  } catch (const std::exception& error) {  // a mistake in the flags' declaration
    return Error{ErrorCode::kInternal, "command line", error.what()};
  }
}

}  // namespace tael::cli
