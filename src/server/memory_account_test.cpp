#include "server/memory_account.h"

#include <gtest/gtest.h>

namespace tael::server {
namespace {

TEST(MemoryAccount, ChargesAreGrantedUpToTheReservation) {
  mem::MemoryBudget budget(1000);
  auto account = MemoryAccount::Create(budget, 600);
  ASSERT_TRUE(account.has_value());
  EXPECT_EQ(budget.reserved_bytes(), 600u);
  Charge first = (*account)->NewCharge();
  Charge second = (*account)->NewCharge();
  EXPECT_TRUE(first.TryResizeTo(400).has_value());
  EXPECT_FALSE(second.TryResizeTo(201).has_value());
  EXPECT_EQ(second.bytes(), 0u);
  EXPECT_TRUE(second.TryResizeTo(200).has_value());
  EXPECT_EQ((*account)->used_bytes(), 600u);
}

TEST(MemoryAccount, WhatDiesOrShrinksIsThereForOthers) {
  mem::MemoryBudget budget(1000);
  auto account = MemoryAccount::Create(budget, 600);
  ASSERT_TRUE(account.has_value());
  {
    Charge charge = (*account)->NewCharge();
    ASSERT_TRUE(charge.TryResizeTo(600).has_value());
    charge.ShrinkTo(100);
    EXPECT_EQ((*account)->used_bytes(), 100u);
    charge.ShrinkTo(500);  // no growth through the back door
    EXPECT_EQ(charge.bytes(), 100u);
    Charge moved = std::move(charge);
    EXPECT_EQ(moved.bytes(), 100u);
  }
  EXPECT_EQ((*account)->used_bytes(), 0u);
}

TEST(MemoryAccount, WhatTheBudgetHasNotIsRefusedAtOnce) {
  mem::MemoryBudget budget(1000);
  auto account = MemoryAccount::Create(budget, 1001);
  ASSERT_FALSE(account.has_value());
  EXPECT_EQ(account.error().code, ErrorCode::kOutOfBudget);
}

TEST(MemoryAccount, TheLedgerShowsWhatIsUsed) {
  mem::MemoryBudget budget(1000);
  auto account = MemoryAccount::Create(budget, 600);
  ASSERT_TRUE(account.has_value());
  Charge charge = (*account)->NewCharge();
  ASSERT_TRUE(charge.TryResizeTo(77).has_value());
  const auto part = budget.Snapshot().parts[static_cast<size_t>(mem::MemoryTag::kServer)];
  EXPECT_EQ(part.reserved_bytes, 600u);
  EXPECT_EQ(part.used_bytes, 77u);
}

}  // namespace
}  // namespace tael::server
