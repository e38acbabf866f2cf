// Windows that grow while there is room (--window N..M): how wide the next pass may see.
//
// Every sequence begins with N tokens. What would leave its window stays instead as long as plenty
// of the pool is free, and the window grows, to M at most; when the pool runs low it is narrowed,
// back to N at most. Between the two shares nothing changes, so that it does not swing. What is
// dropped once does not come back: growing is for what comes next.
//
// A decision depends on lengths and on the pool alone. With one sequence in the pool the same
// text gets the same windows each time.
#pragma once

#include <cstdint>

namespace tael::engine {

// Shares of the pool that are free beyond what the next pass takes.
inline constexpr double kPlentyFree = 0.25;
inline constexpr double kLittleFree = 0.10;
// Windows change by so many tokens at once, or by what a pass brings.
inline constexpr uint32_t kWindowStep = 256;

struct WindowSituation {
  uint32_t start = 0;   // N
  uint32_t widest = 0;  // M, as the widest layer has it
  uint32_t limit = 0;   // now; start <= limit <= widest
  uint32_t held = 0;    // tokens that the widest layer keeps
  uint32_t coming = 0;  // tokens of the next pass
  double free_share = 0;
  double share_to_widen = 0;  // of the pool: what WiderWindow() holds once it is full, and this not
};

// The next step up: what comes and the block that it ends in, or more.
uint32_t WiderWindow(uint32_t limit, uint32_t widest, uint32_t coming);

// The limit for the next pass, start <= limit <= widest.
uint32_t NextWindow(const WindowSituation& now);

}  // namespace tael::engine
