// For tests only: writes the bytes of a GGUF header one by one, with no opinion on whether they
// make sense. Well-formed files come from writer.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "gguf/file.h"

namespace tael::gguf::testing {

class RawFile {
 public:
  // The usual start: magic, version 3, and two counts.
  static RawFile WithCounts(uint64_t num_tensors, uint64_t num_keys) {
    RawFile out;
    out.Text("GGUF").Put<uint32_t>(3).Put(num_tensors).Put(num_keys);
    return out;
  }

  template <class T>
  RawFile& Put(T value) {
    std::byte raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof value);
    bytes_.insert(bytes_.end(), raw, raw + sizeof raw);
    return *this;
  }

  RawFile& Text(std::string_view text) {
    const auto* raw = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), raw, raw + text.size());
    return *this;
  }

  // A length and its bytes.
  RawFile& String(std::string_view text) { return Put<uint64_t>(text.size()).Text(text); }

  // A key and the type of the value that must follow.
  RawFile& Key(std::string_view key, ValueType type) { return String(key).Put(type); }

  RawFile& Array(std::string_view key, ValueType element_type, uint64_t count) {
    return Key(key, ValueType::kArray).Put(element_type).Put(count);
  }

  RawFile& Tensor(std::string_view name, std::span<const uint64_t> shape, uint32_t type,
                  uint64_t offset) {
    String(name).Put(static_cast<uint32_t>(shape.size()));
    for (const uint64_t size : shape) Put(size);
    return Put(type).Put(offset);
  }

  RawFile& PadTo(size_t alignment) {
    return Zeros((alignment - bytes_.size() % alignment) % alignment);
  }

  RawFile& Zeros(size_t count) {
    bytes_.resize(bytes_.size() + count);
    return *this;
  }

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace tael::gguf::testing
