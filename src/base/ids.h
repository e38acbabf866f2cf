// Ids are types, so that a token cannot be passed where a block or a layer is meant.
#pragma once

#include <cstdint>

namespace tael {

enum class TokenId : int32_t {};

constexpr int32_t ToInt(TokenId id) { return static_cast<int32_t>(id); }

}  // namespace tael
