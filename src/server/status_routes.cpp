// What runs here, how it is, and its figures.
#include <utility>

#include "mem/process_memory.h"
#include "server/api_error.h"
#include "server/json.h"
#include "server/prometheus.h"
#include "server/routes.h"

namespace tael::server {
namespace {

using Kind = PrometheusText::Kind;

double Double(uint64_t value) { return static_cast<double>(value); }

Json ModelJson(const Service& service) {
  return {{"id", service.model_name},
          {"object", "model"},
          {"created", service.started},
          {"owned_by", "tael"},
          {"context_length", service.engine.context_length()}};
}

Json WhyDegraded(const Service& service, const engine::SchedulerStats& stats) {
  Json why = Json::array();
  const engine::MemoryPlan& plan = service.engine.plan();
  if (plan.streams()) {
    why.push_back("the budget does not hold all weights: " +
                  std::to_string(plan.num_layers - plan.resident_layers) + " of " +
                  std::to_string(plan.num_layers) +
                  " layers are read from the file for every token");
  }
  if (stats.under_pressure) why.push_back("the system is short of memory");
  if (service.why_degraded) {
    if (std::string reason = service.why_degraded(); !reason.empty()) {
      why.push_back(std::move(reason));
    }
  }
  return why;
}

void AddMemory(const Service& service, PrometheusText& text) {
  const mem::LedgerSnapshot ledger = service.engine.Ledger();
  text.Add("tael_memory_budget_bytes", Kind::kGauge, "The hard cap on the process's memory.",
           Double(ledger.limit_bytes));
  const auto by_part = [&](const char* name, const char* help, auto value) {
    text.Begin(name, Kind::kGauge, help);
    for (size_t i = 0; i < ledger.parts.size(); ++i) {
      const std::string part(ToString(static_cast<mem::MemoryTag>(i)));
      text.Sample({{"part", part}}, Double(value(ledger.parts[i])));
    }
  };
  by_part("tael_memory_reserved_bytes", "Bytes promised, by part of the ledger.",
          [](const mem::LedgerPart& part) { return part.reserved_bytes; });
  by_part("tael_memory_used_bytes", "Bytes touched, by part of the ledger.",
          [](const mem::LedgerPart& part) { return part.used_bytes; });
  if (const auto process = mem::ReadProcessMemory()) {
    text.Add("tael_process_anonymous_bytes", Kind::kGauge, "Anonymous memory, by the kernel.",
             Double(process->unbacked_bytes()));
    text.Add("tael_process_file_bytes", Kind::kGauge, "Mapped files in memory, by the kernel.",
             Double(process->rss_file_bytes));
  }
  const kv::PoolStats pool = service.engine.pool().Stats();
  text.Add("tael_kv_capacity_bytes", Kind::kGauge, "What the KV pool may hold.",
           Double(pool.capacity_bytes));
  text.Add("tael_kv_blocks_in_use", Kind::kGauge, "KV blocks that somebody holds.",
           Double(pool.num_blocks_in_use));
  text.Add("tael_kv_bytes_in_use", Kind::kGauge, "Bytes of KV blocks that somebody holds.",
           Double(pool.block_bytes_in_use));
}

void AddScheduler(const engine::SchedulerStats& stats, PrometheusText& text) {
  const auto gauge = [&](const char* name, const char* help, uint64_t value) {
    text.Add(name, Kind::kGauge, help, Double(value));
  };
  const auto counter = [&](const char* name, const char* help, uint64_t value) {
    text.Add(name, Kind::kCounter, help, Double(value));
  };
  gauge("tael_requests_queued", "Requests that wait to start.", stats.queued);
  gauge("tael_sequences_running", "Sequences that hold KV.", stats.running);
  gauge("tael_sequences_preempted", "Sequences that wait to go on.", stats.preempted);
  gauge("tael_sequences_paused", "Running sequences whose readers are slow.", stats.paused);
  gauge("tael_weights_released", "1 while the weights are given back to the kernel.",
        stats.weights_released ? 1 : 0);
  gauge("tael_prefix_bytes", "KV in the prefix index.", stats.prefix_bytes);
  gauge("tael_prefix_idle_bytes", "Of it, what no request uses now.", stats.prefix_idle_bytes);
  counter("tael_prefix_hits_total", "Prompts that found a prefix.", stats.prefix_hits);
  counter("tael_prefix_hit_tokens_total", "Tokens found.", stats.prefix_hit_tokens);
  counter("tael_prefix_rejected_hits_total", "Equal hashes of unequal tokens.",
          stats.prefix_rejected_hits);
  counter("tael_prefix_evicted_rows_total", "Rows of 16 tokens that made room.",
          stats.prefix_evicted_rows);
  counter("tael_requests_accepted_total", "Requests accepted.", stats.submitted);
  counter("tael_requests_refused_busy_total", "Requests refused: queue full.", stats.refused_busy);
  counter("tael_requests_finished_total", "Requests answered.", stats.finished);
  counter("tael_requests_cancelled_total", "Requests cancelled.", stats.cancelled);
  counter("tael_requests_slow_reader_total", "Of those, for a slow reader.", stats.slow_readers);
  counter("tael_requests_failed_total", "Requests that failed.", stats.failed);
  counter("tael_passes_total", "Passes over the weights.", stats.passes);
  counter("tael_prompt_tokens_total", "Prompt tokens computed.", stats.prompt_tokens);
  counter("tael_generated_tokens_total", "Tokens sent.", stats.generated_tokens);
  counter("tael_recomputed_tokens_total", "Tokens computed again.", stats.recomputed_tokens);
  counter("tael_preemptions_total", "Sequences put back.", stats.preemptions);
  counter("tael_trims_total", "Times that memory was asked back.", stats.trims);
  counter("tael_trimmed_bytes_total", "KV bytes given back for it.", stats.trimmed_bytes);
}

void AddServer(const Service& service, PrometheusText& text) {
  text.Begin("tael_http_responses_total", Kind::kCounter, "Responses, by status.");
  for (const auto& [status, count] : service.metrics.Responses()) {
    text.Sample({{"code", std::to_string(status)}}, Double(count));
  }
  text.Add("tael_http_clients_gone_total", Kind::kCounter,
           "Clients that left before their answer was whole.",
           Double(service.metrics.clients_gone.load(std::memory_order_relaxed)));
  text.Add("tael_http_connections", Kind::kGauge, "Open connections.",
           Double(service.metrics.connections.load(std::memory_order_relaxed)));
  text.Add("tael_time_to_first_token_seconds", "From the request to its first token.",
           service.metrics.time_to_first_token);
  text.Add("tael_inter_token_seconds", "From a token to the next, as the client gets them.",
           service.metrics.inter_token);
}

}  // namespace

HttpResponse FrontPage(Service& service, HttpRequest&) {
  HttpResponse response;
  response.content_type = "text/plain; charset=utf-8";
  response.body = "Tael serves " + service.model_name + " with a context of " +
                  std::to_string(service.engine.context_length()) +
                  " tokens.\n\n"
                  "The API is OpenAI's, at /v1 of this address:\n"
                  "  POST /v1/chat/completions   conversations, whole or as a stream\n"
                  "  POST /v1/completions        plain text\n"
                  "  GET  /v1/models             what is served\n"
                  "Besides:\n"
                  "  GET  /health                whether it is ready\n"
                  "  GET  /metrics               figures, for Prometheus\n"
                  "  GET  /v1/memory             where the memory is; ?stream=1: every second\n"
                  "  POST /v1/memory/trim        {\"level\": \"moderate\"} or \"critical\"\n"
                  "  POST /tokenize, /detokenize\n";
  return response;
}

HttpResponse Health(Service& service, HttpRequest&) {
  const engine::SchedulerStats stats = service.scheduler.Stats();
  Json why = WhyDegraded(service, stats);
  return JsonResponse({{"status", why.empty() ? "ready" : "degraded"},
                       {"why", std::move(why)},
                       {"queued", stats.queued},
                       {"running", stats.running}});
}

HttpResponse Models(Service& service, HttpRequest&) {
  return JsonResponse({{"object", "list"}, {"data", Json::array({ModelJson(service)})}});
}

HttpResponse Model(Service& service, HttpRequest& request) {
  constexpr std::string_view kPath = "/v1/models/";
  const std::string name = request.path.substr(kPath.size());
  if (name == service.model_name) return JsonResponse(ModelJson(service));
  ApiError error;
  error.status = 404;
  error.code = "model_not_found";
  error.param = "model";
  error.message = "there is no such model here; " + service.model_name + " is served";
  return ToResponse(error);
}

HttpResponse PrometheusMetrics(Service& service, HttpRequest&) {
  PrometheusText text;
  AddMemory(service, text);
  AddScheduler(service.scheduler.Stats(), text);
  AddServer(service, text);
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = text.text();
  return response;
}

}  // namespace tael::server
