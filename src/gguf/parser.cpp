// File::Parse(): the only code that looks at bytes nobody has checked. It goes through the file
// once, front to back, and stops at the first thing that is wrong.
//
//   header | metadata: key, type, value ... | tensors: name, shape, type, offset ... | pad | data
//
// Nothing is reserved for a claimed count before the remaining bytes were shown to hold it.
#include <algorithm>
#include <bit>
#include <string>

#include "base/checked.h"
#include "gguf/file.h"
#include "gguf/reader.h"

namespace tael::gguf {
namespace {

constexpr uint32_t kMagic = 0x46554747;            // "GGUF"
constexpr uint64_t kMinKeyEntryBytes = 8 + 4 + 1;  // empty key, type, one byte of value
constexpr uint64_t kMinTensorEntryBytes = 8 + 4 + 8 + 4 + 8;
constexpr uint32_t kMaxDims = 4;

Error Malformed(const char* what, std::string detail) {
  return Error{ErrorCode::kMalformed, what, std::move(detail)};
}

// "17 of at most 16": what a claim was and what was possible.
std::string OverLimit(uint64_t claimed, uint64_t limit) {
  return std::to_string(claimed) + " of at most " + std::to_string(limit);
}

// The indices of `items` sorted by name; `duplicate` gets one that appears twice.
template <class Items, class NameOf>
std::vector<uint32_t> SortByName(const Items& items, NameOf name_of,
                                 std::optional<std::string_view>& duplicate) {
  std::vector<uint32_t> order(items.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return name_of(items[a]) < name_of(items[b]); });
  for (size_t i = 1; i < order.size(); ++i) {
    const std::string_view name = name_of(items[order[i]]);
    if (name == name_of(items[order[i - 1]])) duplicate = name;
  }
  return order;
}

}  // namespace

class Parser {
 public:
  explicit Parser(std::span<const std::byte> bytes) : reader_(bytes) { file_.bytes_ = bytes; }

  Result<File> Parse() {
    TAEL_RETURN_IF_ERROR(ReadHeader());
    TAEL_RETURN_IF_ERROR(ReadMetadata());
    TAEL_RETURN_IF_ERROR(ReadAlignment());
    TAEL_RETURN_IF_ERROR(ReadTensors());
    TAEL_RETURN_IF_ERROR(PlaceTensors());
    TAEL_RETURN_IF_ERROR(CheckOverlap());
    return std::move(file_);
  }

 private:
  Status ReadHeader();
  Status ReadMetadata();
  Status ReadKey(uint64_t index);
  Status ReadValue(std::string_view key, Value& value);
  Status ReadArray(std::string_view key, Value& value);
  Status SkipStrings(std::string_view key, uint64_t count);
  Status ReadAlignment();
  Status ReadTensors();
  Status ReadTensor(uint64_t index);
  Status ReadShape(TensorInfo& tensor);
  Status MeasureTensor(TensorInfo& tensor) const;
  Status PlaceTensors();
  Status CheckOverlap() const;

  // The header ends before `thing` does.
  Error Truncated(const std::string& thing) const {
    return Malformed("the file ends inside its header",
                     "in " + thing + " at byte " + std::to_string(reader_.position()) + " of " +
                         std::to_string(reader_.size()) + "; is the download complete?");
  }

  // A 64-bit length and that many bytes. `thing` is called only to word an error.
  template <class Thing>
  Result<std::string_view> ReadString(uint64_t max_bytes, Thing thing) {
    const auto length = reader_.Read<uint64_t>();
    if (!length) return Truncated(thing());
    if (*length > max_bytes) {
      return Malformed("a string is too long",
                       thing() + ", " + OverLimit(*length, max_bytes) + " bytes");
    }
    const auto raw = reader_.ReadBytes(*length);
    if (!raw) return Truncated(thing() + ", a string of " + std::to_string(*length) + " bytes");
    return std::string_view(reinterpret_cast<const char*>(raw->data()), raw->size());
  }

