#include "text/jinja_engine.h"

#ifdef TAEL_JINJA_MISSING

namespace tael::text {

Result<JinjaEngine> JinjaEngine::Create(std::string_view) {
  return Error{ErrorCode::kUnsupported, "this build renders no chat templates", TAEL_JINJA_MISSING};
}

Result<std::string> JinjaEngine::Render(std::string_view, uint64_t) const {
  return Error{ErrorCode::kInternal, "this build renders no chat templates", ""};
}

void JinjaEngine::Free::operator()(TaelJinja*) const {}

}  // namespace tael::text

#else

#include "text/jinja/include/tael_jinja.h"

namespace tael::text {
namespace {

// Text that the Rust side owns until this goes.
class JinjaText {
 public:
  JinjaText() = default;
  ~JinjaText() { tael_jinja_text_free(&raw_); }
  JinjaText(const JinjaText&) = delete;
  JinjaText& operator=(const JinjaText&) = delete;

  TaelJinjaText* out() { return &raw_; }
  std::string Copy() const { return raw_.data ? std::string(raw_.data, raw_.size) : ""; }
  std::string WithLine() const {
    return raw_.line == 0 ? Copy() : "line " + std::to_string(raw_.line) + ": " + Copy();
  }

 private:
  TaelJinjaText raw_{};
};

Error ToError(int32_t code, const JinjaText& text) {
  switch (code) {
    case TAEL_JINJA_SYNTAX:
      return {ErrorCode::kMalformed, "the chat template does not parse", text.WithLine()};
    case TAEL_JINJA_RAISED:
      return {ErrorCode::kInvalidArgument, "the chat template refuses these messages", text.Copy()};
    case TAEL_JINJA_FAILED:
      return {ErrorCode::kMalformed, "the chat template cannot be rendered", text.WithLine()};
    case TAEL_JINJA_OUT_OF_FUEL:
      return {ErrorCode::kMalformed, "the chat template does more work than a template may",
              text.WithLine()};
    case TAEL_JINJA_BAD_CONTEXT:
      return {ErrorCode::kMalformed, "the chat template cannot be read", text.Copy()};
    case TAEL_JINJA_TOO_LARGE:
      return {ErrorCode::kUnsupported, "the chat template is larger than any in use", text.Copy()};
    default:
      return {ErrorCode::kInternal, "the template engine failed", text.Copy()};
  }
}

}  // namespace

Result<JinjaEngine> JinjaEngine::Create(std::string_view source) {
  TaelJinja* handle = nullptr;
  JinjaText text;
  const int32_t code = tael_jinja_create(source.data(), source.size(), &handle, text.out());
  if (code != TAEL_JINJA_OK) return ToError(code, text);
  return JinjaEngine(handle);
}

Result<std::string> JinjaEngine::Render(std::string_view context, uint64_t fuel) const {
  JinjaText text;
  const int32_t code =
      tael_jinja_render(handle_.get(), context.data(), context.size(), fuel, text.out());
  if (code != TAEL_JINJA_OK) return ToError(code, text);
  return text.Copy();
}

void JinjaEngine::Free::operator()(TaelJinja* handle) const { tael_jinja_free(handle); }

}  // namespace tael::text

#endif
