// For tests only.
#pragma once

#include <chrono>
#include <thread>

namespace tael::server {

// Whether it comes true within a second.
template <class Condition>
bool Soon(const Condition& condition) {
  for (int i = 0; i < 500; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

}  // namespace tael::server
