#include "report/memory.h"

#include <string>
#include <utility>

#include "mem/process_memory.h"

namespace tael::report {

nlohmann::ordered_json MemoryToJson(const engine::Engine& engine) {
  using Json = nlohmann::ordered_json;
  const mem::LedgerSnapshot ledger = engine.Ledger();
  const auto read = mem::ReadProcessMemory();
  const mem::ProcessMemory process = read ? *read : mem::ProcessMemory{};
  Json used = Json::object(), reserved = Json::object();
  for (size_t i = 0; i < ledger.parts.size(); ++i) {
    const std::string tag(ToString(static_cast<mem::MemoryTag>(i)));
    used[tag] = ledger.parts[i].used_bytes;
    reserved[tag] = ledger.parts[i].reserved_bytes;
  }
  return {
      {"budget_bytes", ledger.limit_bytes},         {"used_bytes", ledger.used_bytes},
      {"reserved_bytes", ledger.reserved_bytes},    {"high_water_bytes", ledger.high_water_bytes},
      {"rss_anon_bytes", process.unbacked_bytes()}, {"rss_file_bytes", process.rss_file_bytes},
      {"locked_bytes", engine.locked_bytes()},      {"parts", std::move(used)},
      {"parts_reserved", std::move(reserved)}};
}

}  // namespace tael::report
