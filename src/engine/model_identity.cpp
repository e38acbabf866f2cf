#include "engine/model_identity.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/hash.h"

namespace tael::engine {
namespace {

// Where weights differ they differ all over the file, so that a few pieces tell two models apart;
// each may bring 64 KiB of the file into memory.
constexpr size_t kNumPieces = 16;
constexpr size_t kPieceBytes = 4096;

uint64_t DigestOf(const model::Model& model) {
  const std::span<const std::byte> bytes = model.mapping().bytes();
  const size_t data_offset = std::min<size_t>(model.file().data_offset(), bytes.size());
  uint64_t digest = kv::Hash64(bytes.data(), data_offset, bytes.size());
  for (size_t i = 0; i < kNumPieces; ++i) {
    const std::span<const std::byte> data = bytes.subspan(data_offset);
    const std::span<const std::byte> piece = data.subspan(data.size() / kNumPieces * i);
    digest = kv::Hash64(piece.data(), std::min(piece.size(), kPieceBytes), digest);
  }
  return digest;
}

}  // namespace

std::string IdentityOf(const model::Model& model) {
  return std::to_string(DigestOf(model)) + " of " + std::to_string(model.weights_bytes()) +
         " bytes";
}

}  // namespace tael::engine
