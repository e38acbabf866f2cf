// Reads the fields of a JSON object that a client sent, and remembers the first thing that is wrong
// with one of them, by name. After an error everything reads as absent, so that parsing code needs
// no branches of its own.
//
// null counts as absent, as in the OpenAI API. A field that nobody asked for is an error, once
// RefuseOthers() is called: what we do not know may be what the client relies on.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/json.h"

namespace tael::server {

class Fields {
 public:
  // `path` is put before names in messages ("messages[2]."). All of it outlives this.
  Fields(const ClientJson& object, std::string path, std::optional<ApiError>& error);

  std::optional<bool> Bool(std::string_view name);
  std::optional<double> Number(std::string_view name, double least, double most);
  std::optional<int64_t> Integer(std::string_view name, int64_t least, int64_t most);
  const std::string* String(std::string_view name);
  const ClientJson* Value(std::string_view name);  // of any kind

  // Known, and of no consequence here.
  void Ignore(std::initializer_list<std::string_view> names);
  // Fields that would change the answer in a way that is not built: only what changes nothing may
  // be in them (null, false, 0, "", [] and {}).
  void RefuseUnlessEmpty(std::initializer_list<std::string_view> names, std::string_view why);
  void RefuseOthers();

  // Blames a field.
  void Fail(std::string_view name, const std::string& what);
  bool failed() const { return error_.has_value(); }
  std::string PathOf(std::string_view name) const { return path_ + std::string(name); }
  std::optional<ApiError>& error() { return error_; }

 private:
  const ClientJson& object_;
  const std::string path_;
  std::optional<ApiError>& error_;
  std::set<std::string_view> known_;
};

}  // namespace tael::server
