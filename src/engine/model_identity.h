// What tells one model from another without reading all of it.
#pragma once

#include <string>

#include "model/model.h"

namespace tael::engine {

// By its size, its header and a few pages of its weights: a copy is the same model, a file that was
// edited is another. Reads these pages.
std::string IdentityOf(const model::Model& model);

}  // namespace tael::engine