  ByteReader reader_;
  File file_;
  uint64_t num_keys_ = 0;
  uint64_t num_tensors_ = 0;
  uint64_t num_strings_ = 0;  // in arrays, so far
};

Result<File> File::Parse(std::span<const std::byte> bytes) { return Parser(bytes).Parse(); }

Status Parser::ReadHeader() {
  const auto magic = reader_.Read<uint32_t>();
  if (!magic || *magic != kMagic) {
    return Malformed("not a GGUF file", "it does not begin with \"GGUF\"");
  }
  const auto version = reader_.Read<uint32_t>();
  if (!version) return Truncated("the version");
  if (*version != 0 && (*version & 0xffff) == 0) {
    return Error{ErrorCode::kUnsupported, "a big-endian GGUF file",
                 "convert it to little endian first"};
  }
  if (*version != 2 && *version != 3) {
    return Error{ErrorCode::kUnsupported, "unsupported GGUF version",
                 std::to_string(*version) + " (2 and 3 are read); convert the model again"};
  }
  file_.version_ = *version;
  const auto num_tensors = reader_.Read<uint64_t>();
  const auto num_keys = reader_.Read<uint64_t>();
  if (!num_tensors || !num_keys) return Truncated("the counts");
  num_tensors_ = *num_tensors;
  num_keys_ = *num_keys;

  const uint64_t max_keys = std::min(reader_.remaining() / kMinKeyEntryBytes, kMaxMetadataKeys);
  if (num_keys_ > max_keys) {
    return Malformed("more metadata keys than the file can hold", OverLimit(num_keys_, max_keys));
  }
  const uint64_t max_tensors = std::min(reader_.remaining() / kMinTensorEntryBytes, kMaxTensors);
  if (num_tensors_ > max_tensors) {
    return Malformed("more tensors than the file can hold", OverLimit(num_tensors_, max_tensors));
  }
  return {};
}

Status Parser::ReadMetadata() {
  file_.metadata_.reserve(num_keys_);
  for (uint64_t i = 0; i < num_keys_; ++i) TAEL_RETURN_IF_ERROR(ReadKey(i));
  std::optional<std::string_view> duplicate;
  file_.metadata_by_key_ = SortByName(
      file_.metadata_, [](const auto& entry) { return entry.first; }, duplicate);
  if (duplicate) return Malformed("a metadata key appears twice", Quote(*duplicate));
  return {};
}

Status Parser::ReadKey(uint64_t index) {
  TAEL_ASSIGN_OR_RETURN(const std::string_view key, ReadString(kMaxKeyBytes, [&] {
                          return "the name of metadata key " + std::to_string(index);
                        }));
  if (key.empty()) return Malformed("a metadata key has no name", "key " + std::to_string(index));
  Value value;
  TAEL_RETURN_IF_ERROR(ReadValue(key, value));
  file_.metadata_.emplace_back(key, value);
  return {};
}

Status Parser::ReadValue(std::string_view key, Value& value) {
  const auto type = reader_.Read<ValueType>();
  if (!type) return Truncated("metadata key " + Quote(key));
  value.type = *type;
  value.element_type = *type;
  if (*type == ValueType::kArray) return ReadArray(key, value);

  const uint64_t start = reader_.position();
  if (*type == ValueType::kString) {
    TAEL_RETURN_IF_ERROR(ReadString(kMaxStringBytes, [&] { return "metadata key " + Quote(key); }));
  } else {
    const uint64_t bytes = FixedBytes(*type);
    if (bytes == 0) {
      return Malformed(
          "unknown type of a metadata value",
          "key " + Quote(key) + ", type " + std::to_string(static_cast<uint32_t>(*type)));
    }
    if (!reader_.ReadBytes(bytes)) return Truncated("metadata key " + Quote(key));
  }
  value.data = file_.bytes_.subspan(start, reader_.position() - start);
  return {};
}

