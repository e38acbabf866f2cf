#include "gguf/writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/checked.h"

namespace tael::gguf {
namespace {

constexpr std::string_view kAlignmentKey = "general.alignment";

template <class T>
void Append(std::vector<std::byte>& out, T value) {
  std::byte raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof value);
  out.insert(out.end(), raw, raw + sizeof raw);
}

void AppendString(std::vector<std::byte>& out, std::string_view text) {
  Append<uint64_t>(out, text.size());
  const auto* raw = reinterpret_cast<const std::byte*>(text.data());
  out.insert(out.end(), raw, raw + text.size());
}

Error Invalid(const char* what, std::string detail) {
  return Error{ErrorCode::kInvalidArgument, what, std::move(detail)};
}

// Names that a reader accepts: present, short enough, each once.
Status CheckNames(std::vector<std::string_view> names, uint64_t max_count, uint64_t max_bytes) {
  if (names.size() > max_count) {
    return Invalid("too many names",
                   std::to_string(names.size()) + " of at most " + std::to_string(max_count));
  }
  std::sort(names.begin(), names.end());
  for (const std::string_view name : names) {
    if (name.empty() || name.size() > max_bytes) {
      return Invalid("a name is empty or too long",
                     Quote(name) + ", at most " + std::to_string(max_bytes) + " bytes");
    }
  }
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) return Invalid("a name appears twice", Quote(*twice));
  return {};
}

// A file that is being written under another name. It disappears unless Commit() succeeds.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& path)
      : path_(path),
        temporary_(path + ".tmp-" + std::to_string(::getpid())),
        fd_(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    if (!committed_) ::unlink(temporary_.c_str());
  }

  bool is_open() const { return fd_ >= 0; }

  Status Write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t done = ::write(fd_, bytes.data(), bytes.size());
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return Failed();
      bytes = bytes.subspan(static_cast<size_t>(done));
    }
    return {};
  }

  Status Commit() {
    if (::fsync(fd_) != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) return Failed();
    committed_ = true;
    return {};
  }

  // Requires: errno tells why.
  Error Failed() const {
    return Error{ErrorCode::kIo, "cannot write", "\"" + path_ + "\": " + std::strerror(errno)};
  }

 private:
  const std::string path_;
  const std::string temporary_;
  const int fd_;
  bool committed_ = false;
};

}  // namespace

void Writer::BeginValue(std::string_view key, ValueType type) {
  keys_.emplace_back(key);
  AppendString(metadata_, key);
  Append(metadata_, type);
}

void Writer::BeginArray(std::string_view key, ValueType element_type, size_t count) {
  BeginValue(key, ValueType::kArray);
  Append(metadata_, element_type);
  Append<uint64_t>(metadata_, count);
}

void Writer::AddUint32(std::string_view key, uint32_t value) {
  BeginValue(key, ValueType::kUint32);
  Append(metadata_, value);
}

void Writer::AddUint64(std::string_view key, uint64_t value) {
  BeginValue(key, ValueType::kUint64);
  Append(metadata_, value);
}

void Writer::AddInt32(std::string_view key, int32_t value) {
  BeginValue(key, ValueType::kInt32);
  Append(metadata_, value);
}

void Writer::AddFloat(std::string_view key, float value) {
  BeginValue(key, ValueType::kFloat32);
  Append(metadata_, value);
}

void Writer::AddBool(std::string_view key, bool value) {
  BeginValue(key, ValueType::kBool);
  Append<uint8_t>(metadata_, value ? 1 : 0);
}

void Writer::AddString(std::string_view key, std::string_view value) {
  BeginValue(key, ValueType::kString);
  AppendString(metadata_, value);
}

void Writer::AddStringArray(std::string_view key, std::span<const std::string> values) {
  BeginArray(key, ValueType::kString, values.size());
  for (const std::string& value : values) AppendString(metadata_, value);
}

void Writer::AddFloatArray(std::string_view key, std::span<const float> values) {
  BeginArray(key, ValueType::kFloat32, values.size());
  for (const float value : values) Append(metadata_, value);
}

void Writer::AddUintArray(std::string_view key, std::span<const uint32_t> values) {
  BeginArray(key, ValueType::kUint32, values.size());
  for (const uint32_t value : values) Append(metadata_, value);
}

void Writer::AddIntArray(std::string_view key, std::span<const int32_t> values) {
  BeginArray(key, ValueType::kInt32, values.size());
  for (const int32_t value : values) Append(metadata_, value);
}

