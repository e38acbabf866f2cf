// /v1/memory: the ledger, once or every second; and asking for memory back.
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "report/memory.h"
#include "server/api_error.h"
#include "server/fields.h"
#include "server/json.h"
#include "server/openai_response.h"
#include "server/routes.h"

namespace tael::server {
namespace {

// The ledger again and again, until the client leaves.
class LedgerStream final : public BodyStream {
 public:
  LedgerStream(const engine::Engine& engine, const Client& client)
      : engine_(engine), hook_(client, [this] {
          {
            const std::lock_guard lock(mutex_);
            gone_ = true;
          }
          changed_.notify_all();
        }) {}

  bool Next(std::string& out) override {
    if (begun_) {
      constexpr std::chrono::seconds kInterval{1};
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, kInterval, [this] { return gone_; })) return false;
    }
    begun_ = true;
    out += SseEvent(Dump(report::MemoryToJson(engine_)));
    return true;
  }

 private:
  const engine::Engine& engine_;
  bool begun_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool gone_ = false;  // guarded by mutex_
  GoneHook hook_;      // last: it refers to the others
};

}  // namespace

HttpResponse Memory(Service& service, HttpRequest& request) {
  const std::string_view stream = request.Query("stream");
  if (stream.empty() || stream == "0") return JsonResponse(report::MemoryToJson(service.engine));
  HttpResponse response;
  response.content_type = "text/event-stream; charset=utf-8";
  response.headers.emplace_back("Cache-Control", "no-cache");
  response.stream = std::make_unique<LedgerStream>(service.engine, request.client);
  return response;
}

HttpResponse TrimMemory(Service& service, HttpRequest& request) {
  const auto json = ParseJson(request.body);
  if (!json) return ToResponse(ApiErrorOf(json.error()));
  std::optional<ApiError> error;
  Fields fields(*json, "", error);
  const std::string* level = fields.String("level");
  const bool is_critical = level != nullptr && *level == "critical";
  if (!is_critical && (level == nullptr || *level != "moderate")) {
    fields.Fail("level", "must be moderate (idle prefixes) or critical (all but one request)");
  }
  fields.RefuseOthers();
  if (error) return ToResponse(*error);
  const uint64_t bytes = service.scheduler.Trim(is_critical ? engine::TrimLevel::kCritical
                                                            : engine::TrimLevel::kModerate);
  return JsonResponse({{"trimmed_bytes", bytes}, {"memory", report::MemoryToJson(service.engine)}});
}

}  // namespace tael::server