Status Parser::ReadArray(std::string_view key, Value& value) {
  const auto type = reader_.Read<ValueType>();
  const auto count = reader_.Read<uint64_t>();
  if (!type || !count) return Truncated("metadata key " + Quote(key));
  if (*type == ValueType::kArray) return Malformed("an array of arrays", "key " + Quote(key));
  const bool strings = *type == ValueType::kString;
  const uint64_t min_bytes = strings ? sizeof(uint64_t) : FixedBytes(*type);
  if (min_bytes == 0) {
    return Malformed(
        "unknown type of array elements",
        "key " + Quote(key) + ", type " + std::to_string(static_cast<uint32_t>(*type)));
  }
  const uint64_t max_count = std::min(reader_.remaining() / min_bytes, kMaxArrayElements);
  if (*count > max_count) {
    return Malformed("an array longer than the file can hold",
                     "key " + Quote(key) + ", " + OverLimit(*count, max_count) + " elements");
  }
  value.element_type = *type;
  value.count = *count;
  const uint64_t start = reader_.position();
  if (strings) {
    TAEL_RETURN_IF_ERROR(SkipStrings(key, *count));
  } else if (!reader_.ReadBytes(*count * min_bytes)) {
    return Truncated("metadata key " + Quote(key));
  }
  value.data = file_.bytes_.subspan(start, reader_.position() - start);
  return {};
}

Status Parser::SkipStrings(std::string_view key, uint64_t count) {
  num_strings_ += count;
  if (num_strings_ > kMaxArrayStrings) {
    return Malformed("more strings in arrays than a vocabulary can have",
                     "key " + Quote(key) + ", " + OverLimit(num_strings_, kMaxArrayStrings));
  }
  for (uint64_t i = 0; i < count; ++i) {
    TAEL_RETURN_IF_ERROR(ReadString(kMaxStringBytes, [&] {
      return "metadata key " + Quote(key) + ", string " + std::to_string(i);
    }));
  }
  return {};
}

Status Parser::ReadAlignment() {
  TAEL_ASSIGN_OR_RETURN(const std::optional<uint64_t> alignment,
                        file_.GetUint("general.alignment"));
  if (!alignment) return {};
  if (!std::has_single_bit(*alignment) || *alignment < kMinAlignment ||
      *alignment > kMaxAlignment) {
    return Malformed("the alignment is no power of two in range",
                     "\"general.alignment\" is " + std::to_string(*alignment) + ", not from " +
                         std::to_string(kMinAlignment) + " to " + std::to_string(kMaxAlignment));
  }
  file_.alignment_ = *alignment;
  return {};
}

Status Parser::ReadTensors() {
  if (num_tensors_ > reader_.remaining() / kMinTensorEntryBytes) {
    return Truncated("the list of " + std::to_string(num_tensors_) + " tensors");
  }
  file_.tensors_.reserve(num_tensors_);
  for (uint64_t i = 0; i < num_tensors_; ++i) TAEL_RETURN_IF_ERROR(ReadTensor(i));
  std::optional<std::string_view> duplicate;
  file_.tensors_by_name_ = SortByName(
      file_.tensors_, [](const TensorInfo& tensor) { return tensor.name; }, duplicate);
  if (duplicate) return Malformed("a tensor name appears twice", Quote(*duplicate));
  return {};
}

Status Parser::ReadTensor(uint64_t index) {
  TensorInfo tensor;
  TAEL_ASSIGN_OR_RETURN(tensor.name, ReadString(kMaxTensorNameBytes, [&] {
                          return "the name of tensor " + std::to_string(index);
                        }));
  if (tensor.name.empty()) {
    return Malformed("a tensor has no name", "tensor " + std::to_string(index));
  }
  TAEL_RETURN_IF_ERROR(ReadShape(tensor));
  const auto type = reader_.Read<TensorType>();
  const auto offset = reader_.Read<uint64_t>();
  if (!type || !offset) return Truncated("tensor " + Quote(tensor.name));
  tensor.type = *type;
  tensor.offset = *offset;  // from the start of the data, until PlaceTensors()
  TAEL_RETURN_IF_ERROR(MeasureTensor(tensor));
  file_.tensors_.push_back(tensor);
  return {};
}

