// JSON in and out. The library that parses throws; nothing thrown gets out of here.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tael::server {

// What we write: fields stay in order.
using Json = nlohmann::ordered_json;
// What clients send: fields are found in logarithmic time, however many there are.
using ClientJson = nlohmann::json;

inline constexpr size_t kMaxJsonDepth = 32;

// Fails: kMalformed, naming the place; kInvalidArgument for a nesting of more than kMaxJsonDepth.
Result<ClientJson> ParseJson(std::string_view text);

// How deep arrays and objects are nested, at most, whether the text is JSON or not.
size_t JsonDepth(std::string_view text);

// One line; bytes that are not UTF-8 become U+FFFD.
std::string Dump(const Json& json);

}  // namespace tael::server
