#include "server/openai_request.h"

#include <algorithm>
#include <array>
#include <utility>

#include "server/fields.h"

namespace tael::server {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 30;
constexpr int64_t kMostChoices = 128;
constexpr int64_t kMostLogprobs = 20;
constexpr size_t kMostStops = 16;
constexpr size_t kMostStopBytes = 1024;
constexpr uint32_t kDefaultTextTokens = 16;  // the API's own

constexpr std::string_view kNoConstraints =
    "asks for constrained output, which this server does not give yet";
constexpr std::string_view kNoTools = "asks for tool calls, which this server does not give yet";
constexpr std::string_view kNotBuilt = "is not built yet, and would change the answer";

// A field may be there if it says this, or nothing.
void RefuseUnless(Fields& fields, std::string_view name,
                  std::initializer_list<std::string_view> harmless, std::string_view why) {
  const ClientJson* value = fields.Value(name);
  if (value == nullptr) return;
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    if (std::ranges::find(harmless, text) != harmless.end()) return;
  }
  fields.Fail(name, std::string(why));
}

void ParseResponseFormat(Fields& fields) {
  const ClientJson* value = fields.Value("response_format");
  if (value == nullptr) return;
  Fields format(*value, "response_format.", fields.error());
  const std::string* type = format.String("type");
  if (type == nullptr || *type != "text") {
    fields.Fail("response_format", std::string(kNoConstraints));
  }
}

void RefuseWhatIsNotBuilt(Fields& fields) {
  ParseResponseFormat(fields);
  fields.RefuseUnlessEmpty({"tools", "functions"}, kNoTools);
  RefuseUnless(fields, "tool_choice", {"none", "auto"}, kNoTools);
  RefuseUnless(fields, "function_call", {"none", "auto"}, kNoTools);
  fields.RefuseUnlessEmpty({"grammar", "json_schema", "guided_json", "guided_regex",
                            "guided_choice", "guided_grammar", "structured_outputs"},
                           kNoConstraints);
  fields.RefuseUnlessEmpty(
      {"frequency_penalty", "presence_penalty"},
      "is not built yet, and would change the answer; there is \"repeat_penalty\"");
  fields.RefuseUnlessEmpty(
      {"logit_bias", "audio", "web_search_options", "echo", "suffix", "use_beam_search"},
      kNotBuilt);
  RefuseUnless(fields, "reasoning_effort", {"none"}, kNotBuilt);
  RefuseUnless(fields, "verbosity", {"medium"}, kNotBuilt);
  if (const ClientJson* modalities = fields.Value("modalities");
      modalities != nullptr && *modalities != ClientJson::array({"text"})) {
    fields.Fail("modalities", "may be [\"text\"]: this server writes nothing else");
  }
  // For statistics, other machines or speed.
  fields.Ignore({"user", "metadata", "store", "parallel_tool_calls", "prompt_cache_key",
                 "prompt_cache_retention", "safety_identifier", "prediction", "cache_prompt"});
}

void ParseSampling(Fields& fields, GenerateCall& call) {
  sample::SamplerOptions& sampler = call.options.sampler;
  if (const auto value = fields.Number("temperature", 0, 2)) {
    sampler.temperature = static_cast<float>(*value);
  }
  if (const auto value = fields.Number("top_p", 0, 1)) {
    // 0 leaves the likeliest token alone, as the smallest share does.
    sampler.top_p = std::max(static_cast<float>(*value), 1e-9f);
  }
  if (const auto value = fields.Number("min_p", 0, 1)) sampler.min_p = static_cast<float>(*value);
  if (const auto value = fields.Integer("top_k", -1, 1 << 20)) {
    sampler.top_k = std::max(0, static_cast<int32_t>(*value));
  }
  for (const char* name : {"repeat_penalty", "repetition_penalty"}) {
    if (const auto value = fields.Number(name, 0.01, 100)) {
      sampler.repeat_penalty = static_cast<float>(*value);
    }
  }
  if (const auto value = fields.Integer("seed", INT64_MIN, INT64_MAX)) {
    call.seed = static_cast<uint64_t>(*value);
  }
  call.options.ignore_eos = fields.Bool("ignore_eos").value_or(false);
}

