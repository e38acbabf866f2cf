#include "exec/forward.h"

#include <algorithm>

#include "base/check.h"
#include "exec/attention.h"
#include "exec/observation.h"
#include "exec/projection.h"
#include "model/op_list.h"

namespace tael::exec {
namespace {

using model::Buffer;
using model::LayerWeights;
using model::Matrix;

// Token rows and rotation tables; row r's tables of rope i: [i][r][cos half | sin half].
void Embed(const Pass& pass, std::span<const model::RopeFrequencies> ropes, size_t thread) {
  const model::ModelDescription& m = pass.description();
  const Matrix& table = pass.model.weights().embedding;
  const size_t num_rows = pass.rows.size();
  const Range mine = SplitRange(num_rows * (1 + ropes.size()), 1, thread, pass.team.size());
  for (size_t unit = mine.begin; unit < mine.end; ++unit) {
    const size_t r = unit % num_rows;
    if (unit < num_rows) {
      float* x = pass.floats(Buffer::kResidual) + r * m.model_dim;
      const auto token = static_cast<size_t>(ToInt(pass.rows[r].token));
      pass.kernels.matmul.dequantize_row[static_cast<size_t>(table.type)](
          table.data + token * table.row_bytes, m.model_dim, x);
      if (m.embedding_scale != 1.0f) pass.kernels.vec.scale(x, m.embedding_scale, m.model_dim);
    } else {
      const size_t half = m.rope_dims / 2;
      float* cos = pass.floats(Buffer::kRope) + (unit - num_rows) * m.rope_dims;
      model::FillRope(ropes[unit / num_rows - 1], pass.rows[r].position, {cos, half},
                      {cos + half, half});
    }
  }
}

// Row source for inputs that are the residual stream, normed where the model norms first.
const float* NormedRow(const Pass& pass, const float* norm, size_t residual_row, float* dst) {
  const model::ModelDescription& m = pass.description();
  const float* x = pass.floats(Buffer::kResidual) + residual_row * m.model_dim;
  if (norm == nullptr) {
    std::copy_n(x, m.model_dim, dst);
  } else {
    pass.kernels.vec.rms_norm(x, norm, m.norm_epsilon, m.model_dim, dst);
  }
  return dst;
}

Input NormedInput(const Pass& pass, size_t thread, std::initializer_list<const Matrix*> users,
                  const float* norm) {
  const InputSpec spec{.users = users,
                       .num_rows = pass.rows.size(),
                       .width = pass.description().model_dim,
                       .rows = pass.floats(Buffer::kNormed),
                       .packed = Buffer::kPackedModel};
  return PrepareInput(pass, thread, spec,
                      [&](size_t row, float* dst) { return NormedRow(pass, norm, row, dst); });
}

void Qkv(const Pass& pass, uint32_t layer, size_t thread) {
  const model::ModelDescription& m = pass.description();
  const LayerWeights& w = pass.model.weights().layers[layer];
  const Input input = NormedInput(pass, thread, {&w.q, &w.k, &w.v}, w.attention_norm);
  const size_t q_size = size_t{m.num_heads} * m.head_dim;
  const size_t kv_size = size_t{m.layers[layer].num_kv_heads} * m.head_dim;
  const size_t stride = q_size + 2 * kv_size;
  float* y = pass.floats(Buffer::kQkv);
  Project(pass, thread, input, w.q, w.q_bias, y, stride);
  Project(pass, thread, input, w.k, w.k_bias, y + q_size, stride);
  Project(pass, thread, input, w.v, w.v_bias, y + q_size + kv_size, stride);
}

// residual += projection, normed first where the model norms last. `mine` is the range of columns
// that this thread has just computed.
void AddToResidual(const Pass& pass, size_t thread, const float* post_norm, Range mine) {
  const model::ModelDescription& m = pass.description();
  const size_t num_rows = pass.rows.size();
  float* residual = pass.floats(Buffer::kResidual);
  float* projection = pass.floats(Buffer::kProjection);
  if (post_norm == nullptr) {
    for (size_t row = 0; row < num_rows; ++row) {
      const size_t at = row * m.model_dim + mine.begin;
      pass.kernels.vec.add(residual + at, projection + at, mine.end - mine.begin);
    }
    return;
  }
  pass.team.Barrier();
  float* normed = pass.scratch(thread).row;
  if (num_rows == 1) {
    pass.kernels.vec.rms_norm(projection, post_norm, m.norm_epsilon, m.model_dim, normed);
    pass.kernels.vec.add(residual + mine.begin, normed + mine.begin, mine.end - mine.begin);
    return;
  }
  const Range rows = SplitRange(num_rows, 1, thread, pass.team.size());
  for (size_t row = rows.begin; row < rows.end; ++row) {
    const size_t at = row * m.model_dim;
    pass.kernels.vec.rms_norm(projection + at, post_norm, m.norm_epsilon, m.model_dim, normed);
    pass.kernels.vec.add(residual + at, normed, m.model_dim);
  }
}

void AttentionOutput(const Pass& pass, uint32_t layer, size_t thread) {
  const model::ModelDescription& m = pass.description();
  const LayerWeights& w = pass.model.weights().layers[layer];
  const size_t width = size_t{m.num_heads} * m.head_dim;
  float* attended = pass.floats(Buffer::kAttended);
  const InputSpec spec{.users = {&w.output},
                       .num_rows = pass.rows.size(),
                       .width = width,
                       .rows = attended,
                       .packed = Buffer::kPackedAttended};
  const Input input = PrepareInput(pass, thread, spec, [&](size_t row, float* dst) -> const float* {
    if (pass.rows.size() > 1) return attended + row * width;
    MergeSingleRow(pass, layer, thread, dst);
    return dst;
  });
  if (pass.rows.size() == 1) CollectSingleRow(pass, layer, thread);
  const Range mine = Project(pass, thread, input, w.output, w.output_bias,
                             pass.floats(Buffer::kProjection), m.model_dim);
  AddToResidual(pass, thread, w.attention_post_norm, mine);
}

void GateUp(const Pass& pass, uint32_t layer, size_t thread) {
  const model::ModelDescription& m = pass.description();
  const LayerWeights& w = pass.model.weights().layers[layer];
  const Input input = NormedInput(pass, thread, {&w.gate, &w.up}, w.ffn_norm);
  float* gate = pass.floats(Buffer::kGate);
  float* up = pass.floats(Buffer::kUp);
  const Range mine = Project(pass, thread, input, w.gate, nullptr, gate, m.ffn_dim);
  Project(pass, thread, input, w.up, nullptr, up, m.ffn_dim);
  const auto activate = m.activation == model::Activation::kGelu ? pass.kernels.vec.gelu_mul
                                                                 : pass.kernels.vec.silu_mul;
  for (size_t row = 0; row < pass.rows.size(); ++row) {
    const size_t at = row * m.ffn_dim + mine.begin;
    activate(gate + at, up + at, mine.end - mine.begin, gate + at);
  }
}

void Down(const Pass& pass, uint32_t layer, size_t thread) {
  const model::ModelDescription& m = pass.description();
  const LayerWeights& w = pass.model.weights().layers[layer];
  float* gate = pass.floats(Buffer::kGate);
  const InputSpec spec{.users = {&w.down},
                       .num_rows = pass.rows.size(),
                       .width = m.ffn_dim,
                       .rows = gate,
                       .packed = Buffer::kPackedFfn};
  const Input input = PrepareInput(pass, thread, spec, [&](size_t row, float*) -> const float* {
    return gate + row * m.ffn_dim;
  });
  const Range mine =
      Project(pass, thread, input, w.down, nullptr, pass.floats(Buffer::kProjection), m.model_dim);
  AddToResidual(pass, thread, w.ffn_post_norm, mine);
}

void RunLayer(const Pass& pass, uint32_t layer, model::OpKind kind, size_t thread) {
  switch (kind) {
    case model::OpKind::kQkv:
      return Qkv(pass, layer, thread);
    case model::OpKind::kRopeStore:
      return RopeStore(pass, layer, thread);
    case model::OpKind::kAttention:
      Attend(pass, layer, thread);
      return Observe(pass, layer, thread);
    case model::OpKind::kAttentionOutput:
      return AttentionOutput(pass, layer, thread);
    case model::OpKind::kGateUp:
      return GateUp(pass, layer, thread);
    case model::OpKind::kDown:
      return Down(pass, layer, thread);
    case model::OpKind::kEmbed:
    case model::OpKind::kLogits:
      break;
  }
}

// Logits of the wanted rows, a few at a time, so that their memory does not grow with the prompt.
void Logits(const Pass& pass, std::span<const uint32_t> wanted, LogitsSink sink, size_t thread) {
  const model::ModelDescription& m = pass.description();
  const model::Weights& w = pass.model.weights();
  const size_t at_a_time = pass.workspace.shape().logit_rows;
  float* logits = pass.floats(Buffer::kLogits);
  for (size_t done = 0; done < wanted.size(); done += at_a_time) {
    const auto some = wanted.subspan(done, std::min(at_a_time, wanted.size() - done));
    const InputSpec spec{.users = {&w.output},
                         .num_rows = some.size(),
                         .width = m.model_dim,
                         .rows = pass.floats(Buffer::kNormed),
                         .packed = Buffer::kPackedModel};
    const Input input = PrepareInput(pass, thread, spec, [&](size_t row, float* dst) {
      return NormedRow(pass, w.output_norm, some[row], dst);
    });
    const Range mine = Project(pass, thread, input, w.output, nullptr, logits, m.vocab_size);
    for (size_t row = 0; row < some.size() && m.final_softcap > 0; ++row) {
      pass.kernels.vec.softcap(logits + row * m.vocab_size + mine.begin, m.final_softcap,
                               mine.end - mine.begin);
    }
    pass.team.Barrier();
    for (size_t row = 0; thread == 0 && row < some.size(); ++row) {
      const Row& info = pass.rows[some[row]];
      const auto first = pass.chunks[info.chunk].sequence->length();
      sink(info.chunk, info.position - first, {logits + row * m.vocab_size, m.vocab_size});
    }
    pass.team.Barrier();
  }
}

std::vector<float> MakeSinkRopes(const kv::Geometry& geometry, uint32_t rope_dims,
                                 std::span<const model::RopeFrequencies> ropes) {
  const size_t half = rope_dims / 2;
  std::vector<float> out(geometry.groups.size() * ropes.size() * rope_dims);
  std::span<float> rest = out;
  for (const kv::LayerGroup& group : geometry.groups) {
    const uint32_t window = group.shape.window;
    for (const model::RopeFrequencies& rope : ropes) {
      model::FillRope(rope, window == 0 ? 0 : window - 1, rest.first(half),
                      rest.subspan(half, half));
      rest = rest.subspan(rope_dims);
    }
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<Forward>> Forward::Create(const model::Model& model,
                                                 const kv::Geometry& geometry, ThreadTeam& team,
                                                 const WorkspaceShape& shape,
                                                 mem::MemoryBudget& budget) {
  TAEL_CHECK(shape.num_threads == team.size() && shape.logit_rows <= shape.max_tokens);
  std::unique_ptr<Forward> out(new Forward(model, geometry, team));
  TAEL_ASSIGN_OR_RETURN(out->workspace_, Workspace::Create(model, shape, budget));
  out->ropes_ = model::MakeRopeFrequencies(model.description(), model.weights(), shape.max_context);
  out->sink_ropes_ = MakeSinkRopes(geometry, model.description().rope_dims, out->ropes_);
  out->rows_.reserve(shape.max_tokens);
  out->logit_rows_.reserve(shape.max_tokens);
  return out;
}

void Forward::ListRows(std::span<const SequenceChunk> chunks) {
  rows_.clear();
  logit_rows_.clear();
  for (uint32_t c = 0; c < chunks.size(); ++c) {
    const SequenceChunk& chunk = chunks[c];
    uint32_t position = chunk.sequence->length();
    for (size_t i = 0; i < chunk.tokens.size(); ++i, ++position) {
      if (i + chunk.num_logits >= chunk.tokens.size()) {
        logit_rows_.push_back(static_cast<uint32_t>(rows_.size()));
      }
      rows_.push_back({chunk.tokens[i], position, c});
    }
  }
  TAEL_CHECK(!rows_.empty() && rows_.size() <= max_tokens());
}

bool Forward::Run(std::span<const SequenceChunk> chunks, LogitsSink sink, StopCheck stop) {
  ListRows(chunks);
  const Pass pass{model_, geometry_, kernels::Active(), team_, *workspace_,
                  chunks, rows_,     sink_ropes_};
  const bool paging = pager_ != nullptr && !pager_->complete();  // one answer for all threads
  const auto enter = [&](uint32_t unit, size_t thread) {
    if (!paging) return;
    if (thread == 0) pager_->Enter(unit);
    team_.Barrier();
  };
  const auto leave = [&](uint32_t op, size_t thread) {
    team_.Barrier();
    if (!workspace_->shape().poison_dead) return;
    if (thread == 0) workspace_->PoisonAfter(op);
    team_.Barrier();
  };
  const std::span<const model::Op> ops = model::OpList();
  const uint32_t num_layers = model_.description().num_layers;
  // Written by thread 0 before the last barrier of a layer and read by all behind it: there are
  // more barriers before it is written again, so that all read the same.
  bool stopped = false;
  team_.Run([&](size_t thread) {
    Embed(pass, ropes_, thread);
    team_.Barrier();
    for (uint32_t layer = 0; layer < num_layers; ++layer) {
      if (stopped) return;
      enter(layer, thread);
      for (uint32_t op = 0; op < ops.size(); ++op) {
        if (!ops[op].per_layer) continue;
        RunLayer(pass, layer, ops[op].kind, thread);
        if (thread == 0 && ops[op].kind == model::OpKind::kDown) stopped = stop();
        leave(op, thread);
      }
    }
    if (stopped) return;
    enter(num_layers, thread);
    Logits(pass, logit_rows_, sink, thread);
  });
  return !stopped;
}

}  // namespace tael::exec
