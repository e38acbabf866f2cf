// Prints what this machine can do at most, as one JSON object; bench/compare runs it just before
// each measurement.
//
//   tael_roofline [THREADS]      default: 2
#include <cstdio>
#include <cstdlib>

#include "roofline.h"

int main(int argc, char** argv) {
  const long threads = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 2;
  if (threads < 1 || threads > 256) {
    std::fprintf(stderr, "usage: tael_roofline [THREADS]; THREADS is 1 to 256\n");
    return 2;
  }
  tael::bench::PinnedTeam team(static_cast<size_t>(threads));
  tael::bench::Roofline roofline(team);
  const double peak = roofline.Int8Peak();
  const double read = roofline.ReadBandwidth();
  std::printf("{\"threads\": %ld, \"read_gbps\": %.2f, \"int8_gmacs\": %.1f, \"int8\": \"%s\"}\n",
              threads, read / 1e9, peak / 1e9, tael::bench::Int8Instruction());
  return 0;
}
