// `tael serve`: the OpenAI API over HTTP, until SIGINT or SIGTERM.
//
// Standard output gets one line, when the server is ready; everything else goes to stderr.
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <utility>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/loading.h"
#include "cli/report.h"
#include "cli/serving.h"
#include "cli/terminal.h"
#include "server/server.h"
#include "server/service_manager.h"

namespace tael::cli {
namespace {

// What running answers get to end when the server stops.
constexpr std::chrono::seconds kGrace{3};
// A context that conversations rarely outgrow.
constexpr uint32_t kGoodContext = 4096;

// Four times what fits the context, mostly: one that is too long is then told by how many tokens.
uint64_t DefaultMaxBody(uint32_t context) {
  constexpr uint64_t kLeast = uint64_t{64} << 10, kUsual = uint64_t{256} << 10, kMost = 2 * kUsual;
  if (context == 0) return kUsual;
  return std::clamp(uint64_t{32} * context, kLeast, kMost);
}

server::HttpServerOptions HttpOptions(const ServeOptions& options) {
  server::HttpServerOptions http;
  http.max_connections = options.max_connections;
  http.max_body_bytes = options.max_body_bytes.value_or(DefaultMaxBody(options.model.context));
  return http;
}

Result<server::ServerOptions> MakeServerOptions(const ServeOptions& options) {
  server::ServerOptions out;
  out.http = HttpOptions(options);
  if (options.api_key_file) {
    TAEL_ASSIGN_OR_RETURN(const std::string keys, ReadFile(*options.api_key_file));
    TAEL_ASSIGN_OR_RETURN(out.keys, server::ApiKeys::Parse(keys, *options.api_key_file));
  }
  if (options.system_file) {
    TAEL_ASSIGN_OR_RETURN(out.system_prompt, ReadFile(*options.system_file));
    if (out.system_prompt.empty()) {
      return Error{ErrorCode::kInvalidArgument, "the system prompt is empty", *options.system_file};
    }
  }
  if (!options.state_folder.empty() && !options.prefix_cache) {
    return Error{ErrorCode::kInvalidArgument, "--state-dir keeps what the prefix cache holds",
                 "leave out --prefix-cache off"};
  }
  // What attention the tokens of a prefix got is not kept with it.
  const kv::Evict evict = options.model.window.evict;
  const bool shares = !kv::ChoosesByAttention(evict);
  if (!shares && (options.system_file || !options.state_folder.empty())) {
    return Error{ErrorCode::kInvalidArgument, "prefixes are not shared where attention chooses",
                 "leave out --system-file and --state-dir, or use --evict drop instead of " +
                     std::string("--evict ") + ToString(evict)};
  }
  out.state_folder = options.state_folder;
  out.scheduler.max_queued = options.queue;
  out.scheduler.max_running = options.sessions.value_or(kDefaultSessions);
  out.scheduler.prefix_cache = options.prefix_cache && shares;
  out.scheduler.prefix_cache_bytes = options.prefix_cache_bytes;
  out.scheduler.idle_release = std::chrono::seconds(options.idle_release_s);
  // A scheduler that waited for whoever reads its log would keep everybody waiting.
  out.scheduler.log = [log = std::make_shared<PatientLog>()](std::string_view line) {
    log->Write(line);
  };
  return out;
}

Status CheckExposure(const server::ListenSocket& socket, const server::ApiKeys& keys,
                     const std::string& host) {
  if (socket.is_loopback() || keys.are_required()) return {};
  return Error{
      ErrorCode::kInvalidArgument, "other machines could use this server without a key",
      "--host " + host + " is not this machine alone; give --api-key-file, or --host 127.0.0.1"};
}

Status Announce(const ServeOptions& options, const std::string& url, uint16_t port,
                const engine::Engine& engine, const server::Server& server) {
  if (options.output.json) {
    Json json = {{"ready", true},
                 {"url", url},
                 {"host", options.host},
                 {"port", port},
                 {"model", server.model_name()},
                 {"ctx", engine.context_length()},
                 {"sessions", options.sessions.value_or(kDefaultSessions)},
                 {"budget_bytes", engine.plan().budget_bytes}};
    AddPolicy(json, options.model.task, engine.plan());
    return PrintJson(json);
  }
  return PrintText("listening on " + url + "\n");
}

// Until a signal comes. Tells the service manager that the scheduler moves.
void WaitForTheEnd(const server::ServiceManager& manager, server::Server& server) {
  const auto interval = manager.watchdog_interval();
  while (!Interrupted().load()) {
    pollfd waiting = {InterruptDescriptor(), POLLIN, 0};
    poll(&waiting, 1, interval ? static_cast<int>(interval->count()) : -1);
    if (interval && server.IsAlive()) manager.Alive();
  }
}

}  // namespace

Result<engine::EngineOptions> ServingEngineOptions(const ServeOptions& options) {
  // Before the plan, which counts the program's code.
  TAEL_RETURN_IF_ERROR(server::HttpLibrary::Load());
  engine::EngineOptions wanted;
  wanted.server_bytes = server::ServerBytes(HttpOptions(options));
  wanted.max_sessions = options.sessions.value_or(kDefaultSessions);
  wanted.logit_rows = wanted.max_sessions;
  wanted = ToEngineOptions(options.model, std::move(wanted));
  if (options.sessions) return wanted;
  // A plan takes a moment: mostly the first one does.
  for (; wanted.max_sessions > 1; wanted.max_sessions /= 2) {
    TAEL_ASSIGN_OR_RETURN(const engine::MemoryPlan plan, engine::ForecastPlan(wanted));
    const uint32_t good = std::min(kGoodContext, plan.trained_context);
    const bool is_good = options.model.context != 0 || plan.context_length >= good;
    if (plan.fits() && !plan.streams() && is_good) break;
  }
  return wanted;
}

Result<int> Execute(const ServeOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);
  CatchTermination(OnRepeat::kEndProcess);
  const auto manager = server::ServiceManager::FromEnvironment();
  TAEL_ASSIGN_OR_RETURN(server::ServerOptions server_options, MakeServerOptions(options));
  TAEL_ASSIGN_OR_RETURN(auto socket, server::ListenSocket::Bind(options.host, options.port));
  TAEL_RETURN_IF_ERROR(CheckExposure(socket, server_options.keys, options.host));

  TAEL_ASSIGN_OR_RETURN(const engine::EngineOptions wanted, ServingEngineOptions(options));
  TAEL_ASSIGN_OR_RETURN(const LoadedEngine loaded, LoadEngineAsPlanned(options.model, wanted));
  engine::Engine& engine = *loaded.engine;
  server_options.model_name = server::ModelNameOf(engine, options.model.path);
  const std::string url = socket.Url();
  const uint16_t port = socket.port();
  TAEL_ASSIGN_OR_RETURN(const auto server, server::Server::Create(engine, std::move(socket),
                                                                  std::move(server_options)));

  TAEL_RETURN_IF_ERROR(Announce(options, url, port, engine, *server));
  if (options.output.verbose) {
    Note(engine.cpus().why);
    Note(MemoryLine(engine));
  }
  manager.Ready("serving " + server->model_name() + " on " + url);
  WaitForTheEnd(manager, *server);
  manager.Stopping();
  Note("stopping");
  server->Stop(kGrace);
  return kExitOk;
}

}  // namespace tael::cli
