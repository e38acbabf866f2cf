// Writes GGUF files (v2 or v3, little endian): for `tael pack`, and for tests that need a small
// model. It refuses names, shapes and alignments that the parser would refuse.
//
// Metadata comes out in the order of the Add calls; tensors too, each padded to the alignment.
// Tensor bytes are not copied: they must outlive the Writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/file.h"
#include "gguf/types.h"

namespace tael::gguf {

class Writer {
 public:
  // An alignment other than the format's default is also written as "general.alignment"; no Add
  // call may use that key.
  explicit Writer(uint64_t alignment = kDefaultAlignment, uint32_t version = 3)
      : alignment_(alignment), version_(version) {}

  void AddUint32(std::string_view key, uint32_t value);
  void AddUint64(std::string_view key, uint64_t value);
  void AddInt32(std::string_view key, int32_t value);
  void AddFloat(std::string_view key, float value);
  void AddBool(std::string_view key, bool value);
  void AddString(std::string_view key, std::string_view value);
  void AddStringArray(std::string_view key, std::span<const std::string> values);
  void AddFloatArray(std::string_view key, std::span<const float> values);
  void AddUintArray(std::string_view key, std::span<const uint32_t> values);
  void AddIntArray(std::string_view key, std::span<const int32_t> values);
  // A value of another file, of any type, as it is.
  void AddValue(std::string_view key, const Value& value);

  // shape[0] is the row length, as in TensorInfo.
  void AddTensor(std::string_view name, TensorType type, std::span<const uint64_t> shape,
                 std::span<const std::byte> bytes);

  // Fails: kInvalidArgument, naming the key or tensor that no reader would accept.
  Result<std::vector<std::byte>> Serialize() const;

  // Writes beside `path`, syncs, then renames: the old file, if any, is whole until the new one is.
  // Fails: kInvalidArgument as above; kIo, and then `path` is as it was.
  Status WriteFile(const std::string& path) const;

 private:
  struct Tensor {
    std::string name;
    TensorType type;
    std::vector<uint64_t> shape;
    std::span<const std::byte> bytes;
  };
  // Takes the next bytes of the file.
  using Sink = std::function<Status(std::span<const std::byte>)>;

  void BeginValue(std::string_view key, ValueType type);
  void BeginArray(std::string_view key, ValueType element_type, size_t count);
  Status Validate() const;
  std::vector<std::byte> Header() const;
  Status Emit(const Sink& sink) const;

  uint64_t alignment_;
  uint32_t version_;
  std::vector<std::string> keys_;
  std::vector<std::byte> metadata_;  // serialised
  std::vector<Tensor> tensors_;
};

}  // namespace tael::gguf