void AddStop(Fields& fields, const ClientJson& value, std::vector<std::string>& stops) {
  if (!value.is_string()) return fields.Fail("stop", "must be a string or an array of strings");
  const auto& text = value.get_ref<const std::string&>();
  if (text.empty()) return fields.Fail("stop", "must not be empty");
  if (text.size() > kMostStopBytes || stops.size() == kMostStops) {
    return fields.Fail("stop", "may be up to " + std::to_string(kMostStops) + " strings of " +
                                   std::to_string(kMostStopBytes) + " bytes");
  }
  stops.push_back(text);
}

void ParseStop(Fields& fields, GenerateCall& call) {
  const ClientJson* value = fields.Value("stop");
  if (value == nullptr) return;
  if (!value->is_array()) return AddStop(fields, *value, call.options.stop);
  for (const ClientJson& element : *value) AddStop(fields, element, call.options.stop);
}

void ParseLength(Fields& fields, GenerateCall& call) {
  const auto max_tokens = fields.Integer("max_tokens", 1, kMostTokens);
  const auto max_completion_tokens = fields.Integer("max_completion_tokens", 1, kMostTokens);
  if (call.api == Api::kText) call.max_tokens = kDefaultTextTokens;
  if (max_tokens) call.max_tokens = static_cast<uint32_t>(*max_tokens);
  if (max_completion_tokens) call.max_tokens = static_cast<uint32_t>(*max_completion_tokens);
}

void ParseChoices(Fields& fields, GenerateCall& call) {
  call.num_choices = static_cast<uint32_t>(fields.Integer("n", 1, kMostChoices).value_or(1));
  const auto best_of = fields.Integer("best_of", 1, kMostChoices);
  if (best_of && *best_of != call.num_choices) {
    fields.Fail("best_of", "may only be what \"n\" is");
  }
}

void ParseLogprobs(Fields& fields, GenerateCall& call) {
  if (call.api == Api::kText) {
    if (const auto most = fields.Integer("logprobs", 0, kMostLogprobs)) {
      call.options.logprobs = static_cast<uint32_t>(*most);
    }
    return;
  }
  const bool wanted = fields.Bool("logprobs").value_or(false);
  const auto most = fields.Integer("top_logprobs", 0, kMostLogprobs);
  if (wanted) call.options.logprobs = static_cast<uint32_t>(most.value_or(0));
  if (!wanted && most.value_or(0) > 0) {
    fields.Fail("top_logprobs", "needs \"logprobs\": true beside it");
  }
}

void ParseStream(Fields& fields, GenerateCall& call) {
  call.stream = fields.Bool("stream").value_or(false);
  const ClientJson* value = fields.Value("stream_options");
  if (value == nullptr) return;
  Fields options(*value, "stream_options.", fields.error());
  call.include_usage = options.Bool("include_usage").value_or(false);
  options.Ignore({"include_obfuscation"});
  options.RefuseOthers();
  if (!call.stream) fields.Fail("stream_options", "needs \"stream\": true beside it");
}

void ParsePriority(Fields& fields, GenerateCall& call) {
  const std::string* tier = fields.String("service_tier");
  if (tier == nullptr) return;
  constexpr std::array<std::string_view, 4> kInteractive = {"auto", "default", "standard",
                                                            "priority"};
  if (*tier == "flex") {
    call.priority = engine::Priority::kBackground;
  } else if (std::ranges::find(kInteractive, *tier) == kInteractive.end()) {
    fields.Fail("service_tier", "may be auto, default, priority, or flex for the background");
  }
}

// The text of an array of content parts.
std::string ParseParts(Fields& message, const ClientJson& parts) {
  std::string text;
  for (size_t i = 0; i < parts.size() && !message.failed(); ++i) {
    Fields part(parts[i], message.PathOf("content[" + std::to_string(i) + "]."), message.error());
    const std::string* type = part.String("type");
    if (type == nullptr || *type != "text") {
      part.Fail("type", "must be \"text\": this server reads nothing else");
    }
    const std::string* piece = part.String("text");
    if (piece == nullptr) part.Fail("text", "is missing");
    if (piece != nullptr) text += *piece;
    part.Ignore({"cache_control"});
    part.RefuseOthers();
  }
  return text;
}

