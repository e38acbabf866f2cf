#include "server/api_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tael::server {
namespace {

using testing::Contains;
using testing::Pair;

TEST(ApiError, HasTheFormThatClientsExpect) {
  const HttpResponse response = ToResponse(BadField("temperature", "temperature is too hot"));
  EXPECT_EQ(response.status, 400);
  const Json error = Json::parse(response.body)["error"];
  EXPECT_EQ(error["message"], "temperature is too hot");
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["param"], "temperature");
  EXPECT_EQ(error["code"], "invalid_value");
}

TEST(ApiError, KeepsNumbersAndCodesOfTheEngine) {
  const ApiError error = ApiErrorOf(
      Error{ErrorCode::kContextExceeded, "too long", "5000 tokens, the context has 4096"},
      "messages");
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.code, "context_length_exceeded");
  EXPECT_EQ(error.param, "messages");
  EXPECT_EQ(error.message, "too long: 5000 tokens, the context has 4096");
}

TEST(ApiError, WhatMayWorkLaterSaysWhen) {
  for (const ErrorCode code : {ErrorCode::kBusy, ErrorCode::kNoFreeBlocks, ErrorCode::kCancelled}) {
    const HttpResponse response = ToResponse(ApiErrorOf(Error{code, "busy", {}}));
    EXPECT_EQ(response.status, 503);
    EXPECT_THAT(response.headers, Contains(Pair("Retry-After", testing::_)));
  }
}

TEST(ApiError, WhatWillNeverFitDoesNotAskToComeAgain) {
  const HttpResponse response = ToResponse(ApiErrorOf(Error{ErrorCode::kOutOfBudget, "no", {}}));
  EXPECT_EQ(response.status, 400);
  EXPECT_TRUE(response.headers.empty());
}

TEST(ApiError, WithoutAFieldAndACodeBothAreNull) {
  ApiError error;
  error.status = 404;
  error.message = "no such route";
  const Json body = ToJson(error)["error"];
  EXPECT_TRUE(body["param"].is_null());
  EXPECT_TRUE(body["code"].is_null());
}

TEST(ApiError, A405NamesTheMethods) {
  ApiError error;
  error.status = 405;
  error.allow = {"GET", "HEAD"};
  EXPECT_THAT(ToResponse(error).headers, Contains(Pair("Allow", "GET, HEAD")));
}

TEST(ApiError, A401SaysHowToSignIn) {
  ApiError error;
  error.status = 401;
  EXPECT_THAT(ToResponse(error).headers, Contains(Pair("WWW-Authenticate", "Bearer")));
}

}  // namespace
}  // namespace tael::server
