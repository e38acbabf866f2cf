// The keys that clients have to show, from a file: one a line, "#" begins a comment line.
//
// Keys are compared in a time that depends on nothing but the length of what was shown. Each key is
// a tenant of its own: its salt keeps what it sent out of the others' prefix cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tael::server {

class ApiKeys {
 public:
  ApiKeys() = default;  // none: everybody may do everything, salt 0

  // Of a file's text. Fails: kInvalidArgument, naming the file and the line; without any key, too.
  static Result<ApiKeys> Parse(std::string_view text, const std::string& path);

  bool are_required() const { return !keys_.empty(); }
  // The tenant's salt, for the value of an Authorization header ("Bearer KEY").
  std::optional<uint64_t> Check(std::string_view authorization) const;
  // Of every tenant; of the only one without keys: 0.
  std::vector<uint64_t> Salts() const;

 private:
  std::vector<std::string> keys_;
};

// Never 0.
uint64_t SaltOf(std::string_view key);

}  // namespace tael::server
