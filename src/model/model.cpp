#include "model/model.h"

#include <utility>

namespace tael::model {

Result<std::unique_ptr<Model>> Model::Open(const std::string& path) {
  std::unique_ptr<Model> model(new Model());
  TAEL_ASSIGN_OR_RETURN(model->mapping_, mem::FileMapping::Open(path));
  TAEL_ASSIGN_OR_RETURN(model->file_, gguf::File::Parse(model->mapping_.bytes()));
  TAEL_ASSIGN_OR_RETURN(model->description_, Describe(model->file_));
  TAEL_ASSIGN_OR_RETURN(model->weights_, BindWeights(model->file_, model->description_));
  return model;
}

}  // namespace tael::model
