#include "model/weights.h"

#include <string>
#include <unordered_set>
#include <utility>

#include "kernels/kernels.h"

namespace tael::model {
namespace {

std::string ShapeText(const gguf::TensorInfo& tensor) {
  std::string text = "[" + std::to_string(tensor.shape[0]);
  for (uint32_t i = 1; i < tensor.num_dims; ++i) text += ", " + std::to_string(tensor.shape[i]);
  return text + "]";
}

class Binder {
 public:
  Binder(const gguf::File& file, const ModelDescription& description, Weights& out)
      : file_(file), description_(description), out_(out) {}

  bool Has(const std::string& name) const { return file_.FindTensor(name) != nullptr; }

  // Whether the layers have a part that some models of a family lack: as the first layer has it or
  // not, so must all the others.
  bool LayersHave(const std::string& part) const { return Has("blk.0." + part); }

  // A matrix of `cols` columns and `rows` rows.
  Status BindMatrix(const std::string& name, uint64_t rows, uint64_t cols, Matrix& matrix) {
    TAEL_ASSIGN_OR_RETURN(const gguf::TensorInfo* tensor, Take(name));
    if (tensor->num_dims > 2 || tensor->shape[0] != cols || tensor->shape[1] != rows) {
      return WrongShape(*tensor, "[" + std::to_string(cols) + ", " + std::to_string(rows) + "]");
    }
    matrix.data = file_.TensorData(*tensor).data();
    matrix.row_bytes = tensor->row_bytes;
    matrix.rows = static_cast<uint32_t>(rows);
    matrix.cols = static_cast<uint32_t>(cols);
    matrix.type = static_cast<kernels::WeightType>(tensor->type);
    return {};
  }

  // A vector of `size` values, as f32.
  Status BindVector(const std::string& name, uint64_t size, const float*& vector) {
    TAEL_ASSIGN_OR_RETURN(const gguf::TensorInfo* tensor, Take(name));
    if (tensor->shape[0] != size || tensor->num_rows() != 1) {
      return WrongShape(*tensor, "[" + std::to_string(size) + "]");
    }
    const std::byte* data = file_.TensorData(*tensor).data();
    if (tensor->type == gguf::TensorType::kF32 &&
        reinterpret_cast<uintptr_t>(data) % alignof(float) == 0) {
      vector = reinterpret_cast<const float*>(data);
      return {};
    }
    auto values = std::make_unique<float[]>(size);
    const auto& dequantize = kernels::Active().matmul.dequantize_row;
    dequantize[static_cast<size_t>(tensor->type)](data, size, values.get());
    vector = values.get();
    out_.owned.push_back(std::move(values));
    out_.owned_bytes += size * sizeof(float);
    return {};
  }

  Status BindOptionalVector(const std::string& name, uint64_t size, const float*& vector) {
    return Has(name) ? BindVector(name, size, vector) : Status();
  }

  // The tensor that is in the file but was never asked for, or null.
  const gguf::TensorInfo* LeftOver() const {
    for (const gguf::TensorInfo& tensor : file_.tensors()) {
      if (!taken_.contains(&tensor)) return &tensor;
    }
    return nullptr;
  }

 private:
  Result<const gguf::TensorInfo*> Take(const std::string& name) {
    const gguf::TensorInfo* tensor = file_.FindTensor(name);
    if (tensor == nullptr) {
      return Error{ErrorCode::kMalformed, "missing tensor",
                   "\"" + name + "\", which every " + description_.architecture + " model has"};
    }
    const gguf::TypeTraits* traits = gguf::FindTypeTraits(tensor->type);
    if (traits == nullptr || !traits->supported) {
      return Error{ErrorCode::kUnsupported, "quantisation type not supported",
                   "tensor \"" + name + "\" is " + std::string(gguf::TypeName(tensor->type)) +
                       " (type " + std::to_string(static_cast<uint32_t>(tensor->type)) + ")"};
    }
    taken_.insert(tensor);
    return tensor;
  }

  static Error WrongShape(const gguf::TensorInfo& tensor, const std::string& expected) {
    return Error{
        ErrorCode::kMalformed, "tensor has the wrong shape",
        "\"" + std::string(tensor.name) + "\" is " + ShapeText(tensor) + ", expected " + expected};
  }

