#include "exec/reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "kernels/kernels.h"

namespace tael::exec {
namespace {

const kernels::KernelTable& Scalar() { return **kernels::Runnable().begin(); }

void Add(std::vector<float>& x, const std::vector<float>& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

float Silu(float x) { return x / (1.0f + std::exp(-x)); }

float GeluTanh(float x) {
  constexpr float kSqrt2OverPi = 0.7978845608f;
  return 0.5f * x * (1.0f + std::tanh(kSqrt2OverPi * (x + 0.044715f * x * x * x)));
}

}  // namespace

Reference::Reference(const model::Model& model, uint32_t context_length,
                     std::vector<LayerWindow> windows)
    : model_(model),
      windows_(std::move(windows)),
      gone_(model.description().num_layers),
      ropes_(model::MakeRopeFrequencies(model.description(), model.weights(), context_length)),
      keys_(model.description().num_layers),
      values_(model.description().num_layers) {
  if (!windows_.empty()) return;
  for (const model::LayerDescription& layer : model.description().layers) {
    windows_.push_back({layer.window, 0});
  }
}

Reference::Vector Reference::Multiply(const model::Matrix& matrix, const Vector& x,
                                      const float* bias) const {
  Vector y(matrix.rows);
  Vector row(matrix.cols);
  const auto dequantize = Scalar().matmul.dequantize_row[static_cast<size_t>(matrix.type)];
  for (uint32_t r = 0; r < matrix.rows; ++r) {
    dequantize(matrix.data + r * matrix.row_bytes, matrix.cols, row.data());
    double sum = bias != nullptr ? static_cast<double>(bias[r]) : 0.0;
    for (uint32_t c = 0; c < matrix.cols; ++c) sum += static_cast<double>(row[c] * x[c]);
    y[r] = static_cast<float>(sum);
  }
  return y;
}

Reference::Vector Reference::RmsNorm(const Vector& x, const float* weight) const {
  double squares = 0;
  for (float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
  const double mean = squares / static_cast<double>(x.size());
  const auto scale = static_cast<float>(
      1.0 / std::sqrt(mean + static_cast<double>(model_.description().norm_epsilon)));
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * weight[i];
  return y;
}

void Reference::NormHeads(Vector& heads, const float* weight) const {
  const model::ModelDescription& m = model_.description();
  if (m.qk_norm == model::QkNorm::kNone) return;
  if (m.qk_norm == model::QkNorm::kWholeProjection) {
    heads = RmsNorm(heads, weight);
    return;
  }
  for (size_t at = 0; at < heads.size(); at += m.head_dim) {
    const auto begin = heads.begin() + static_cast<std::ptrdiff_t>(at);
    const Vector normed = RmsNorm(Vector(begin, begin + m.head_dim), weight);
    std::copy(normed.begin(), normed.end(), begin);
  }
}

void Reference::Rotate(Vector& heads, int32_t rope, uint32_t position) const {
  if (rope < 0) return;
  const model::ModelDescription& m = model_.description();
  const size_t half = m.rope_dims / 2;
  Vector cos(half), sin(half);
  model::FillRope(ropes_[static_cast<size_t>(rope)], position, cos, sin);
  const bool pairs = m.rope_layout == model::RopeLayout::kPairs;
  for (size_t at = 0; at < heads.size(); at += m.head_dim) {
    for (size_t i = 0; i < half; ++i) {
      float& a = heads[at + (pairs ? 2 * i : i)];
      float& b = heads[at + (pairs ? 2 * i + 1 : i + half)];
      const float turned = a * cos[i] - b * sin[i];
      b = a * sin[i] + b * cos[i];
      a = turned;
    }
  }
}

void Reference::set_compression(Compression compression) {
  compression_ = std::move(compression);
  compression_.scores.assign(compression_.groups.size(), std::vector<double>(compression_.at));
}

bool Reference::IsGone(uint32_t layer, uint32_t block) const {
  return block < gone_[layer].size() && gone_[layer][block];
}

// Where the attention of the query at position_ counts; null: it does not.
std::vector<double>* Reference::Observed(uint32_t layer) {
  Compression& c = compression_;
  if (position_ < c.observe_from || position_ >= c.at) return nullptr;
  for (size_t i = 0; i < c.groups.size(); ++i) {
    if (std::ranges::find(c.groups[i], layer) != c.groups[i].end()) return &c.scores[i];
  }
  return nullptr;
}

// Before the query at position `at` comes.
void Reference::Compress() {
  const Compression& c = compression_;
  for (size_t i = 0; i < c.groups.size(); ++i) {
    std::vector<std::pair<double, uint32_t>> order;
    for (uint32_t block = 0; block < c.recent_from / 16; ++block) {
      if (IsGone(c.groups[i].front(), block)) continue;
      const auto score = c.scores[i].begin() + block * 16;
      order.emplace_back(order.empty() ? INFINITY : *std::max_element(score, score + 16), block);
    }
    std::ranges::sort(order, std::greater());
    if (order.size() <= c.blocks) continue;
    const double last = order[c.blocks - 1].first, loser = order[c.blocks].first;
    if (c.blocks > 1) least_margin_ = std::min(least_margin_, (last - loser) / last);
    for (size_t lost = c.blocks; lost < order.size(); ++lost) {
      const uint32_t block = order[lost].second;
      for (const uint32_t layer : c.groups[i]) {
        gone_[layer].resize(std::max<size_t>(gone_[layer].size(), block + 1));
        gone_[layer][block] = true;
      }
    }
  }
}

bool Reference::Sees(uint32_t layer, uint32_t token) const {
  if (IsGone(layer, token / 16)) return false;
  if (HasTail(layer)) return TailSees(tails_[layer], token);
  const LayerWindow& w = windows_[layer];
  return w.window == 0 || token < w.sinks || token + (w.window - w.sinks) > position_;
}

// Every key that the window shows, and what stands for some that it does not.
std::vector<Reference::Item> Reference::Visible(uint32_t layer) {
  const size_t kv_dim =
      size_t{model_.description().layers[layer].num_kv_heads} * model_.description().head_dim;
  std::vector<double>* observed = Observed(layer);
  Tail* tail = HasTail(layer) ? &tails_[layer] : nullptr;
  std::vector<Item> items;
  for (uint32_t t = 0; t <= position_; ++t) {
    if (!Sees(layer, t)) continue;
    items.push_back({.key = &keys_[layer][t * kv_dim],
                     .value = &values_[layer][t * kv_dim],
                     .bias = 0,
                     .is_sink = t < windows_[layer].sinks,
                     .score = tail != nullptr ? &tail->scores[t] : nullptr,
                     .observed = observed != nullptr ? &(*observed)[t] : nullptr});
  }
  if (tail == nullptr) return items;
  for (Summary& summary : tail->summaries) {
    items.push_back({.key = summary.key.data(),
                     .value = summary.value.data(),
                     .bias = static_cast<float>(summary.bias),
                     .is_sink = false,
                     .score = &summary.score,
                     .observed = nullptr});
  }
  return items;
}

// Softmax over what is visible, one query head after the other. The sinks are compared with
// `sink_q`.
Reference::Vector Reference::Attention(uint32_t layer, const Vector& q, const Vector& sink_q) {
  const model::ModelDescription& m = model_.description();
  const model::LayerDescription& l = m.layers[layer];
  Vector out(q.size());
  const std::vector<Item> items = Visible(layer);
  Vector weights(items.size());
  for (uint32_t head = 0; head < m.num_heads; ++head) {
    const size_t kv_head = head / (m.num_heads / l.num_kv_heads);
    float largest = -INFINITY;
    for (size_t i = 0; i < items.size(); ++i) {
      const Vector& query = items[i].is_sink ? sink_q : q;
      const float* key = items[i].key + kv_head * m.head_dim;
      float score = 0;
      for (uint32_t d = 0; d < m.head_dim; ++d)
        score += query[size_t{head} * m.head_dim + d] * key[d];
      score *= m.attention_scale;
      if (m.attention_softcap > 0) {
        score = m.attention_softcap * std::tanh(score / m.attention_softcap);
      }
      weights[i] = score + items[i].bias;
      largest = std::max(largest, weights[i]);
    }
    float sum = 0;
    for (float& weight : weights) sum += weight = std::exp(weight - largest);
    for (size_t i = 0; i < items.size(); ++i) {
      const float share = weights[i] / sum;
      if (items[i].observed != nullptr) *items[i].observed += double{share};
      if (items[i].score != nullptr) *items[i].score += double{share};
      const float* value = items[i].value + kv_head * m.head_dim;
      for (uint32_t d = 0; d < m.head_dim; ++d) {
        out[size_t{head} * m.head_dim + d] += share * value[d];
      }
    }
  }
  return out;
}

Reference::Vector Reference::AttentionBlock(uint32_t layer, const Vector& x) {
  const model::LayerWeights& w = model_.weights().layers[layer];
  const model::LayerDescription& l = model_.description().layers[layer];
  const Vector h = w.attention_norm != nullptr ? RmsNorm(x, w.attention_norm) : x;
  Vector q = Multiply(w.q, h, w.q_bias);
  Vector k = Multiply(w.k, h, w.k_bias);
  const Vector v = Multiply(w.v, h, w.v_bias);
  NormHeads(q, w.q_norm);
  NormHeads(k, w.k_norm);
  Vector sink_q = q;
  const uint32_t window = windows_[layer].window;
  const bool far = window != 0 && position_ >= model_.description().trained_context;
  Rotate(q, l.rope, position_);
  Rotate(k, l.rope, position_);
  Rotate(sink_q, l.rope, far ? window - 1 : position_);
  keys_[layer].insert(keys_[layer].end(), k.begin(), k.end());
  values_[layer].insert(values_[layer].end(), v.begin(), v.end());
  Vector y = Multiply(w.output, Attention(layer, q, sink_q), w.output_bias);
  return w.attention_post_norm != nullptr ? RmsNorm(y, w.attention_post_norm) : y;
}

Reference::Vector Reference::FfnBlock(uint32_t layer, const Vector& x) const {
  const model::LayerWeights& w = model_.weights().layers[layer];
  const bool gelu = model_.description().activation == model::Activation::kGelu;
  const Vector h = w.ffn_norm != nullptr ? RmsNorm(x, w.ffn_norm) : x;
  Vector gate = Multiply(w.gate, h, nullptr);
  const Vector up = Multiply(w.up, h, nullptr);
  for (size_t i = 0; i < gate.size(); ++i) {
    gate[i] = (gelu ? GeluTanh(gate[i]) : Silu(gate[i])) * up[i];
  }
  Vector y = Multiply(w.down, gate, nullptr);
  return w.ffn_post_norm != nullptr ? RmsNorm(y, w.ffn_post_norm) : y;
}

std::vector<float> Reference::Feed(TokenId token) {
  for (uint32_t layer = 0; layer < tails_.size(); ++layer) {
    if (HasTail(layer)) Choose(layer);
    Tail& tail = tails_[layer];
    for (double& score : tail.scores) score *= 0.998;
    for (Summary& summary : tail.summaries) summary.score *= 0.998;
    tail.scores.push_back(0);
  }
  if (compression_.at != 0 && position_ == compression_.at) Compress();
  const model::ModelDescription& m = model_.description();
  const model::Weights& w = model_.weights();
  Vector x(m.model_dim);
  Scalar().matmul.dequantize_row[static_cast<size_t>(w.embedding.type)](
      w.embedding.data + static_cast<size_t>(ToInt(token)) * w.embedding.row_bytes, m.model_dim,
      x.data());
  for (float& v : x) v *= m.embedding_scale;
  for (uint32_t layer = 0; layer < m.num_layers; ++layer) {
    Add(x, AttentionBlock(layer, x));
    Add(x, FfnBlock(layer, x));
  }
  ++position_;
  Vector logits = Multiply(w.output, RmsNorm(x, w.output_norm), nullptr);
  if (m.final_softcap > 0) {
    for (float& v : logits) v = m.final_softcap * std::tanh(v / m.final_softcap);
  }
  return logits;
}

}  // namespace tael::exec
