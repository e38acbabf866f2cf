#include "server/memory_account.h"

#include <algorithm>
#include <utility>

namespace tael::server {

Charge::Charge(Charge&& other) noexcept
    : account_(other.account_), bytes_(std::exchange(other.bytes_, 0)) {}

Charge& Charge::operator=(Charge&& other) noexcept {
  if (this == &other) return *this;
  ResizeTo(0);
  account_ = other.account_;
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

bool Charge::ResizeTo(uint64_t bytes) {
  if (bytes == bytes_) return true;
  if (account_ == nullptr || !account_->Change(bytes_, bytes)) return false;
  bytes_ = bytes;
  return true;
}

Status Charge::TryResizeTo(uint64_t bytes) {
  if (ResizeTo(bytes)) return {};
  return Error{ErrorCode::kOutOfBudget,
               "the requests in flight take all memory that the server may use for them; try again "
               "in a moment",
               {}};
}

void Charge::ShrinkTo(uint64_t bytes) { ResizeTo(std::min(bytes, bytes_)); }

Result<std::unique_ptr<MemoryAccount>> MemoryAccount::Create(mem::MemoryBudget& budget,
                                                             uint64_t bytes) {
  TAEL_ASSIGN_OR_RETURN(auto reservation, budget.Reserve(mem::MemoryTag::kServer, bytes));
  return std::unique_ptr<MemoryAccount>(new MemoryAccount(std::move(reservation)));
}

uint64_t MemoryAccount::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return reservation_.used_bytes();
}

bool MemoryAccount::Change(uint64_t before, uint64_t after) {
  const std::lock_guard lock(mutex_);
  const uint64_t others = reservation_.used_bytes() - before;
  if (after > reservation_.bytes() - others) return false;
  reservation_.SetUsed(others + after);
  return true;
}

}  // namespace tael::server
