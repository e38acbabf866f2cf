// The whole server: one loaded model behind the OpenAI API, inside its part of the memory plan.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/scheduler.h"
#include "mem/pressure.h"
#include "server/api_keys.h"
#include "server/http_server.h"
#include "server/listen_socket.h"
#include "server/router.h"
#include "server/service.h"
#include "server/state_keeper.h"

namespace tael::server {

struct ServerOptions {
  HttpServerOptions http;
  engine::SchedulerOptions scheduler;
  ApiKeys keys;
  std::string model_name;     // as clients see it: ModelNameOf()
  std::string system_prompt;  // "": none; computed at the start, and kept in memory
  std::string state_folder;   // "": none; prefixes are kept there (state_keeper.h)
};

// What the server takes beside the engine, for EngineOptions::server_bytes: all connections that
// there may be, one body of the largest size (or more of smaller ones), and what it takes to encode
// one.
uint64_t ServerBytes(const HttpServerOptions& options);

// "SmolLM2 135M Instruct" as the file names itself, else its name without folder and ".gguf".
std::string ModelNameOf(const engine::Engine& engine, const std::string& path);

class Server {
 public:
  // Serves what comes in by `socket`, from now on. `engine` outlives it and is its own meanwhile.
  // Fails: kInvalidArgument, kOutOfBudget (the system prompt, the plan's server part), kIo, and as
  // LoadChatTemplate().
  static Result<std::unique_ptr<Server>> Create(engine::Engine& engine, ListenSocket socket,
                                                ServerOptions options);
  ~Server();

  // Accepts no more, gives running answers so long to end, and cancels those that have not.
  void Stop(std::chrono::milliseconds grace);

  // False when the scheduler has had work for long and has done none: for a watchdog. Called from
  // one thread.
  bool IsAlive();

  const std::string& model_name() const { return service_->model_name; }

 private:
  Server() = default;
  Status PinSystemPrompt(const std::vector<uint64_t>& salts);
  Status WatchPressure(std::function<void(std::string_view)> log);
  std::string WhyDegraded() const;

  // Destroyed bottom up: nobody calls what is gone already.
  std::unique_ptr<engine::Scheduler> scheduler_;
  std::unique_ptr<StateKeeper> state_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Router> router_;
  mutable std::mutex mutex_;
  mem::PressureReading last_pressure_;  // guarded by mutex_
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<mem::PressureWatcher> pressure_;

  uint64_t passes_seen_ = 0;
  std::chrono::steady_clock::time_point last_progress_ = std::chrono::steady_clock::now();
};

}  // namespace tael::server
