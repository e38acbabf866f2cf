// Reads `ARCH.key` metadata with limits: a number outside them is an error that names the key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "gguf/file.h"

namespace tael::model {

class Metadata {
 public:
  Metadata(const gguf::File& file, std::string prefix) : file_(&file), prefix_(std::move(prefix)) {}

  // An integer in [min, max]. Fails: kMalformed when absent, of another type or out of range.
  Result<uint32_t> Uint(std::string_view key, uint32_t min, uint32_t max) const;
  // The same, with a value for an absent key.
  Result<uint32_t> UintOr(std::string_view key, uint32_t min, uint32_t max,
                          uint32_t fallback) const;
  // A finite number in [min, max].
  Result<double> FloatOr(std::string_view key, double min, double max, double fallback) const;
  Result<std::string> StringOr(std::string_view key, std::string fallback) const;
  bool Has(std::string_view key) const { return file_->Find(Full(key)) != nullptr; }

  std::string Full(std::string_view key) const { return prefix_ + "." + std::string(key); }
  const gguf::File& file() const { return *file_; }

 private:
  const gguf::File* file_;
  std::string prefix_;
};

}  // namespace tael::model
