#include "mem/kernel_file.h"

#include <charconv>
#include <fstream>
#include <sstream>

namespace tael::mem {

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  uint64_t value = 0;
  const auto [end, ec] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (ec != std::errc{} || end != word.data() + word.size()) return std::nullopt;  // "max"
  return value;
}

std::optional<uint64_t> ReadField(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  uint64_t value = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    if (fields >> word >> value && word == key) return value;
  }
  return std::nullopt;
}

std::optional<double> ReadAssignment(const std::string& path, std::string_view line,
                                     std::string_view name) {
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    std::istringstream words(text);
    std::string word;
    if (!(words >> word) || word != line) continue;
    while (words >> word) {
      const size_t at = word.find('=');
      if (at == std::string::npos || std::string_view(word).substr(0, at) != name) continue;
      double value = 0;
      if (std::istringstream(word.substr(at + 1)) >> value) return value;
    }
  }
  return std::nullopt;
}

}  // namespace tael::mem
