// A model: the mapped file, what it is, and where its tensors lie.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "gguf/file.h"
#include "mem/mapping.h"
#include "model/description.h"
#include "model/weights.h"

namespace tael::model {

class Model {
 public:
  // Maps the file and checks all of it that can be checked without reading the weights.
  // Fails: kNotFound, kIo, kMalformed, kUnsupported.
  static Result<std::unique_ptr<Model>> Open(const std::string& path);

  const mem::FileMapping& mapping() const { return mapping_; }
  const gguf::File& file() const { return file_; }
  const ModelDescription& description() const { return description_; }
  const Weights& weights() const { return weights_; }
  uint64_t weights_bytes() const { return mapping_.bytes().size(); }

 private:
  Model() = default;
  mem::FileMapping mapping_;
  gguf::File file_;
  ModelDescription description_;
  Weights weights_;
};

}  // namespace tael::model
