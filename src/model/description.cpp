#include "model/description.h"

#include <cmath>
#include <utility>

#include "model/architectures.h"
#include "model/metadata.h"

namespace tael::model {
namespace {

// Generous for models up to 3B (and well beyond), tight enough that no product of them overflows.
constexpr uint32_t kMaxLayers = 512;
constexpr uint32_t kMaxDim = 1u << 17;
constexpr uint32_t kMaxHeads = 1024;
constexpr uint32_t kMaxHeadDim = 1024;
constexpr uint32_t kMaxContext = 1u << 24;

std::string SupportedList() {
  std::string list;
  for (const Architecture& architecture : Architectures()) {
    if (!list.empty()) list += ", ";
    list += architecture.name;
  }
  return list;
}

Status ReadSizes(const Metadata& meta, ModelDescription& out) {
  TAEL_ASSIGN_OR_RETURN(out.num_layers, meta.Uint("block_count", 1, kMaxLayers));
  TAEL_ASSIGN_OR_RETURN(out.model_dim, meta.Uint("embedding_length", 1, kMaxDim));
  TAEL_ASSIGN_OR_RETURN(out.ffn_dim, meta.Uint("feed_forward_length", 1, kMaxDim));
  TAEL_ASSIGN_OR_RETURN(out.num_heads, meta.Uint("attention.head_count", 1, kMaxHeads));
  TAEL_ASSIGN_OR_RETURN(out.trained_context, meta.Uint("context_length", 1, kMaxContext));
  TAEL_ASSIGN_OR_RETURN(out.head_dim, meta.UintOr("attention.key_length", 1, kMaxHeadDim,
                                                  out.model_dim / out.num_heads));
  TAEL_ASSIGN_OR_RETURN(const uint32_t value_dim,
                        meta.UintOr("attention.value_length", 1, kMaxHeadDim, out.head_dim));
  if (value_dim != out.head_dim) {
    return Error{ErrorCode::kUnsupported, "keys and values of different length",
                 meta.Full("attention.value_length") + " is " + std::to_string(value_dim) +
                     ", keys have " + std::to_string(out.head_dim)};
  }
  if (out.head_dim == 0 || out.head_dim % 8 != 0 || out.head_dim > kMaxHeadDim) {
    return Error{ErrorCode::kUnsupported, "head dimension is not a multiple of 8",
                 meta.Full("attention.key_length") + " is " + std::to_string(out.head_dim)};
  }
  TAEL_ASSIGN_OR_RETURN(out.rope_dims,
                        meta.UintOr("rope.dimension_count", 2, out.head_dim, out.head_dim));
  if (out.rope_dims % 2 != 0) {
    return Error{ErrorCode::kMalformed, "odd number of rotated dimensions",
                 meta.Full("rope.dimension_count") + " is " + std::to_string(out.rope_dims)};
  }
  return {};
}

Status ReadScales(const Metadata& meta, const Architecture& architecture, ModelDescription& out) {
  TAEL_ASSIGN_OR_RETURN(const double epsilon,
                        meta.FloatOr("attention.layer_norm_rms_epsilon", 0, 1, 1e-5));
  TAEL_ASSIGN_OR_RETURN(const double attention_cap,
                        meta.FloatOr("attn_logit_softcapping", 0, 1e6, 0));
  TAEL_ASSIGN_OR_RETURN(const double final_cap, meta.FloatOr("final_logit_softcapping", 0, 1e6, 0));
  out.norm_epsilon = static_cast<float>(epsilon);
  out.attention_softcap = static_cast<float>(attention_cap);
  out.final_softcap = static_cast<float>(final_cap);
  out.attention_scale = 1.0f / std::sqrt(static_cast<float>(out.head_dim));
  if (architecture.scale_embedding) {
    out.embedding_scale = std::sqrt(static_cast<float>(out.model_dim));
  }
  return {};
}

// Rope 0 is the one of full-attention layers; rope 1, where it exists, that of local layers.
Status ReadRopes(const Metadata& meta, const Architecture& architecture, ModelDescription& out) {
  RopeDescription global;
  global.use_factors = true;
  TAEL_ASSIGN_OR_RETURN(global.base, meta.FloatOr("rope.freq_base", 1, 1e12, 10000));
  TAEL_ASSIGN_OR_RETURN(const std::string type, meta.StringOr("rope.scaling.type", "none"));
  TAEL_ASSIGN_OR_RETURN(const double factor, meta.FloatOr("rope.scaling.factor", 1e-3, 1e6, 1));
  TAEL_ASSIGN_OR_RETURN(const double magnitude,
                        meta.FloatOr("rope.scaling.attn_factor", 1e-3, 1e3, 1));
  global.magnitude = static_cast<float>(magnitude);
  if (type == "linear") {
    global.linear_factor = factor;
  } else if (type != "none" && type != "longrope") {
    return Error{ErrorCode::kUnsupported, "RoPE scaling type",
                 "\"" + type + "\" (" + meta.Full("rope.scaling.type") +
                     "); supported: none, linear, longrope"};
  }
  TAEL_ASSIGN_OR_RETURN(out.rope_original_context,
                        meta.UintOr("rope.scaling.original_context_length", 0, kMaxContext, 0));
  out.ropes.push_back(global);
  if (architecture.local_rope_base > 0) {
    RopeDescription local;
    TAEL_ASSIGN_OR_RETURN(
        local.base, meta.FloatOr("rope.freq_base_swa", 1, 1e12, architecture.local_rope_base));
    out.ropes.push_back(local);
  }
  return {};
}

bool IsLocal(WindowPattern pattern, uint32_t layer) {
  switch (pattern) {
    case WindowPattern::kNone:
      return false;
    case WindowPattern::kAllLayers:
      return true;
    case WindowPattern::kEvenLayers:
      return layer % 2 == 0;
    case WindowPattern::kFiveOfSix:
      return layer % 6 != 5;
  }
  return false;
}

Result<std::vector<uint32_t>> ReadKvHeads(const Metadata& meta, const ModelDescription& out) {
  const std::string key = meta.Full("attention.head_count_kv");
  TAEL_ASSIGN_OR_RETURN(auto given, meta.file().GetUintArray(key));
  std::vector<uint32_t> heads(out.num_layers, out.num_heads);
  if (!given) return heads;
  if (given->size() != 1 && given->size() != out.num_layers) {
    return Error{ErrorCode::kMalformed, "wrong number of values",
                 key + " has " + std::to_string(given->size()) + ", the model has " +
                     std::to_string(out.num_layers) + " layers"};
  }
  for (uint32_t layer = 0; layer < out.num_layers; ++layer) {
    const uint32_t count = (*given)[given->size() == 1 ? 0 : layer];
    if (count == 0 || count > out.num_heads || out.num_heads % count != 0) {
      return Error{ErrorCode::kMalformed, "KV heads do not divide the heads",
                   key + " is " + std::to_string(count) + ", " + meta.Full("attention.head_count") +
                       " is " + std::to_string(out.num_heads)};
    }
    heads[layer] = count;
  }
  return heads;
}

Status ReadLayers(const Metadata& meta, const Architecture& architecture, ModelDescription& out) {
  TAEL_ASSIGN_OR_RETURN(const uint32_t window,
                        meta.UintOr("attention.sliding_window", 0, kMaxContext, 0));
  if (window != 0 && architecture.window == WindowPattern::kNone) {
    return Error{ErrorCode::kUnsupported, "sliding window in an architecture that has none",
                 meta.Full("attention.sliding_window") + " is " + std::to_string(window)};
  }
  TAEL_ASSIGN_OR_RETURN(const std::vector<uint32_t> kv_heads, ReadKvHeads(meta, out));
  for (uint32_t i = 0; i < out.num_layers; ++i) {
    LayerDescription layer;
    const bool local = window != 0 && IsLocal(architecture.window, i);
    layer.window = local ? window : 0;
    layer.num_kv_heads = kv_heads[i];
    layer.rope = local && out.ropes.size() > 1 ? 1 : 0;
    if (architecture.no_rope_every != 0 && (i + 1) % architecture.no_rope_every == 0) {
      layer.rope = -1;
    }
    out.layers.push_back(layer);
  }
  return {};
}

}  // namespace

std::vector<std::string> SupportedArchitectures() {
  std::vector<std::string> names;
  for (const Architecture& architecture : Architectures()) names.emplace_back(architecture.name);
  return names;
}

Result<ModelDescription> Describe(const gguf::File& file) {
  TAEL_ASSIGN_OR_RETURN(const auto name, file.GetString("general.architecture"));
  if (!name) return Error{ErrorCode::kMalformed, "metadata key missing", "general.architecture"};
  const Architecture* architecture = FindArchitecture(*name);
  if (architecture == nullptr) {
    return Error{ErrorCode::kUnsupported, "unknown architecture",
                 "\"" + std::string(*name) + "\"; supported: " + SupportedList()};
  }
  ModelDescription out;
  out.architecture = *name;
  TAEL_ASSIGN_OR_RETURN(const auto display_name, file.GetString("general.name"));
  if (display_name) out.name = *display_name;
  out.pre_norm = architecture->pre_norm;
  out.post_norm = architecture->post_norm;
  out.qkv_bias = architecture->qkv_bias;
  out.qk_norm = architecture->qk_norm;
  out.rope_layout = architecture->rope_layout;
  out.activation = architecture->activation;

  const Metadata meta(file, out.architecture);
  TAEL_RETURN_IF_ERROR(ReadSizes(meta, out));
  TAEL_RETURN_IF_ERROR(ReadScales(meta, *architecture, out));
  TAEL_RETURN_IF_ERROR(ReadRopes(meta, *architecture, out));
  TAEL_RETURN_IF_ERROR(ReadLayers(meta, *architecture, out));
  return out;
}

}  // namespace tael::model
