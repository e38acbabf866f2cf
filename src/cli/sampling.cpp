#include "cli/sampling.h"

#include <random>

#include "cli/interrupt.h"
#include "cli/terminal.h"

namespace tael::cli {

engine::GenerateOptions MakeGenerateOptions(const SamplingFlags& flags, uint32_t max_tokens) {
  engine::GenerateOptions options;
  options.max_tokens = max_tokens;
  options.sampler = flags.sampler;
  if (flags.seed) {
    options.sampler.seed = *flags.seed;
  } else {
    options.sampler.seed = std::random_device{}();  // 32 bits: short enough to type again
    const bool greedy = flags.sampler.temperature == 0;
    if (!greedy) Note("--seed " + std::to_string(options.sampler.seed));
  }
  options.stop = flags.stop;
  options.ignore_eos = flags.ignore_eos;
  options.cancel = &Interrupted();
  return options;
}

}  // namespace tael::cli
