// Arithmetic on sizes that come from outside: it either gives the exact result or nothing.
#pragma once

#include <concepts>
#include <optional>

namespace tael {

template <std::unsigned_integral T>
[[nodiscard]] constexpr std::optional<T> CheckedAdd(T a, T b) {
  T out{};
  if (__builtin_add_overflow(a, b, &out)) return std::nullopt;
  return out;
}

template <std::unsigned_integral T>
[[nodiscard]] constexpr std::optional<T> CheckedMul(T a, T b) {
  T out{};
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

// Requires: align > 0 and value + align - 1 does not overflow.
template <std::unsigned_integral T>
[[nodiscard]] constexpr T RoundUp(T value, T align) {
  return (value + align - 1) / align * align;
}

template <std::unsigned_integral T>
[[nodiscard]] constexpr T CeilDiv(T value, T divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

}  // namespace tael