  const gguf::File& file_;
  const ModelDescription& description_;
  Weights& out_;
  std::unordered_set<const gguf::TensorInfo*> taken_;
};

// `rows` rows of `whole` from `begin`: how fused tensors (Phi-3) are taken apart without a copy.
Matrix RowSlice(const Matrix& whole, uint32_t begin, uint32_t rows) {
  Matrix slice = whole;
  slice.data += begin * whole.row_bytes;
  slice.rows = rows;
  return slice;
}

Status BindQkv(Binder& binder, const ModelDescription& model, const std::string& prefix,
               uint32_t kv_dim, LayerWeights& out) {
  const uint32_t q_dim = model.num_heads * model.head_dim;
  if (binder.Has(prefix + "attn_qkv.weight")) {
    Matrix fused;
    TAEL_RETURN_IF_ERROR(
        binder.BindMatrix(prefix + "attn_qkv.weight", q_dim + 2 * kv_dim, model.model_dim, fused));
    out.q = RowSlice(fused, 0, q_dim);
    out.k = RowSlice(fused, q_dim, kv_dim);
    out.v = RowSlice(fused, q_dim + kv_dim, kv_dim);
    if (!binder.LayersHave("attn_qkv.bias")) return {};
    TAEL_RETURN_IF_ERROR(
        binder.BindVector(prefix + "attn_qkv.bias", q_dim + 2 * kv_dim, out.q_bias));
    out.k_bias = out.q_bias + q_dim;
    out.v_bias = out.q_bias + q_dim + kv_dim;
    return {};
  }
  TAEL_RETURN_IF_ERROR(binder.BindMatrix(prefix + "attn_q.weight", q_dim, model.model_dim, out.q));
  TAEL_RETURN_IF_ERROR(binder.BindMatrix(prefix + "attn_k.weight", kv_dim, model.model_dim, out.k));
  TAEL_RETURN_IF_ERROR(binder.BindMatrix(prefix + "attn_v.weight", kv_dim, model.model_dim, out.v));
  if (!model.qkv_bias && !binder.LayersHave("attn_q.bias")) return {};
  TAEL_RETURN_IF_ERROR(binder.BindVector(prefix + "attn_q.bias", q_dim, out.q_bias));
  TAEL_RETURN_IF_ERROR(binder.BindVector(prefix + "attn_k.bias", kv_dim, out.k_bias));
  return binder.BindVector(prefix + "attn_v.bias", kv_dim, out.v_bias);
}

Status BindNorms(Binder& binder, const ModelDescription& model, const std::string& prefix,
                 uint32_t kv_dim, LayerWeights& out) {
  const uint32_t dim = model.model_dim;
  if (model.pre_norm) {
    TAEL_RETURN_IF_ERROR(binder.BindVector(prefix + "attn_norm.weight", dim, out.attention_norm));
    TAEL_RETURN_IF_ERROR(binder.BindVector(prefix + "ffn_norm.weight", dim, out.ffn_norm));
  }
  if (model.post_norm) {
    TAEL_RETURN_IF_ERROR(
        binder.BindVector(prefix + "post_attention_norm.weight", dim, out.attention_post_norm));
    TAEL_RETURN_IF_ERROR(
        binder.BindVector(prefix + "post_ffw_norm.weight", dim, out.ffn_post_norm));
  }
  if (model.qk_norm == QkNorm::kNone) return {};
  const bool whole = model.qk_norm == QkNorm::kWholeProjection;
  const uint32_t q_size = whole ? model.num_heads * model.head_dim : model.head_dim;
  const uint32_t k_size = whole ? kv_dim : model.head_dim;
  TAEL_RETURN_IF_ERROR(binder.BindVector(prefix + "attn_q_norm.weight", q_size, out.q_norm));
  return binder.BindVector(prefix + "attn_k_norm.weight", k_size, out.k_norm);
}

Status BindFfn(Binder& binder, const ModelDescription& model, const std::string& prefix,
               LayerWeights& out) {
  if (!binder.Has(prefix + "ffn_gate.weight")) {
    // Phi-3: gate and up in one tensor, gate first.
    Matrix fused;
    TAEL_RETURN_IF_ERROR(binder.BindMatrix(prefix + "ffn_up.weight", uint64_t{2} * model.ffn_dim,
                                           model.model_dim, fused));
    out.gate = RowSlice(fused, 0, model.ffn_dim);
    out.up = RowSlice(fused, model.ffn_dim, model.ffn_dim);
  } else {
    TAEL_RETURN_IF_ERROR(
        binder.BindMatrix(prefix + "ffn_gate.weight", model.ffn_dim, model.model_dim, out.gate));
    TAEL_RETURN_IF_ERROR(
        binder.BindMatrix(prefix + "ffn_up.weight", model.ffn_dim, model.model_dim, out.up));
  }
  return binder.BindMatrix(prefix + "ffn_down.weight", model.model_dim, model.ffn_dim, out.down);
}

Status BindLayer(Binder& binder, const ModelDescription& model, uint32_t index, LayerWeights& out) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const uint32_t kv_dim = model.layers[index].num_kv_heads * model.head_dim;
  TAEL_RETURN_IF_ERROR(BindQkv(binder, model, prefix, kv_dim, out));
  TAEL_RETURN_IF_ERROR(binder.BindMatrix(prefix + "attn_output.weight", model.model_dim,
                                         uint64_t{model.num_heads} * model.head_dim, out.output));
  if (binder.LayersHave("attn_output.bias")) {
    TAEL_RETURN_IF_ERROR(
        binder.BindVector(prefix + "attn_output.bias", model.model_dim, out.output_bias));
  }
  TAEL_RETURN_IF_ERROR(BindNorms(binder, model, prefix, kv_dim, out));
  return BindFfn(binder, model, prefix, out);
}

Status BindFactors(Binder& binder, const std::string& name, size_t size, std::vector<float>& out) {
  const float* values = nullptr;
  TAEL_RETURN_IF_ERROR(binder.BindOptionalVector(name, size, values));
  if (values == nullptr) return {};
  for (size_t i = 0; i < size; ++i) {
    if (!(values[i] > 0)) {
      return Error{ErrorCode::kMalformed, "rotation factor is not positive",
                   "\"" + name + "\", value " + std::to_string(i)};
    }
  }
  out.assign(values, values + size);
  return {};
}

Status BindRopeFactors(Binder& binder, const ModelDescription& model, Weights& out) {
  const size_t size = model.rope_dims / 2;
  TAEL_RETURN_IF_ERROR(BindFactors(binder, "rope_freqs.weight", size, out.rope_factors));
  TAEL_RETURN_IF_ERROR(BindFactors(binder, "rope_factors_short.weight", size, out.rope_factors));
  return BindFactors(binder, "rope_factors_long.weight", size, out.long_rope_factors);
}

}  // namespace

