// The server's part of the ledger: what connections and requests in flight may take, reserved once
// and handed out in charges. A charge that does not fit is refused before a byte is read for it.
//
// Any thread may call anything.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "base/result.h"
#include "mem/memory_budget.h"

namespace tael::server {

class MemoryAccount;

// Bytes of the account that somebody uses; given back when it dies. Move-only, one thread at a
// time.
class [[nodiscard]] Charge {
 public:
  Charge() = default;
  Charge(Charge&& other) noexcept;
  Charge& operator=(Charge&& other) noexcept;
  ~Charge() { ResizeTo(0); }

  uint64_t bytes() const { return bytes_; }
  // Fails: kOutOfBudget; then nothing has changed. A smaller size always succeeds.
  Status TryResizeTo(uint64_t bytes);
  void ShrinkTo(uint64_t bytes);

 private:
  friend class MemoryAccount;
  explicit Charge(MemoryAccount& account) : account_(&account) {}
  bool ResizeTo(uint64_t bytes);

  MemoryAccount* account_ = nullptr;
  uint64_t bytes_ = 0;
};

class MemoryAccount {
 public:
  // Reserves `bytes` under the tag `server`. Fails: kOutOfBudget.
  static Result<std::unique_ptr<MemoryAccount>> Create(mem::MemoryBudget& budget, uint64_t bytes);

  Charge NewCharge() { return Charge(*this); }  // of no bytes yet
  uint64_t used_bytes() const;

 private:
  friend class Charge;
  explicit MemoryAccount(mem::Reservation reservation) : reservation_(std::move(reservation)) {}
  bool Change(uint64_t before, uint64_t after);

  mutable std::mutex mutex_;
  mem::Reservation reservation_;  // its used bytes are guarded by mutex_
};

}  // namespace tael::server
