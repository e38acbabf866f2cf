// `tael pack`: a copy of a model file for mapping. Every tensor begins at a page, and tensors lie
// in the order of use, so that a layer is one run of the file. The result is a valid GGUF.
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <vector>

#include "base/units.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "gguf/file.h"
#include "gguf/writer.h"
#include "mem/mapping.h"

namespace tael::cli {
namespace {

// Parts of a layer in the order of the forward pass; other names keep the order of the file.
constexpr std::array<std::string_view, 15> kOrderInLayer = {
    "attn_norm",   "attn_q",        "attn_k",
    "attn_v",      "attn_qkv",      "attn_q_norm",
    "attn_k_norm", "attn_output",   "post_attention_norm",
    "ffn_norm",    "ffn_gate",      "ffn_up",
    "ffn_down",    "post_ffw_norm", "rope_freqs"};

// (place in the pass, place in the layer): embedding, layers, then the head.
std::tuple<uint64_t, size_t> UseOf(std::string_view name) {
  constexpr std::string_view kLayer = "blk.";
  if (!name.starts_with(kLayer)) return {name.starts_with("output") ? UINT64_MAX : 0, 0};
  uint64_t layer = 0;
  const char* end = name.data() + name.size();
  const char* dot = std::from_chars(name.data() + kLayer.size(), end, layer).ptr;
  const std::string_view part(dot, static_cast<size_t>(end - dot));
  const auto place = std::find_if(kOrderInLayer.begin(), kOrderInLayer.end(), [&](auto known) {
    return part.size() > known.size() + 1 && part.substr(1).starts_with(known) &&
           part[known.size() + 1] == '.';
  });
  return {layer + 1, static_cast<size_t>(place - kOrderInLayer.begin())};
}

std::vector<const gguf::TensorInfo*> InOrderOfUse(const gguf::File& file) {
  std::vector<const gguf::TensorInfo*> tensors;
  for (const gguf::TensorInfo& tensor : file.tensors()) tensors.push_back(&tensor);
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const auto* a, const auto* b) { return UseOf(a->name) < UseOf(b->name); });
  return tensors;
}

Status CheckOutput(const PackOptions& options) {
  std::error_code ignored;
  if (std::filesystem::equivalent(options.input, options.output_path, ignored)) {
    return Error{
        ErrorCode::kInvalidArgument, "the output is the input",
        "\"" + options.output_path + "\"; the file in use must stay as it is, name another"};
  }
  if (std::filesystem::is_directory(options.output_path, ignored)) {
    return Error{ErrorCode::kInvalidArgument, "the output is a directory",
                 "\"" + options.output_path + "\"; name a file in it"};
  }
  return {};
}

}  // namespace

Result<int> Execute(const PackOptions& options) {
  TAEL_ASSIGN_OR_RETURN(const auto mapping, mem::FileMapping::Open(options.input));
  TAEL_ASSIGN_OR_RETURN(const auto file, gguf::File::Parse(mapping.bytes()));
  TAEL_RETURN_IF_ERROR(CheckOutput(options));
  gguf::Writer writer(options.alignment, std::max(file.version(), 3u));
  for (const auto& [key, value] : file.metadata()) {
    if (key != "general.alignment") writer.AddValue(key, value);
  }
  for (const gguf::TensorInfo* tensor : InOrderOfUse(file)) {
    writer.AddTensor(tensor->name, tensor->type, {tensor->shape.data(), tensor->num_dims},
                     file.TensorData(*tensor));
  }
  if (const Status written = writer.WriteFile(options.output_path); !written) {
    Error error = written.error();
    // A file named on the command line, other than the model.
    if (error.code == ErrorCode::kIo) error.code = ErrorCode::kInvalidArgument;
    return error;
  }
  std::error_code unknown;
  const uint64_t packed = std::filesystem::file_size(options.output_path, unknown);
  if (options.output.json) {
    TAEL_RETURN_IF_ERROR(PrintJson({{"path", options.output_path},
                                    {"alignment", options.alignment},
                                    {"tensors", file.tensors().size()},
                                    {"input_bytes", file.bytes().size()},
                                    {"output_bytes", packed}}));
  } else {
    Note(options.output_path + ": " + std::to_string(file.tensors().size()) +
         " tensors at multiples of " + std::to_string(options.alignment) + " bytes, " +
         FormatSize(packed) + " (before: " + FormatSize(file.bytes().size()) + ")");
  }
  return kExitOk;
}

}  // namespace tael::cli
