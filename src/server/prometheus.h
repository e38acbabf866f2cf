// The text that Prometheus scrapes (exposition format 0.0.4), and a histogram for it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tael::server {

// Counts durations in buckets. Any thread may call anything.
class Histogram {
 public:
  static constexpr size_t kMostBounds = 16;

  // Upper bounds in seconds, ascending, at most kMostBounds; one more bucket holds the rest.
  explicit Histogram(std::span<const double> bounds) : bounds_(bounds.begin(), bounds.end()) {}

  void Observe(double seconds, uint64_t times = 1);

  std::span<const double> bounds() const { return bounds_; }
  uint64_t CountUpTo(size_t bucket) const;  // bounds().size(): all
  double SumSeconds() const;

 private:
  const std::vector<double> bounds_;
  std::array<std::atomic<uint64_t>, kMostBounds + 1> buckets_{};
  std::atomic<uint64_t> sum_ns_{0};
};

class PrometheusText {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;
  enum class Kind : uint8_t { kGauge, kCounter };

  // A metric's header; its samples follow.
  void Begin(std::string_view name, Kind kind, std::string_view help);
  void Sample(const Labels& labels, double value);
  // Both, for a metric of one sample.
  void Add(std::string_view name, Kind kind, std::string_view help, double value);
  void Add(std::string_view name, std::string_view help, const Histogram& histogram);

  const std::string& text() const { return text_; }

 private:
  void Header(std::string_view name, std::string_view type, std::string_view help);
  void Line(std::string_view name, const Labels& labels, double value);

  std::string text_;
  std::string name_;
};

}  // namespace tael::server
