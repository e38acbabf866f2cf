// The template engine of the Rust crate in jinja/, as a C++ value. A build without cargo has the
// same class; its Create() says what was missing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

struct TaelJinja;

namespace tael::text {

class JinjaEngine {
 public:
  // Fails: kMalformed with the line where the template does not parse; kUnsupported when the
  // template is too long, or this build has no template engine.
  static Result<JinjaEngine> Create(std::string_view source);

  // `context` is a JSON object of the template's variables. `fuel` bounds the work: about one unit
  // per instruction and per 64 bytes made. May be called from any thread.
  // Fails: kInvalidArgument with the template's own words when it raises; kMalformed when it cannot
  // be rendered or runs out of fuel.
  Result<std::string> Render(std::string_view context, uint64_t fuel) const;

 private:
  struct Free {
    void operator()(TaelJinja* handle) const;
  };
  explicit JinjaEngine(TaelJinja* handle) : handle_(handle) {}

  std::unique_ptr<TaelJinja, Free> handle_;
};

}  // namespace tael::text
