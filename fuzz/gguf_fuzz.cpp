// Feeds bytes to the GGUF parser. Whatever it accepts must keep the promises of gguf/file.h: views
// lie inside the bytes, sizes agree, look-ups find what the lists hold, and typed look-ups answer
// without a crash.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "gguf/file.h"

namespace {

using tael::gguf::File;
using tael::gguf::StringCursor;
using tael::gguf::TensorInfo;
using tael::gguf::Value;
using tael::gguf::ValueType;

void CheckInside(std::span<const std::byte> all, std::span<const std::byte> part) {
  TAEL_CHECK(part.empty() ||
             (part.data() >= all.data() && part.data() + part.size() <= all.data() + all.size()));
}

void CheckMetadata(const File& file) {
  for (const auto& [key, value] : file.metadata()) {
    TAEL_CHECK(file.Find(key) == &value);
    CheckInside(file.bytes(), value.data);
    static_cast<void>(file.GetUint(key).has_value());
    static_cast<void>(file.GetFloat(key).has_value());
    static_cast<void>(file.GetBool(key).has_value());
    static_cast<void>(file.GetString(key).has_value());
    static_cast<void>(file.GetUintArray(key).has_value());
    static_cast<void>(file.GetFloatArray(key).has_value());
    if (value.element_type != ValueType::kString) continue;
    StringCursor cursor(value.data);
    for (uint64_t i = 0; i < value.count; ++i) static_cast<void>(cursor.Next());
  }
}

void CheckTensors(const File& file) {
  uint64_t bytes = 0;
  for (const TensorInfo& tensor : file.tensors()) {
    TAEL_CHECK(file.FindTensor(tensor.name) == &tensor);
    TAEL_CHECK(tensor.num_rows() * tensor.row_bytes == tensor.bytes);
    TAEL_CHECK(tensor.offset % file.alignment() == 0);
    CheckInside(file.bytes(), file.TensorData(tensor));
    bytes += tensor.bytes;
  }
  TAEL_CHECK(bytes <= file.bytes().size());  // nothing overlaps
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file = File::Parse(bytes);
  if (!file) {
    TAEL_CHECK(!file.error().Message().empty());
    return 0;
  }
  CheckMetadata(*file);
  CheckTensors(*file);
  return 0;
}
