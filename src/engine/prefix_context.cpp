#include "engine/prefix_context.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "engine/model_identity.h"

namespace tael::engine {
namespace {

Result<std::string> DescribeModel(const model::Model& model) {
  const std::string& path = model.mapping().path();
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) {
    return Error{ErrorCode::kIo, "cannot stat", "\"" + path + "\": " + std::strerror(errno)};
  }
  return IdentityOf(model) + " at " + std::to_string(info.st_mtim.tv_sec) + "." +
         std::to_string(info.st_mtim.tv_nsec);
}

// "0: 1; 1: 1; ...": what `number` gives for the layers of each group.
template <class Number>
std::string ByLayer(const kv::Geometry& geometry, const Number& number) {
  std::string text;
  for (size_t layer = 0; layer < geometry.places.size(); ++layer) {
    const kv::LayerGroup& group = geometry.group(geometry.places[layer].group);
    text += std::to_string(layer) + ": " + std::to_string(number(group.shape)) + "; ";
  }
  return text;
}

std::string DescribeRope(const model::ModelDescription& model, uint32_t context_length) {
  std::string text;
  for (const model::RopeDescription& rope : model.ropes) {
    text += std::to_string(rope.base) + " / " + std::to_string(rope.linear_factor) + " * " +
            std::to_string(rope.magnitude) + "; ";
  }
  const uint32_t original = model.rope_original_context;
  return text + (original != 0 && context_length > original ? "long" : "");
}

}  // namespace

Result<kv::PrefixContext> MakePrefixContext(const Engine& engine) {
  const MemoryPlan& plan = engine.plan();
  kv::PrefixContext context;
  TAEL_ASSIGN_OR_RETURN(context.model, DescribeModel(engine.model()));
  context.kv_type = ByLayer(plan.geometry, [](const kv::LayerShape& shape) {
    return static_cast<size_t>(shape.type.k) * kernels::kNumKvTypes +
           static_cast<size_t>(shape.type.v);
  });
  if (plan.workspace.compute == exec::Compute::kReference) context.kv_type += "reference";
  context.rope = DescribeRope(engine.model().description(), plan.context_length);
  context.window =
      ByLayer(plan.geometry, [](const kv::LayerShape& shape) { return shape.window; }) + "sinks " +
      ByLayer(plan.geometry, [](const kv::LayerShape& shape) { return shape.sinks; });
  if (kv::ChoosesByAttention(plan.window.evict)) context.window += "by attention";
  return context;
}

}  // namespace tael::engine
