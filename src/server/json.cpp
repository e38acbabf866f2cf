#include "server/json.h"

#include <algorithm>

namespace tael::server {

size_t JsonDepth(std::string_view text) {
  size_t depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

Result<ClientJson> ParseJson(std::string_view text) {
  // Before anything is built: what is built would be taken down by recursion.
  if (const size_t depth = JsonDepth(text); depth > kMaxJsonDepth) {
    return Error{ErrorCode::kInvalidArgument, "the body is nested too deeply",
                 std::to_string(depth) + " levels, the limit is " + std::to_string(kMaxJsonDepth)};
  }
  try {
    return ClientJson::parse(text.begin(), text.end());
  } catch (const ClientJson::parse_error& error) {
    return Error{ErrorCode::kMalformed, "the body is not JSON in UTF-8",
                 "something is wrong at byte " + std::to_string(error.byte)};
  } catch (const ClientJson::exception&) {  // a number beyond any range
    return Error{ErrorCode::kMalformed, "the body is not JSON in UTF-8", {}};
  }
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tael::server
