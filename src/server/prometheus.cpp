#include "server/prometheus.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace tael::server {
namespace {

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

// Whole numbers up to 2^53 as such: scrapers compare texts in tests.
std::string NumberText(double value) {
  char text[64];
  const bool is_whole = value == std::floor(value) && std::abs(value) < 9e15;
  std::snprintf(text, sizeof text, is_whole ? "%.0f" : "%.9g", value);
  return text;
}

}  // namespace

void Histogram::Observe(double seconds, uint64_t times) {
  const auto bucket =
      static_cast<size_t>(std::ranges::lower_bound(bounds_, seconds) - bounds_.begin());
  buckets_[bucket].fetch_add(times, std::memory_order_relaxed);
  sum_ns_.fetch_add(static_cast<uint64_t>(std::max(0.0, seconds) * 1e9) * times,
                    std::memory_order_relaxed);
}

uint64_t Histogram::CountUpTo(size_t bucket) const {
  uint64_t count = 0;
  for (size_t i = 0; i <= bucket; ++i) count += buckets_[i].load(std::memory_order_relaxed);
  return count;
}

double Histogram::SumSeconds() const {
  return static_cast<double>(sum_ns_.load(std::memory_order_relaxed)) / 1e9;
}

void PrometheusText::Header(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  text_ += "# HELP " + name_ + " " + std::string(help) + "\n";
  text_ += "# TYPE " + name_ + " " + std::string(type) + "\n";
}

void PrometheusText::Line(std::string_view name, const Labels& labels, double value) {
  text_ += name;
  if (!labels.empty()) {
    text_ += '{';
    for (size_t i = 0; i < labels.size(); ++i) {
      if (i > 0) text_ += ',';
      text_ += labels[i].first + "=\"" + Escaped(labels[i].second) + "\"";
    }
    text_ += '}';
  }
  text_ += " " + NumberText(value) + "\n";
}

void PrometheusText::Begin(std::string_view name, Kind kind, std::string_view help) {
  Header(name, kind == Kind::kGauge ? "gauge" : "counter", help);
}

void PrometheusText::Sample(const Labels& labels, double value) { Line(name_, labels, value); }

void PrometheusText::Add(std::string_view name, Kind kind, std::string_view help, double value) {
  Begin(name, kind, help);
  Sample({}, value);
}

void PrometheusText::Add(std::string_view name, std::string_view help, const Histogram& histogram) {
  Header(name, "histogram", help);
  const auto bounds = histogram.bounds();
  uint64_t count = 0;
  for (size_t i = 0; i <= bounds.size(); ++i) {
    count = histogram.CountUpTo(i);
    const std::string le = i < bounds.size() ? NumberText(bounds[i]) : "+Inf";
    Line(name_ + "_bucket", {{"le", le}}, static_cast<double>(count));
  }
  Line(name_ + "_sum", {}, histogram.SumSeconds());
  Line(name_ + "_count", {}, static_cast<double>(count));
}

}  // namespace tael::server
