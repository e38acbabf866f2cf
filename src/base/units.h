// Byte sizes as people write them. K, M, G (also KB ...) are powers of 1000; Ki, Mi, Gi (also
// KiB ...) of 1024; no suffix is bytes. Fractions are allowed before a suffix ("1.8G").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tael {

// Fails: kInvalidArgument, naming the text.
Result<uint64_t> ParseSize(std::string_view text);

// "1.8 GB", "64.0 MB", "512 B": three significant digits, powers of 1000.
std::string FormatSize(uint64_t bytes);

}  // namespace tael
