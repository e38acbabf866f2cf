#include "server/server.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "text/prompt.h"

namespace tael::server {
namespace {

// A pass of streamed weights from a slow card takes seconds.
constexpr std::chrono::seconds kLongestPass{120};

uint64_t EncodingBytes(const HttpServerOptions& options) {
  return kBytesPerEncodedByte * options.max_body_bytes;
}

// Ids that every conversation with this system prompt begins with: what two of them have in common
// whose questions differ from the first byte on.
Result<std::vector<TokenId>> CommonPrefix(const Service& service) {
  TAEL_ASSIGN_OR_RETURN(EncodedPrompt one, service.EncodeMessages({{"user", "A"}}));
  TAEL_ASSIGN_OR_RETURN(const EncodedPrompt other, service.EncodeMessages({{"user", "7"}}));
  const auto end = std::ranges::mismatch(one.ids, other.ids).in1;
  one.ids.erase(end, one.ids.end());
  return std::move(one.ids);
}

// Some templates write earlier turns differently when later ones come (they take reasoning out, or
// move the system prompt): what was computed for those is then computed again. Says so once.
void NoteTemplateBreak(const Service& service, const std::function<void(std::string_view)>& log) {
  std::string words;
  for (int i = 0; i < 64; ++i) words += "word ";
  const text::ChatMessage question{"user", words};
  const auto before = service.EncodeMessages({question});
  const auto after = service.EncodeMessages({question, {"assistant", words}, question});
  // A template may refuse these turns: clients hear of it when they send such.
  if (!log || !before || !after) return;
  constexpr size_t kTolerance = 16;  // a row of the prefix index
  const auto kept =
      static_cast<size_t>(std::ranges::mismatch(before->ids, after->ids).in1 - before->ids.begin());
  if (kept + kTolerance >= before->ids.size()) return;
  log("template_prefix_break: the model's template renders earlier turns differently when later "
      "ones follow; " +
      std::to_string(before->ids.size() - kept) + " of " + std::to_string(before->ids.size()) +
      " tokens of a first turn are computed again with the second");
}

}  // namespace

uint64_t ServerBytes(const HttpServerOptions& options) {
  return HttpAccounts::Bytes(options) + EncodingBytes(options);
}

std::string ModelNameOf(const engine::Engine& engine, const std::string& path) {
  const auto name = engine.model().file().GetString("general.name");
  if (name && *name && !(*name)->empty()) return std::string(**name);
  return std::filesystem::path(path).stem().string();
}

Result<std::unique_ptr<Server>> Server::Create(engine::Engine& engine, ListenSocket socket,
                                               ServerOptions options) {
  std::unique_ptr<Server> server(new Server());
  // Before the scheduler, whose prefix index takes what it can get.
  TAEL_ASSIGN_OR_RETURN(HttpAccounts accounts, HttpAccounts::Create(engine.budget(), options.http));
  TAEL_ASSIGN_OR_RETURN(auto encoding,
                        MemoryAccount::Create(engine.budget(), EncodingBytes(options.http)));
  const gguf::File& file = engine.model().file();
  auto chat_template = text::LoadChatTemplate(file, engine.tokenizer());
  // A build without a template engine still continues texts.
  if (!chat_template && chat_template.error().code != ErrorCode::kUnsupported) {
    return std::move(chat_template).error();
  }
  const auto log = options.scheduler.log;
  TAEL_ASSIGN_OR_RETURN(server->scheduler_,
                        engine::Scheduler::Create(engine, std::move(options.scheduler)));
  if (!options.state_folder.empty()) {
    TAEL_ASSIGN_OR_RETURN(server->state_, StateKeeper::Create(engine, *server->scheduler_,
                                                              options.state_folder, log));
  }
  server->service_ = std::make_unique<Service>(engine, *server->scheduler_);
  Service& service = *server->service_;
  service.encoding_account = std::move(encoding);
  service.model_name = std::move(options.model_name);
  if (chat_template) {
    service.chat_template = *std::move(chat_template);
  } else {
    service.no_template = chat_template.error();
  }
  service.has_own_template = text::HasChatTemplate(file);
  service.system_prompt = std::move(options.system_prompt);
  service.why_degraded = [raw = server.get()] { return raw->WhyDegraded(); };
  TAEL_RETURN_IF_ERROR(server->PinSystemPrompt(options.keys.Salts()));
  NoteTemplateBreak(service, log);

  server->router_ = std::make_unique<Router>(service, std::move(options.keys));
  TAEL_ASSIGN_OR_RETURN(server->http_, HttpServer::Create(options.http, std::move(socket),
                                                          std::move(accounts), *server->router_));
  TAEL_RETURN_IF_ERROR(server->WatchPressure(log));
  return server;
}

Server::~Server() { Stop(std::chrono::milliseconds(0)); }

void Server::Stop(std::chrono::milliseconds grace) {
  if (http_ != nullptr) http_->Stop(grace);
}

// Once for each tenant: what one of them sent is never found by another.
Status Server::PinSystemPrompt(const std::vector<uint64_t>& salts) {
  if (service_->system_prompt.empty()) return {};
  TAEL_ASSIGN_OR_RETURN(const std::vector<TokenId> prefix, CommonPrefix(*service_));
  for (const uint64_t salt : salts) TAEL_RETURN_IF_ERROR(scheduler_->Pin(prefix, salt));
  return {};
}

// What is asked back comes from idle prefixes first; the scheduler says in the log what it did.
Status Server::WatchPressure(std::function<void(std::string_view)> log) {
  mem::PressureWatcher::Options options;
  options.file_bytes = service_->engine.plan().part(mem::MemoryTag::kWeights);
  const auto respond = [this, log = std::move(log)](const mem::PressureReading& reading) {
    const mem::PressureLevel before = [&] {
      const std::lock_guard lock(mutex_);
      return std::exchange(last_pressure_, reading).level;
    }();
    if (log) {
      log("memory pressure: " + std::string(ToString(reading.level)) +
          (reading.cause.empty() ? "" : " (" + reading.cause + ")"));
    }
    if (reading.level <= before) return;
    scheduler_->Trim(reading.level == mem::PressureLevel::kCritical ? engine::TrimLevel::kCritical
                                                                    : engine::TrimLevel::kModerate);
  };
  TAEL_ASSIGN_OR_RETURN(pressure_, mem::PressureWatcher::Create(std::move(options), respond));
  return {};
}

std::string Server::WhyDegraded() const {
  std::string why = service_->engine.weight_room().Why();
  if (!why.empty()) return why;
  const std::lock_guard lock(mutex_);
  return last_pressure_.cause;
}

bool Server::IsAlive() {
  const engine::SchedulerStats stats = scheduler_->Stats();
  const auto now = std::chrono::steady_clock::now();
  const bool is_idle = stats.running - std::min(stats.running, stats.paused) == 0;
  if (is_idle || stats.passes != passes_seen_) last_progress_ = now;
  passes_seen_ = stats.passes;
  return now - last_progress_ < kLongestPass;
}

}  // namespace tael::server
