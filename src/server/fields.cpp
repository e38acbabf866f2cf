#include "server/fields.h"

#include <cmath>
#include <cstdio>
#include <utility>

namespace tael::server {
namespace {

std::string Range(double least, double most) {
  char text[96];
  std::snprintf(text, sizeof text, "from %.15g to %.15g", least, most);
  return text;
}

// As much of a value as belongs in a message.
std::string Shown(const ClientJson& value) {
  if (value.is_structured()) return value.is_array() ? "an array" : "an object";
  std::string text = value.dump(-1, ' ', true, ClientJson::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 40) + "...";
  return text;
}

bool ChangesNothing(const ClientJson& value) {
  if (value.is_string() || value.is_structured()) {
    return value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty();
  }
  if (value.is_boolean()) return !value.get<bool>();
  return value.is_number() && value.get<double>() == 0;
}

}  // namespace

Fields::Fields(const ClientJson& object, std::string path, std::optional<ApiError>& error)
    : object_(object), path_(std::move(path)), error_(error) {
  if (!object.is_object() && !failed()) {
    const std::string name = path_.empty() ? "the body" : path_.substr(0, path_.size() - 1);
    error_ = BadField(path_.empty() ? "" : name, name + " must be an object");
  }
}

void Fields::Fail(std::string_view name, const std::string& what) {
  if (failed()) return;
  error_ = BadField(PathOf(name), PathOf(name) + " " + what);
}

const ClientJson* Fields::Value(std::string_view name) {
  known_.insert(name);
  if (failed() || !object_.is_object()) return nullptr;
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> Fields::Bool(std::string_view name) {
  const ClientJson* value = Value(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Fail(name, "must be true or false, not " + Shown(*value));
  return std::nullopt;
}

std::optional<double> Fields::Number(std::string_view name, double least, double most) {
  const ClientJson* value = Value(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) {
    const double number = value->get<double>();
    if (number >= least && number <= most) return number;
  }
  Fail(name, "must be a number " + Range(least, most) + ", not " + Shown(*value));
  return std::nullopt;
}

std::optional<int64_t> Fields::Integer(std::string_view name, int64_t least, int64_t most) {
  const ClientJson* value = Value(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) {
    const uint64_t number = value->get<uint64_t>();
    if (most >= 0 && number <= static_cast<uint64_t>(most) &&
        (least < 0 || number >= static_cast<uint64_t>(least))) {
      return static_cast<int64_t>(number);
    }
  } else if (value->is_number_integer()) {
    const int64_t number = value->get<int64_t>();
    if (number >= least && number <= most) return number;
  } else if (value->is_number_float()) {  // some languages know no other numbers
    const double number = value->get<double>();
    if (number == std::floor(number) && std::abs(number) < 9e15 &&
        number >= static_cast<double>(least) && number <= static_cast<double>(most)) {
      return static_cast<int64_t>(number);
    }
  }
  Fail(name, "must be a whole number " +
                 Range(static_cast<double>(least), static_cast<double>(most)) + ", not " +
                 Shown(*value));
  return std::nullopt;
}

const std::string* Fields::String(std::string_view name) {
  const ClientJson* value = Value(name);
  if (value == nullptr) return nullptr;
  if (value->is_string()) return value->get_ptr<const std::string*>();
  Fail(name, "must be a string, not " + Shown(*value));
  return nullptr;
}

void Fields::Ignore(std::initializer_list<std::string_view> names) { known_.insert(names); }

void Fields::RefuseUnlessEmpty(std::initializer_list<std::string_view> names,
                               std::string_view why) {
  for (const std::string_view name : names) {
    const ClientJson* value = Value(name);
    if (value != nullptr && !ChangesNothing(*value)) Fail(name, std::string(why));
  }
}

void Fields::RefuseOthers() {
  if (failed() || !object_.is_object()) return;
  for (const auto& [name, value] : object_.items()) {
    if (known_.count(name) != 0) continue;
    Fail(name.substr(0, 64), "is a field that this server does not know");
    return;
  }
}

}  // namespace tael::server
