// The counters move in an order that keeps two things true for every observer: the total never
// passes the limit (it is taken first, by compare-exchange, and given back last), and a tag never
// counts bytes that the total does not hold.
//
// A refusal carries a static message per tag and no numbers: reporting that memory ran out must
// not allocate. Callers that may allocate add the numbers from Snapshot().
#include "mem/memory_budget.h"

#include <limits>
#include <utility>

#include "base/check.h"
#include "base/fault.h"

namespace tael::mem {
namespace {

size_t Index(MemoryTag tag) { return static_cast<size_t>(tag); }

struct TagText {
  std::string_view name;
  const char* refusal;
};

constexpr std::array<TagText, kNumMemoryTags> kTagTexts = {{
    {"weights",
     "the memory budget has no room for the model's weights; raise --budget or take a smaller "
     "model"},
    {"kv",
     "the memory budget has no room for KV blocks; raise --budget, or lower --ctx or --sessions"},
    {"activations",
     "the memory budget has no room for activations; raise --budget or run fewer sessions"},
    {"tokenizer", "the memory budget has no room for the tokenizer's tables; raise --budget"},
    {"prefix",
     "the memory budget has no room for prefix blocks; raise --budget or set --prefix-cache off"},
    {"snapshot",
     "the memory budget has no room for a snapshot's buffers; raise --budget or retry when idle"},
    {"server",
     "the memory budget has no room for another connection or request; raise --budget or retry"},
    {"kernel", "the memory budget has no room for page tables and sockets; raise --budget"},
    {"runtime", "the memory budget is smaller than the program itself; raise --budget"},
}};

void RaiseTo(std::atomic<uint64_t>& high_water, uint64_t value) {
  uint64_t seen = high_water.load(std::memory_order_relaxed);
  while (seen < value &&
         !high_water.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

std::string_view ToString(MemoryTag tag) { return kTagTexts[Index(tag)].name; }

Reservation::Reservation(Reservation&& other) noexcept
    : budget_(std::exchange(other.budget_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      used_(std::exchange(other.used_, 0)),
      tag_(other.tag_) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  budget_ = std::exchange(other.budget_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  used_ = std::exchange(other.used_, 0);
  tag_ = other.tag_;
  return *this;
}

void Reservation::SetUsed(uint64_t used) {
  TAEL_CHECK(used <= bytes_);
  if (budget_ != nullptr) budget_->AdjustUsed(tag_, used_, used);
  used_ = used;
}

void Reservation::Reset() {
  if (budget_ != nullptr) budget_->Release(tag_, bytes_, used_);
  budget_ = nullptr;
  bytes_ = 0;
  used_ = 0;
}

MemoryBudget::~MemoryBudget() { TAEL_CHECK(reserved_bytes() == 0); }

Result<Reservation> MemoryBudget::Reserve(MemoryTag tag, uint64_t bytes) {
  if (FaultHere(FaultKind::kReserve)) {
    return Error{ErrorCode::kOutOfBudget, kTagTexts[Index(tag)].refusal, {}};
  }
  const uint64_t cap = limit_ != 0 ? limit_ : std::numeric_limits<uint64_t>::max();
  // Acquire pairs with the release in Release(): whoever is granted bytes sees them unmapped.
  uint64_t total = reserved_.load(std::memory_order_relaxed);
  do {
    if (bytes > cap - total) {
      return Error{ErrorCode::kOutOfBudget, kTagTexts[Index(tag)].refusal, {}};
    }
  } while (!reserved_.compare_exchange_weak(total, total + bytes, std::memory_order_acq_rel,
                                            std::memory_order_relaxed));
  RaiseTo(high_water_, total + bytes);
  Counter& counter = counters_[Index(tag)];
  RaiseTo(counter.high_water, counter.reserved.fetch_add(bytes, std::memory_order_relaxed) + bytes);
  return Reservation(this, tag, bytes);
}

void MemoryBudget::Release(MemoryTag tag, uint64_t bytes, uint64_t used) {
  AdjustUsed(tag, used, 0);
  counters_[Index(tag)].reserved.fetch_sub(bytes, std::memory_order_relaxed);
  reserved_.fetch_sub(bytes, std::memory_order_acq_rel);
}

void MemoryBudget::AdjustUsed(MemoryTag tag, uint64_t before, uint64_t after) {
  // Wraps on purpose when `after` is smaller: unsigned addition of the difference.
  counters_[Index(tag)].used.fetch_add(after - before, std::memory_order_relaxed);
}

Result<Reservation> MemoryBudget::ReserveHeap(MemoryTag tag, uint64_t bytes) {
  constexpr uint64_t kSmallHeapBytes = 64 * 1024;
  if (bytes <= kSmallHeapBytes) return Reservation();
  TAEL_ASSIGN_OR_RETURN(Reservation reservation, Reserve(tag, bytes));
  reservation.SetUsed(bytes);
  return reservation;
}

uint64_t MemoryBudget::free_bytes() const {
  if (limit_ == 0) return std::numeric_limits<uint64_t>::max();
  return limit_ - reserved_bytes();
}

LedgerSnapshot MemoryBudget::Snapshot() const {
  LedgerSnapshot out;
  out.limit_bytes = limit_;
  for (size_t i = 0; i < kNumMemoryTags; ++i) {
    LedgerPart& part = out.parts[i];
    part.used_bytes = counters_[i].used.load(std::memory_order_relaxed);
    part.reserved_bytes = counters_[i].reserved.load(std::memory_order_relaxed);
    part.high_water_bytes = counters_[i].high_water.load(std::memory_order_relaxed);
    out.used_bytes += part.used_bytes;
  }
  out.reserved_bytes = reserved_.load(std::memory_order_relaxed);
  out.high_water_bytes = high_water_.load(std::memory_order_relaxed);
  return out;
}

}  // namespace tael::mem
