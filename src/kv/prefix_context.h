// Everything besides the tokens that decides what their KV is, and who may see it. Two sequences
// may share blocks only if all of it is equal.
#pragma once

#include <cstdint>
#include <string>

namespace tael::kv {

struct PrefixContext {
  std::string model = {};    // which weights
  std::string kv_type = {};  // how K and V are stored, by layer where that differs
  std::string rope = {};     // how positions are rotated
  std::string window = {};   // what a query sees: windows, sinks, eviction
  std::string tenant = {};   // who may share with whom; empty for all
  bool operator==(const PrefixContext&) const = default;

  // One number for the keys of the prefix index. The fields cannot be mistaken for one another:
  // each is hashed with its length in front, and in its place.
  uint64_t Salt() const;
};

}  // namespace tael::kv
