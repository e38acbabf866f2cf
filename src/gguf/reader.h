// A cursor over untrusted bytes: every read is checked against what is left, and a failed read
// changes nothing. It knows little-endian numbers and runs of bytes, not the format.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

namespace tael::gguf {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

// Reads a T where nothing promises its alignment. Requires: sizeof(T) bytes at `data`.
template <class T>
T LoadUnaligned(const std::byte* data) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return bytes_.size() - position_; }
  uint64_t size() const { return bytes_.size(); }

  template <class T>
  std::optional<T> Read() {
    const auto raw = ReadBytes(sizeof(T));
    if (!raw) return std::nullopt;
    return LoadUnaligned<T>(raw->data());
  }

  std::optional<std::span<const std::byte>> ReadBytes(uint64_t count) {
    if (count > remaining()) return std::nullopt;
    const auto out = bytes_.subspan(position_, count);
    position_ += count;
    return out;
  }

 private:
  std::span<const std::byte> bytes_;
  size_t position_ = 0;
};

}  // namespace tael::gguf
