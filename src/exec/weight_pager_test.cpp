#include "exec/weight_pager.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

namespace tael::exec {
namespace {

constexpr uint32_t kLayers = 6;
constexpr size_t kLayerPages = 8;

// A file of kLayers layers of whole pages, with the rest before and behind them.
class Pager : public testing::Test {
 protected:
  void SetUp() override {
    page_ = mem::PageSize();
    path_ = testing::TempDir() + "pager-" +
            testing::UnitTest::GetInstance()->current_test_info()->name();
    const std::string bytes((kLayers + 2) * kLayerPages * page_, 'w');
    std::ofstream(path_, std::ios::binary) << bytes;
    auto mapping = mem::FileMapping::Open(path_);
    ASSERT_TRUE(mapping.has_value());
    mapping_ = std::move(*mapping);
  }
  void TearDown() override { std::remove(path_.c_str()); }

  model::WeightExtents Extents() const {
    const uint64_t bytes = kLayerPages * page_;
    model::WeightExtents out;
    out.rest = {{0, bytes}, {(kLayers + 1) * bytes, bytes}};
    for (uint32_t i = 0; i < kLayers; ++i) out.layers.push_back({{(i + 1) * bytes, bytes}});
    return out;
  }
  std::unique_ptr<WeightPager> Make(uint32_t resident_layers) {
    auto pager = WeightPager::Create(mapping_, Extents(), resident_layers);
    EXPECT_TRUE(pager.has_value());
    return std::move(*pager);
  }
  void Pass(WeightPager& pager) {
    for (uint32_t unit = 0; unit <= kLayers; ++unit) {
      pager.Enter(unit);
      EXPECT_LE(pager.mapped_bytes(), most_) << "unit " << unit;
      most_seen_ = std::max(most_seen_, pager.mapped_bytes());
    }
  }

  // Of the file, whether they are mapped or not.
  size_t CachedPages() const {
    std::vector<unsigned char> cached(mapping_.bytes().size() / page_);
    void* const begin = const_cast<std::byte*>(mapping_.bytes().data());
    EXPECT_EQ(::mincore(begin, mapping_.bytes().size(), cached.data()), 0);
    return static_cast<size_t>(
        std::count_if(cached.begin(), cached.end(), [](unsigned char it) { return it & 1; }));
  }

  size_t page_ = 0;
  std::string path_;
  mem::FileMapping mapping_;
  uint64_t most_ = 0, most_seen_ = 0;
};

TEST_F(Pager, WhatIsResidentIsReadOnceAndStays) {
  const auto pager = Make(kLayers);
  most_ = (kLayers + 2) * kLayerPages * page_;
  Pass(*pager);
  while (!pager->complete()) std::this_thread::yield();
  EXPECT_EQ(pager->mapped_bytes(), most_);
  EXPECT_FALSE(pager->streams());
}

TEST_F(Pager, StreamedLayersAreNeverMoreThanTwoAtOnce) {
  for (const uint32_t resident : {0u, 1u, 4u}) {
    const auto pager = Make(resident);
    most_ = (2 + resident + WeightPager::kStreamedAtOnce) * kLayerPages * page_;
    most_seen_ = 0;
    for (int i = 0; i < 20; ++i) Pass(*pager);
    EXPECT_EQ(most_seen_, most_) << "the next layer is read while one computes";
    EXPECT_FALSE(pager->complete());
  }
}

// What is being read when a pass is given up is no longer wanted when it is there.
TEST_F(Pager, APassThatIsGivenUpLeavesNoLayerTooMany) {
  const auto pager = Make(0);
  most_ = (2 + WeightPager::kStreamedAtOnce) * kLayerPages * page_;
  for (int i = 0; i < 300; ++i) {
    pager->Enter(3);
    pager->Enter(0);
    for (int look = 0; look < 20; ++look) {
      ASSERT_LE(pager->mapped_bytes(), most_) << "turn " << i;
      std::this_thread::yield();
    }
  }
}

// The kernel may forget what it was not told to, so that only the other direction can be asked for.
TEST_F(Pager, ACacheThatIsToForgetHoldsNoLayerThatWasDropped) {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::fsync(fd), 0) << "what is not on the disk cannot be forgotten";
  ::close(fd);
  void* const begin = const_cast<std::byte*>(mapping_.bytes().data());
  ASSERT_EQ(::madvise(begin, mapping_.bytes().size(), MADV_RANDOM), 0) << "nothing is read ahead";
  mapping_.Evict();
  ASSERT_EQ(CachedPages(), 0u);
  const auto pager = Make(1);
  pager->KeepInCache(false);
  most_ = (2 + 1 + WeightPager::kStreamedAtOnce) * kLayerPages * page_;
  for (int i = 0; i < 3; ++i) Pass(*pager);
  EXPECT_LE(CachedPages(), most_ / page_);
  EXPECT_EQ(mapping_.bytes()[5 * kLayerPages * page_], std::byte{'w'});
}

TEST_F(Pager, ReleasedWeightsComeBackWithTheNextPass) {
  const auto pager = Make(kLayers);
  most_ = (kLayers + 2) * kLayerPages * page_;
  Pass(*pager);
  pager->Release();
  EXPECT_EQ(pager->mapped_bytes(), 0u);
  EXPECT_FALSE(pager->complete());
  Pass(*pager);
  EXPECT_GT(pager->mapped_bytes(), 0u);
  EXPECT_EQ(mapping_.bytes()[3 * page_], std::byte{'w'});
}

TEST_F(Pager, LayersThatLoseTheirRoomAreStreamedFromThenOn) {
  const auto pager = Make(kLayers);
  most_ = (kLayers + 2) * kLayerPages * page_;
  Pass(*pager);
  while (!pager->complete()) std::this_thread::yield();
  pager->SetResident(1);
  EXPECT_FALSE(pager->complete());
  EXPECT_TRUE(pager->streams());
  most_ = (2 + 1 + WeightPager::kStreamedAtOnce) * kLayerPages * page_;
  for (int i = 0; i < 5; ++i) Pass(*pager);
  pager->SetResident(4);
  most_ += 3 * kLayerPages * page_;
  for (int i = 0; i < 5; ++i) Pass(*pager);
  EXPECT_EQ(most_seen_, (kLayers + 2) * kLayerPages * page_);
  pager->SetResident(kLayers);
  most_ = (kLayers + 2) * kLayerPages * page_;
  Pass(*pager);
  while (!pager->complete()) std::this_thread::yield();
  EXPECT_FALSE(pager->streams());
}

TEST_F(Pager, KnowsHowManyLayersARoomHolds) {
  const auto pager = Make(kLayers);
  const uint64_t layer = kLayerPages * page_;
  const uint64_t least = (2 + WeightPager::kStreamedAtOnce) * layer;
  EXPECT_EQ(pager->LayersWithin(least - 1), std::nullopt);
  EXPECT_EQ(pager->LayersWithin(least), 0u);
  EXPECT_EQ(pager->LayersWithin(least + 3 * layer - 1), 2u);
  EXPECT_EQ(pager->LayersWithin(UINT64_MAX), kLayers);
}

}  // namespace
}  // namespace tael::exec
