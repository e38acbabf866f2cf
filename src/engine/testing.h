// For tests only: engines on the tiny models of tests/data, and tokens to give them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "engine/engine.h"

namespace tael::engine {

inline std::string Tiny(const std::string& name) {
  return std::string(TAEL_TEST_DATA) + "/tiny/" + name + ".gguf";
}

// Null, and a failed test that says why, where it cannot be created.
inline std::unique_ptr<Engine> CreateEngine(const EngineOptions& options) {
  auto engine = Engine::Create(options);
  EXPECT_TRUE(engine.has_value()) << (engine ? "" : engine.error().Message());
  return engine ? std::move(*engine) : nullptr;
}

// Ids below `alphabet`: the tiny vocabularies have 320 and more.
inline std::vector<TokenId> RandomTokens(size_t count, uint32_t seed, uint32_t alphabet = 320) {
  std::mt19937 rng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = TokenId{static_cast<int32_t>(rng() % alphabet)};
  return tokens;
}

}  // namespace tael::engine