Status Parser::ReadShape(TensorInfo& tensor) {
  const auto num_dims = reader_.Read<uint32_t>();
  if (!num_dims) return Truncated("tensor " + Quote(tensor.name));
  if (*num_dims == 0 || *num_dims > kMaxDims) {
    return Malformed("a tensor needs 1 to 4 dimensions",
                     Quote(tensor.name) + " has " + std::to_string(*num_dims));
  }
  tensor.num_dims = *num_dims;
  for (uint32_t i = 0; i < *num_dims; ++i) {
    const auto size = reader_.Read<uint64_t>();
    if (!size) return Truncated("tensor " + Quote(tensor.name));
    if (*size == 0) {
      return Malformed("a dimension is zero",
                       "tensor " + Quote(tensor.name) + ", dimension " + std::to_string(i));
    }
    tensor.shape[i] = *size;
  }
  return {};
}

// Sets row_bytes and bytes, or says why the shape has no size.
Status Parser::MeasureTensor(TensorInfo& tensor) const {
  const TypeTraits* traits = FindTypeTraits(tensor.type);
  if (traits == nullptr) {
    return Error{ErrorCode::kUnsupported, "unknown tensor type",
                 Quote(tensor.name) + " has type " +
                     std::to_string(static_cast<uint32_t>(tensor.type)) +
                     ", which this build has never heard of"};
  }
  if (tensor.shape[0] % traits->block_elements != 0) {
    return Malformed("a row is no whole number of blocks",
                     Quote(tensor.name) + " has rows of " + std::to_string(tensor.shape[0]) +
                         " values, " + std::string(traits->name) + " has blocks of " +
                         std::to_string(traits->block_elements));
  }
  const std::span<const uint64_t> shape(tensor.shape);
  const auto row_bytes = TensorBytes(tensor.type, shape.first(1));
  const auto bytes = TensorBytes(tensor.type, shape);
  if (!row_bytes || !bytes) return Malformed("a tensor's size overflows", Quote(tensor.name));
  tensor.row_bytes = *row_bytes;
  tensor.bytes = *bytes;
  return {};
}

// Turns offsets into offsets from the start of the file, and holds them to its end.
Status Parser::PlaceTensors() {
  file_.data_offset_ = RoundUp(reader_.position(), file_.alignment_);
  for (TensorInfo& tensor : file_.tensors_) {
    if (tensor.offset % file_.alignment_ != 0) {
      return Malformed("a tensor's data is not aligned",
                       Quote(tensor.name) + " at offset " + std::to_string(tensor.offset) +
                           ", alignment " + std::to_string(file_.alignment_));
    }
    const auto start = CheckedAdd(file_.data_offset_, tensor.offset);
    const auto end = start ? CheckedAdd(*start, tensor.bytes) : std::nullopt;
    if (!end) {
      return Malformed("a tensor's offset overflows", Quote(tensor.name) + " at offset " +
                                                          std::to_string(tensor.offset) + ", " +
                                                          std::to_string(tensor.bytes) + " bytes");
    }
    if (*end > reader_.size()) {
      return Malformed("the file is too short for its tensors",
                       Quote(tensor.name) + " ends at byte " + std::to_string(*end) +
                           ", the file has " + std::to_string(reader_.size()) +
                           "; is the download complete?");
    }
    tensor.offset = *start;
  }
  return {};
}

Status Parser::CheckOverlap() const {
  std::vector<const TensorInfo*> order;
  order.reserve(file_.tensors_.size());
  for (const TensorInfo& tensor : file_.tensors_) order.push_back(&tensor);
  std::sort(order.begin(), order.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const TensorInfo& before = *order[i - 1];
    if (before.offset + before.bytes <= order[i]->offset) continue;
    return Malformed("two tensors overlap", Quote(before.name) + " and " + Quote(order[i]->name));
  }
  return {};
}

}  // namespace tael::gguf