void Writer::AddValue(std::string_view key, const Value& value) {
  if (value.type == ValueType::kArray) {
    BeginArray(key, value.element_type, value.count);
  } else {
    BeginValue(key, value.type);
  }
  metadata_.insert(metadata_.end(), value.data.begin(), value.data.end());
}

void Writer::AddTensor(std::string_view name, TensorType type, std::span<const uint64_t> shape,
                       std::span<const std::byte> bytes) {
  tensors_.push_back({std::string(name), type, {shape.begin(), shape.end()}, bytes});
}

Status Writer::Validate() const {
  if (version_ != 2 && version_ != 3) {
    return Invalid("unsupported GGUF version", std::to_string(version_) + " (2 or 3)");
  }
  if (!std::has_single_bit(alignment_) || alignment_ < kMinAlignment ||
      alignment_ > kMaxAlignment) {
    return Invalid("the alignment is no power of two in range",
                   std::to_string(alignment_) + ", not from " + std::to_string(kMinAlignment) +
                       " to " + std::to_string(kMaxAlignment));
  }
  std::vector<std::string_view> names(keys_.begin(), keys_.end());
  names.push_back(kAlignmentKey);
  TAEL_RETURN_IF_ERROR(CheckNames(std::move(names), kMaxMetadataKeys, kMaxKeyBytes));
  names.clear();
  for (const Tensor& tensor : tensors_) names.push_back(tensor.name);
  TAEL_RETURN_IF_ERROR(CheckNames(std::move(names), kMaxTensors, kMaxTensorNameBytes));
  for (const Tensor& tensor : tensors_) {
    if (tensor.shape.size() <= 4 && TensorBytes(tensor.type, tensor.shape) == tensor.bytes.size()) {
      continue;
    }
    return Invalid("a tensor's shape and its bytes disagree",
                   Quote(tensor.name) + " of type " + std::string(TypeName(tensor.type)) + ", " +
                       std::to_string(tensor.bytes.size()) + " bytes");
  }
  return {};
}

std::vector<std::byte> Writer::Header() const {
  const bool own_key = alignment_ != kDefaultAlignment;
  std::vector<std::byte> out;
  for (const char c : {'G', 'G', 'U', 'F'}) Append(out, c);
  Append(out, version_);
  Append<uint64_t>(out, tensors_.size());
  Append<uint64_t>(out, keys_.size() + (own_key ? 1 : 0));
  if (own_key) {
    AppendString(out, kAlignmentKey);
    Append(out, ValueType::kUint32);
    Append(out, static_cast<uint32_t>(alignment_));
  }
  out.insert(out.end(), metadata_.begin(), metadata_.end());
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    AppendString(out, tensor.name);
    Append(out, static_cast<uint32_t>(tensor.shape.size()));
    for (const uint64_t size : tensor.shape) Append(out, size);
    Append(out, tensor.type);
    Append(out, offset);
    offset += RoundUp<uint64_t>(tensor.bytes.size(), alignment_);
  }
  out.resize(RoundUp<uint64_t>(out.size(), alignment_));
  return out;
}

Status Writer::Emit(const Sink& sink) const {
  TAEL_RETURN_IF_ERROR(Validate());
  TAEL_RETURN_IF_ERROR(sink(Header()));
  const std::vector<std::byte> zeros(alignment_);
  for (const Tensor& tensor : tensors_) {
    const size_t bytes = tensor.bytes.size();
    TAEL_RETURN_IF_ERROR(sink(tensor.bytes));
    TAEL_RETURN_IF_ERROR(sink(std::span(zeros).first(RoundUp(bytes, alignment_) - bytes)));
  }
  return {};
}

Result<std::vector<std::byte>> Writer::Serialize() const {
  std::vector<std::byte> out;
  TAEL_RETURN_IF_ERROR(Emit([&](std::span<const std::byte> bytes) -> Status {
    out.insert(out.end(), bytes.begin(), bytes.end());
    return {};
  }));
  return out;
}

Status Writer::WriteFile(const std::string& path) const {
  TAEL_RETURN_IF_ERROR(Validate());
  TemporaryFile file(path);
  if (!file.is_open()) return file.Failed();
  TAEL_RETURN_IF_ERROR(Emit([&](std::span<const std::byte> bytes) { return file.Write(bytes); }));
  return file.Commit();
}

}  // namespace tael::gguf
