#include "kv/prefix_context.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

namespace tael::kv {
namespace {

const std::vector<std::string PrefixContext::*> kFields = {
    &PrefixContext::model, &PrefixContext::kv_type, &PrefixContext::rope, &PrefixContext::window,
    &PrefixContext::tenant};

PrefixContext Example() {
  return {.model = "a", .kv_type = "b", .rope = "c", .window = "d", .tenant = "e"};
}

TEST(PrefixContext, EqualContextsHaveOneSalt) { EXPECT_EQ(Example().Salt(), Example().Salt()); }

TEST(PrefixContext, EveryFieldChangesTheSalt) {
  for (const auto field : kFields) {
    for (const char* value : {"", "x", "aa"}) {
      PrefixContext other = Example();
      other.*field = value;
      EXPECT_NE(other.Salt(), Example().Salt());
    }
  }
}

TEST(PrefixContext, TwoFieldsThatSwapTheirValuesChangeTheSalt) {
  for (const auto first : kFields) {
    for (const auto second : kFields) {
      if (first == second) continue;
      PrefixContext other = Example();
      std::swap(other.*first, other.*second);
      EXPECT_NE(other.Salt(), Example().Salt());
    }
  }
}

// "ab" + "c" is not "a" + "bc", and a value that looks like a length with what follows it is only a
// value.
TEST(PrefixContext, WhereAFieldEndsIsPartOfTheSalt) {
  std::set<uint64_t> salts;
  const std::string text = "abcdef";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    for (const auto& [first, second] :
         {std::pair(&PrefixContext::model, &PrefixContext::kv_type),
          std::pair(&PrefixContext::window, &PrefixContext::tenant)}) {
      PrefixContext context;
      context.*first = text.substr(0, cut);
      context.*second = text.substr(cut);
      salts.insert(context.Salt());
    }
  }
  EXPECT_EQ(salts.size(), 2 * (text.size() + 1));
  PrefixContext nested;
  nested.model = std::string("a") + std::string("\1\0\0\0\0\0\0\0", 8) + "b";
  PrefixContext plain;
  plain.model = "a";
  plain.kv_type = "b";
  EXPECT_NE(nested.Salt(), plain.Salt());
}

}  // namespace
}  // namespace tael::kv