Result<Weights> BindWeights(const gguf::File& file, ModelDescription& description) {
  Weights out;
  Binder binder(file, description, out);
  // The embedding's rows say how large the vocabulary is; no key does in every family.
  const gguf::TensorInfo* embedding = file.FindTensor("token_embd.weight");
  const uint64_t vocab_size = embedding != nullptr ? embedding->shape[1] : 1;
  if (vocab_size > (1u << 24)) {
    return Error{ErrorCode::kUnsupported, "vocabulary too large",
                 std::to_string(vocab_size) + " rows in \"token_embd.weight\""};
  }
  TAEL_RETURN_IF_ERROR(
      binder.BindMatrix("token_embd.weight", vocab_size, description.model_dim, out.embedding));
  description.vocab_size = static_cast<uint32_t>(vocab_size);
  out.tied = !binder.Has("output.weight");
  out.output = out.embedding;
  if (!out.tied) {
    TAEL_RETURN_IF_ERROR(
        binder.BindMatrix("output.weight", vocab_size, description.model_dim, out.output));
  }
  TAEL_RETURN_IF_ERROR(
      binder.BindVector("output_norm.weight", description.model_dim, out.output_norm));
  TAEL_RETURN_IF_ERROR(BindRopeFactors(binder, description, out));
  out.layers.resize(description.num_layers);
  for (uint32_t i = 0; i < description.num_layers; ++i) {
    TAEL_RETURN_IF_ERROR(BindLayer(binder, description, i, out.layers[i]));
  }
  if (const gguf::TensorInfo* extra = binder.LeftOver()) {
    return Error{ErrorCode::kMalformed, "tensor that this architecture does not have",
                 "\"" + std::string(extra->name) + "\" in a " + description.architecture +
                     " model: its result would be wrong without it"};
  }
  return out;
}

}  // namespace tael::model
