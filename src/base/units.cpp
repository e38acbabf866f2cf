#include "base/units.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>

namespace tael {
namespace {

struct Suffix {
  std::string_view text;
  uint64_t factor;
};

constexpr std::array<Suffix, 17> kSuffixes = {{{"", 1},
                                               {"B", 1},
                                               {"K", 1000},
                                               {"KB", 1000},
                                               {"M", 1000000},
                                               {"MB", 1000000},
                                               {"G", 1000000000},
                                               {"GB", 1000000000},
                                               {"Ki", 1ull << 10},
                                               {"KiB", 1ull << 10},
                                               {"Mi", 1ull << 20},
                                               {"MiB", 1ull << 20},
                                               {"Gi", 1ull << 30},
                                               {"GiB", 1ull << 30},
                                               {"k", 1000},
                                               {"m", 1000000},
                                               {"g", 1000000000}}};

Error BadSize(std::string_view text) {
  return Error{ErrorCode::kInvalidArgument, "not a size",
               "\"" + std::string(text) + "\" (examples: 600M, 1.8G, 512Mi, 1073741824)"};
}

}  // namespace

Result<uint64_t> ParseSize(std::string_view text) {
  double number = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (ec != std::errc{} || !(number >= 0)) return BadSize(text);
  std::string_view rest = text.substr(static_cast<size_t>(end - text.data()));
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  for (const Suffix& suffix : kSuffixes) {
    if (rest != suffix.text) continue;
    const double bytes = number * static_cast<double>(suffix.factor);
    if (bytes >= 9.2e18) return BadSize(text);
    return static_cast<uint64_t>(bytes);
  }
  return BadSize(text);
}

std::string FormatSize(uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 || value >= 100 ? "%.0f %s" : "%.1f %s", value,
                kUnits[unit]);
  return text;
}

}  // namespace tael
