#include "cli/kv_safety_file.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "cli/terminal.h"
#include "kv/atomic_file.h"

namespace tael::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "tael-kv-safety";
constexpr int kVersion = 1;
constexpr uint64_t kMostBytes = 65536;

// "" where the environment names no place.
std::string CacheFolder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    return std::string(cache) + "/tael/kv-safety";
  }
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home != '/') return "";
  return std::string(home) + "/.cache/tael/kv-safety";
}

// The whole path as one name: its end, where it is longer than a name may be.
std::string NameFor(const std::string& model_path) {
  constexpr size_t kMostName = 200;
  std::error_code error;
  std::string name = fs::weakly_canonical(model_path, error).string();
  if (error) name = model_path;
  std::replace(name.begin(), name.end(), '/', '%');
  return name.size() <= kMostName ? name : name.substr(name.size() - kMostName);
}

std::vector<std::string> PlacesFor(const std::string& model_path) {
  std::vector<std::string> places = {model_path + ".kv-safety.json"};
  const std::string cache = CacheFolder();
  if (!cache.empty()) places.push_back(cache + "/" + NameFor(model_path) + ".json");
  return places;
}

Result<std::string> ReadSmall(const std::string& path) {
  TAEL_ASSIGN_OR_RETURN(kv::OldFile file, kv::OldFile::Open(path));
  if (file.size() > kMostBytes) {
    return Error{ErrorCode::kMalformed, "too large for a table", std::to_string(file.size())};
  }
  std::string text(file.size(), '\0');
  TAEL_RETURN_IF_ERROR(file.Read(text.data(), text.size()));
  return text;
}

Error Damaged() {
  return Error{ErrorCode::kMalformed, "no table of KV types, or a damaged one", ""};
}

Result<engine::KvSafety> Parse(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("format", Json()) != kFormat) return Damaged();
  if (json.value("version", Json()) != kVersion) {
    return Error{ErrorCode::kUnsupported, "a table of another version", ""};
  }
  const Json model = json.value("model", Json());
  const Json types = json.value("types", Json());
  const auto safety_of = [&](const char* name) {
    const Json type = types.is_object() ? types.value(name, Json()) : Json();
    return type.is_object() ? type.value("safe", Json()) : Json();
  };
  const Json q8 = safety_of("q8"), k8v4 = safety_of("k8v4");
  if (!model.is_string() || !q8.is_boolean()) return Damaged();
  return engine::KvSafety{.model = model.get<std::string>(),
                          .q8_is_safe = q8.get<bool>(),
                          .k8v4_is_safe = !k8v4.is_boolean() || k8v4.get<bool>()};
}

Result<engine::KvSafety> Load(const std::string& path) {
  TAEL_ASSIGN_OR_RETURN(const std::string text, ReadSmall(path));
  return Parse(text);
}

Status Replace(const std::string& path, const std::string& text) {
  TAEL_ASSIGN_OR_RETURN(kv::NewFile file, kv::NewFile::Create(path));
  TAEL_RETURN_IF_ERROR(file.Write(text.data(), text.size()));
  TAEL_RETURN_IF_ERROR(file.Commit());
  // No secret: whoever may read the model may read what was measured of it.
  std::error_code ignored;
  fs::permissions(path, fs::perms::group_read | fs::perms::others_read, fs::perm_options::add,
                  ignored);
  return {};
}

}  // namespace

FoundKvSafety FindKvSafety(const std::string& model_path) {
  for (const std::string& path : PlacesFor(model_path)) {
    auto table = Load(path);
    if (table) return {.table = *std::move(table), .path = path};
    if (table.error().code == ErrorCode::kNotFound) continue;
    Note("\"" + path + "\" is ignored: " + table.error().Message() +
         "; `tael eval --kv-safety` writes a new one");
  }
  return {};
}

Result<std::string> WriteKvSafety(const std::string& model_path, const Json& table) {
  Json whole = {{"format", kFormat}, {"version", kVersion}};
  whole.update(table);
  const std::string text = whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  Status written;
  for (const std::string& path : PlacesFor(model_path)) {
    std::error_code ignored;
    if (path != model_path + ".kv-safety.json") {
      fs::create_directories(fs::path(path).parent_path(), ignored);
    }
    written = Replace(path, text);
    if (written) return path;
  }
  return written.error();
}

}  // namespace tael::cli
