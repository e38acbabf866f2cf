#include "server/prometheus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tael::server {
namespace {

using testing::HasSubstr;

constexpr double kBounds[] = {0.01, 0.1, 1};

TEST(Histogram, CountsWhatLiesInABucketAndBelow) {
  Histogram histogram(kBounds);
  histogram.Observe(0.005);
  histogram.Observe(0.01);  // bounds are inclusive
  histogram.Observe(0.5, 3);
  histogram.Observe(7);
  EXPECT_EQ(histogram.CountUpTo(0), 2u);
  EXPECT_EQ(histogram.CountUpTo(1), 2u);
  EXPECT_EQ(histogram.CountUpTo(2), 5u);
  EXPECT_EQ(histogram.CountUpTo(3), 6u);
  EXPECT_NEAR(histogram.SumSeconds(), 0.005 + 0.01 + 1.5 + 7, 1e-6);
}

TEST(PrometheusText, HasAHeaderAndALineForEachSample) {
  PrometheusText text;
  text.Add("tael_up", PrometheusText::Kind::kGauge, "Whether it runs.", 1);
  text.Begin("tael_bytes", PrometheusText::Kind::kCounter, "Bytes.");
  text.Sample({{"part", "kv"}, {"odd", "a\"b\\c\nd"}}, 12884901888.0);
  text.Sample({{"part", "x"}}, 0.25);
  EXPECT_EQ(text.text(),
            "# HELP tael_up Whether it runs.\n# TYPE tael_up gauge\ntael_up 1\n"
            "# HELP tael_bytes Bytes.\n# TYPE tael_bytes counter\n"
            "tael_bytes{part=\"kv\",odd=\"a\\\"b\\\\c\\nd\"} 12884901888\n"
            "tael_bytes{part=\"x\"} 0.25\n");
}

TEST(PrometheusText, AHistogramEndsWithInfinitySumAndCount) {
  Histogram histogram(kBounds);
  histogram.Observe(0.05, 2);
  PrometheusText text;
  text.Add("tael_wait_seconds", "Waiting.", histogram);
  EXPECT_THAT(text.text(), HasSubstr("# TYPE tael_wait_seconds histogram\n"
                                     "tael_wait_seconds_bucket{le=\"0.01\"} 0\n"
                                     "tael_wait_seconds_bucket{le=\"0.1\"} 2\n"
                                     "tael_wait_seconds_bucket{le=\"1\"} 2\n"
                                     "tael_wait_seconds_bucket{le=\"+Inf\"} 2\n"
                                     "tael_wait_seconds_sum 0.1\n"
                                     "tael_wait_seconds_count 2\n"));
}

}  // namespace
}  // namespace tael::server
