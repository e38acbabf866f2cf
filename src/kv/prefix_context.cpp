#include "kv/prefix_context.h"

#include "kv/hash.h"

namespace tael::kv {
namespace {

void Append(std::string& bytes, const std::string& field) {
  const uint64_t size = field.size();
  bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
  bytes += field;
}

}  // namespace

uint64_t PrefixContext::Salt() const {
  std::string bytes;
  for (const std::string* field : {&model, &kv_type, &rope, &window, &tenant}) {
    Append(bytes, *field);
  }
  return Hash64(bytes.data(), bytes.size());
}

}  // namespace tael::kv
