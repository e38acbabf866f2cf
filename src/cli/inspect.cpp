// `tael inspect`: what a model file holds, and whether Tael can run it. Reads no weights.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "gguf/file.h"
#include "mem/mapping.h"
#include "model/description.h"
#include "model/weights.h"
#include "tokenizer/tokenizer.h"

namespace tael::cli {
namespace {

constexpr size_t kShownElements = 8;  // of an array
constexpr size_t kShownBytes = 200;   // of a string, for people

template <class T>
T ReadAs(std::span<const std::byte> bytes, size_t index) {
  T value{};
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

// One element of a number or bool array.
Json NumberToJson(gguf::ValueType type, std::span<const std::byte> bytes, size_t i) {
  using gguf::ValueType;
  switch (type) {
    case ValueType::kUint8:
      return ReadAs<uint8_t>(bytes, i);
    case ValueType::kInt8:
      return ReadAs<int8_t>(bytes, i);
    case ValueType::kUint16:
      return ReadAs<uint16_t>(bytes, i);
    case ValueType::kInt16:
      return ReadAs<int16_t>(bytes, i);
    case ValueType::kUint32:
      return ReadAs<uint32_t>(bytes, i);
    case ValueType::kInt32:
      return ReadAs<int32_t>(bytes, i);
    case ValueType::kFloat32:
      return ReadAs<float>(bytes, i);
    case ValueType::kBool:
      return ReadAs<uint8_t>(bytes, i) != 0;
    case ValueType::kUint64:
      return ReadAs<uint64_t>(bytes, i);
    case ValueType::kInt64:
      return ReadAs<int64_t>(bytes, i);
    case ValueType::kFloat64:
      return ReadAs<double>(bytes, i);
    default:
      return nullptr;
  }
}

Json ElementsToJson(const gguf::Value& value, size_t count) {
  Json list = Json::array();
  gguf::StringCursor strings(value.data);
  for (size_t i = 0; i < count; ++i) {
    if (value.element_type == gguf::ValueType::kString) {
      list.push_back(std::string(strings.Next()));
    } else {
      list.push_back(NumberToJson(value.element_type, value.data, i));
    }
  }
  return list;
}

// Long arrays are described, not printed: a vocabulary has a quarter of a million entries.
Json ValueToJson(const gguf::Value& value) {
  if (value.type != gguf::ValueType::kArray) return ElementsToJson(value, 1).at(0);
  const size_t shown = std::min<size_t>(value.count, kShownElements);
  Json first = ElementsToJson(value, shown);
  if (shown == value.count) return first;
  return {{"type", "array of " + std::string(gguf::ToString(value.element_type))},
          {"count", value.count},
          {"first", std::move(first)}};
}

// Why this build cannot run the model; nothing if it can.
std::optional<Error> WhyUnsupported(const gguf::File& file) {
  const auto description = model::Describe(file);
  if (!description) return description.error();
  model::ModelDescription copy = *description;
  const auto weights = model::BindWeights(file, copy);
  if (!weights) return weights.error();
  const auto tokenizer = tokenizer::Tokenizer::Create(file);
  if (!tokenizer) return tokenizer.error();
  return std::nullopt;
}

struct TypeUse {
  uint64_t tensors = 0;
  uint64_t bytes = 0;
};

std::map<std::string, TypeUse> CountTypes(const gguf::File& file) {
  std::map<std::string, TypeUse> types;
  for (const gguf::TensorInfo& tensor : file.tensors()) {
    TypeUse& use = types[std::string(gguf::TypeName(tensor.type))];
    ++use.tensors;
    use.bytes += tensor.bytes;
  }
  return types;
}

// The largest power of two, up to 64 KiB, that every tensor's data begins at a multiple of.
uint64_t DataAlignment(const gguf::File& file) {
  uint64_t alignment = gguf::kMaxAlignment;
  for (const gguf::TensorInfo& tensor : file.tensors()) {
    while (tensor.offset % alignment != 0) alignment /= 2;
  }
  return alignment;
}

Json TensorsToJson(const gguf::File& file) {
  Json list = Json::array();
  for (const gguf::TensorInfo& tensor : file.tensors()) {
    Json shape = Json::array();
    for (uint32_t i = 0; i < tensor.num_dims; ++i) shape.push_back(tensor.shape[i]);
    list.push_back({{"name", std::string(tensor.name)},
                    {"type", gguf::TypeName(tensor.type)},
                    {"shape", std::move(shape)},
                    {"offset", tensor.offset},
                    {"bytes", tensor.bytes}});
  }
  return list;
}

Json Describe(const std::string& path, const gguf::File& file) {
  Json types = Json::object(), metadata = Json::object();
  for (const auto& [name, use] : CountTypes(file)) {
    types[name] = {{"tensors", use.tensors}, {"bytes", use.bytes}};
  }
  for (const auto& [key, value] : file.metadata()) metadata[std::string(key)] = ValueToJson(value);
  const std::optional<Error> unsupported = WhyUnsupported(file);
  Json object = {{"path", path},
                 {"file_bytes", file.bytes().size()},
                 {"gguf_version", file.version()},
                 {"alignment", file.alignment()},
                 {"data_offset", file.data_offset()},
                 {"data_alignment", DataAlignment(file)},
                 {"page_aligned", DataAlignment(file) % mem::PageSize() == 0},
                 {"supported", !unsupported.has_value()}};
  if (unsupported) object["reason"] = unsupported->Message();
  object["types"] = std::move(types);
  object["metadata"] = std::move(metadata);
  object["tensors"] = TensorsToJson(file);
  return object;
}

// One line, whatever is in the file: control characters do not reach the terminal.
std::string Shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kShownBytes) text = text.substr(0, kShownBytes) + " ...";
  return text;
}

std::string ToText(const Json& object) {
  std::string text;
  const auto line = [&text](const std::string& name, const std::string& value) {
    text += name + std::string(name.size() < 12 ? 12 - name.size() : 1, ' ') + value + "\n";
  };
  line("file", Shown(object["path"]) + ", " + FormatSize(object["file_bytes"]) + ", GGUF v" +
                   Shown(object["gguf_version"]));
  line("alignment", Shown(object["alignment"]) + " bytes; tensor data lies at multiples of " +
                        Shown(object["data_alignment"]) +
                        (object["page_aligned"] ? " (whole pages)" : ""));
  line("supported", object["supported"] ? "yes" : "no: " + std::string(object["reason"]));
  for (const auto& [name, use] : object["types"].items()) {
    line("type", name + ": " + Shown(use["tensors"]) + " tensors, " + FormatSize(use["bytes"]));
  }
  text += "\nmetadata\n";
  for (const auto& [key, value] : object["metadata"].items()) {
    text += "  " + Shown(key) + " = " + Shown(value) + "\n";
  }
  text += "\ntensors (name, type, shape, offset, bytes)\n";
  for (const Json& tensor : object["tensors"]) {
    text += "  " + Shown(tensor["name"]) + " " + std::string(tensor["type"]) + " " +
            Shown(tensor["shape"]) + " " + Shown(tensor["offset"]) + " " + Shown(tensor["bytes"]) +
            "\n";
  }
  return text;
}

}  // namespace

Result<int> Execute(const InspectOptions& options) {
  TAEL_ASSIGN_OR_RETURN(const auto mapping, mem::FileMapping::Open(options.model_path));
  TAEL_ASSIGN_OR_RETURN(const auto file, gguf::File::Parse(mapping.bytes()));
  const Json object = Describe(options.model_path, file);
  TAEL_RETURN_IF_ERROR(options.output.json ? PrintJson(object) : PrintText(ToText(object)));
  return kExitOk;
}

}  // namespace tael::cli
