#include "server/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tael::server {
namespace {

TEST(Router, APageOfAnotherSiteIsTold) {
  EXPECT_FALSE(IsCrossOrigin("", "127.0.0.1:8080"));
  EXPECT_FALSE(IsCrossOrigin("http://127.0.0.1:8080", "127.0.0.1:8080"));
  EXPECT_TRUE(IsCrossOrigin("http://127.0.0.1:8081", "127.0.0.1:8080"));
  EXPECT_TRUE(IsCrossOrigin("https://evil.example", "127.0.0.1:8080"));
  EXPECT_TRUE(IsCrossOrigin("null", "127.0.0.1:8080"));
}

}  // namespace
}  // namespace tael::server