std::string ParseRole(Fields& message) {
  const std::string* role = message.String("role");
  if (role == nullptr) {
    message.Fail("role", "is missing");
    return {};
  }
  if (*role == "developer") return "system";  // OpenAI's newer name for it; no template knows it
  constexpr std::array<std::string_view, 5> kRoles = {"system", "user", "assistant", "tool",
                                                      "function"};
  if (std::ranges::find(kRoles, *role) == kRoles.end()) {
    message.Fail("role", "must be system, developer, user, assistant or tool");
  }
  return *role;
}

text::ChatMessage ParseMessage(const ClientJson& value, const std::string& path,
                               std::optional<ApiError>& error) {
  Fields message(value, path, error);
  text::ChatMessage out;
  out.role = ParseRole(message);
  message.RefuseUnlessEmpty({"tool_calls", "function_call"}, kNoTools);
  message.RefuseUnlessEmpty({"audio", "refusal", "reasoning_content"}, kNotBuilt);
  const ClientJson* content = message.Value("content");
  if (content == nullptr) {
    // An answer may be empty; a question may not be missing.
    if (out.role != "assistant") message.Fail("content", "is missing");
  } else if (content->is_string()) {
    out.content = content->get<std::string>();
  } else if (content->is_array()) {
    out.content = ParseParts(message, *content);
  } else {
    message.Fail("content", "must be a string or an array of parts");
  }
  message.Ignore({"name", "tool_call_id", "annotations"});
  message.RefuseOthers();
  return out;
}

void ParsePrompt(Fields& fields, GenerateCall& call) {
  const ClientJson* prompt = fields.Value("prompt");
  if (prompt == nullptr) return fields.Fail("prompt", "is missing");
  // One prompt may come in an array of its own.
  if (prompt->is_array() && prompt->size() == 1 && !prompt->front().is_number()) {
    prompt = &prompt->front();
  }
  if (prompt->is_string()) {
    call.prompt = prompt->get<std::string>();
    if (call.prompt.empty()) fields.Fail("prompt", "must not be empty");
    return;
  }
  if (!prompt->is_array()) return fields.Fail("prompt", "must be a string or an array of ids");
  if (!prompt->empty() && !prompt->front().is_number()) {
    return fields.Fail("prompt", "may be one prompt: send a request for each");
  }
  if (prompt->empty()) return fields.Fail("prompt", "must not be empty");
  std::vector<TokenId> ids;
  if (auto error = ParseTokens(*prompt, "prompt", ids); error && !fields.failed()) {
    fields.error() = std::move(error);
  }
  call.prompt_ids = std::move(ids);
}

}  // namespace

std::optional<ApiError> ParseTokens(const ClientJson& ids, const std::string& field,
                                    std::vector<TokenId>& out) {
  if (!ids.is_array()) return BadField(field, field + " must be an array of token ids");
  out.reserve(ids.size());
  for (const ClientJson& id : ids) {
    const bool is_id = id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX;
    if (!is_id) {
      return BadField(field, field + "[" + std::to_string(out.size()) + "] is no token id");
    }
    out.push_back(TokenId{static_cast<int32_t>(id.get<uint64_t>())});
  }
  return std::nullopt;
}

std::optional<ApiError> ParseMessages(const ClientJson& messages,
                                      std::vector<text::ChatMessage>& out) {
  if (!messages.is_array() || messages.empty()) {
    return BadField("messages", "messages must be an array of at least one message");
  }
  std::optional<ApiError> error;
  for (size_t i = 0; i < messages.size() && !error; ++i) {
    out.push_back(ParseMessage(messages[i], "messages[" + std::to_string(i) + "].", error));
  }
  return error;
}

std::optional<ApiError> ParseGenerateCall(const ClientJson& body, Api api, GenerateCall& call) {
  call.api = api;
  std::optional<ApiError> error;
  Fields fields(body, "", error);
  if (api == Api::kChat) {
    const ClientJson* messages = fields.Value("messages");
    if (messages == nullptr) {
      fields.Fail("messages", "is missing");
    } else if (auto wrong = ParseMessages(*messages, call.messages)) {
      return wrong;
    }
  } else {
    ParsePrompt(fields, call);
  }
  fields.String("model");  // any: there is one
  RefuseWhatIsNotBuilt(fields);
  ParseSampling(fields, call);
  ParseStop(fields, call);
  ParseLength(fields, call);
  ParseChoices(fields, call);
  ParseLogprobs(fields, call);
  ParseStream(fields, call);
  ParsePriority(fields, call);
  fields.RefuseOthers();
  return error;
}

}  // namespace tael::server
