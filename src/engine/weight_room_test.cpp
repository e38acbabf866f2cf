#include "engine/weight_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

namespace tael::engine {
namespace {

constexpr uint32_t kLayers = 6;
constexpr uint64_t kLayer = 64 << 10;
constexpr uint64_t kWhole = (kLayers + 3) * kLayer;  // with a unit for the rest, and two streamed

// A model of six layers, a system whose room the test sets, and a clock that it moves.
class WeightRoomTest : public testing::Test {
 protected:
  WeightRoomTest()
      : path_(testing::TempDir() + "weight_room-" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::ofstream(path_, std::ios::binary) << std::string((kLayers + 1) * kLayer, 'w');
    mapping_ = *mem::FileMapping::Open(path_);
    extents_.rest = {{0, kLayer}};
    for (uint32_t i = 0; i < kLayers; ++i) extents_.layers.push_back({{(i + 1) * kLayer, kLayer}});
    Plan(kLayers);
    Pass(0);
    while (!pager_->complete()) std::this_thread::yield();
  }
  ~WeightRoomTest() override { std::remove(path_.c_str()); }

  // Anew, with so many resident layers.
  void Plan(uint32_t resident) {
    room_.reset();
    pager_ = *exec::WeightPager::Create(mapping_, extents_, resident);
    const exec::ThrashGuard guard(kLayers * kLayer, 1, [this] { return bytes_read_; });
    room_ = std::make_unique<WeightRoom>(
        *pager_, guard,
        WeightRoom::System{.group_room = [this] { return group_room_; },
                           .available = [this] { return available_; },
                           .now = [this] { return now_; }});
  }

  void Pass(uint64_t bytes_read) {
    room_->BeforePass();
    for (uint32_t unit = 0; unit <= kLayers; ++unit) pager_->Enter(unit);
    bytes_read_ += bytes_read;
    room_->AfterPass();
  }
  void Thrash() {
    while (!pager_->complete() && !pager_->streams()) std::this_thread::yield();
    for (int i = 0; i < exec::ThrashGuard::kPasses; ++i) Pass(1 << 20);
  }
  void PassAfter(std::chrono::seconds wait) {
    now_ += wait;
    Pass(0);
  }

  std::string path_;
  mem::FileMapping mapping_;
  model::WeightExtents extents_;
  std::unique_ptr<exec::WeightPager> pager_;
  uint64_t bytes_read_ = 0;
  std::optional<uint64_t> group_room_ = kWhole;
  std::optional<uint64_t> available_ = 100 * kWhole;
  WeightRoom::Clock::time_point now_{};
  std::unique_ptr<WeightRoom> room_;
};

TEST_F(WeightRoomTest, WeightsThatAreTakenAwayAreStreamedAsFarAsTheyMustBe) {
  EXPECT_EQ(room_->Why(), "");
  group_room_ = kWhole - 3 * kLayer;
  Thrash();
  EXPECT_TRUE(room_->is_short());
  EXPECT_EQ(pager_->resident_layers(), 3u);
  EXPECT_THAT(room_->Why(), testing::HasSubstr("3 of 6 layers are read from the file"));
}

TEST_F(WeightRoomTest, WhoStreamsEverythingByPlanIsNotShortOfRoom) {
  Plan(0);
  for (int turn = 0; turn < 3; ++turn) {
    Thrash();
    EXPECT_FALSE(room_->is_short()) << "turn " << turn;
  }
}

TEST_F(WeightRoomTest, LayersThatAreStreamedStayInACacheThatHoldsThemAll) {
  group_room_ = kWhole;  // just enough is not enough
  Plan(2);
  Pass(0);
  EXPECT_FALSE(pager_->keeps_in_cache());
  group_room_ = 2 * kWhole;
  PassAfter(WeightRoom::kFirstWait - std::chrono::seconds(1));
  EXPECT_FALSE(pager_->keeps_in_cache()) << "looked again too early";
  PassAfter(std::chrono::seconds(1));
  EXPECT_TRUE(pager_->keeps_in_cache());
  available_ = kWhole;  // of the whole system
  PassAfter(WeightRoom::kFirstWait);
  EXPECT_FALSE(pager_->keeps_in_cache());
}

TEST_F(WeightRoomTest, WithoutALimitToReadHalfOfThemGo) {
  group_room_.reset();
  Thrash();
  EXPECT_EQ(pager_->resident_layers(), 3u);
  Thrash();
  EXPECT_EQ(pager_->resident_layers(), 1u);
  EXPECT_EQ(room_->next_look(), now_ + WeightRoom::kFirstWait) << "one turn, in steps";
}

TEST_F(WeightRoomTest, TheyComeBackWhenThereIsRoomWithSomeToSpare) {
  group_room_ = kWhole - 3 * kLayer;
  Thrash();
  group_room_ = kWhole;  // just enough is not enough
  PassAfter(WeightRoom::kFirstWait);
  EXPECT_TRUE(room_->is_short());
  group_room_ = 2 * kWhole;
  PassAfter(WeightRoom::kFirstWait - std::chrono::seconds(1));
  EXPECT_TRUE(room_->is_short()) << "looked again too early";
  available_ = kWhole;  // of the whole system
  PassAfter(WeightRoom::kFirstWait);
  EXPECT_TRUE(room_->is_short());
  available_ = 2 * kWhole;
  now_ = room_->next_look();
  room_->Look();  // without a pass
  EXPECT_EQ(room_->next_look(), WeightRoom::Clock::time_point::max());
  EXPECT_FALSE(room_->is_short());
  EXPECT_EQ(room_->Why(), "");
  EXPECT_EQ(pager_->resident_layers(), kLayers);
}

TEST_F(WeightRoomTest, WhoIsCheatedWaitsTwiceAsLongBeforeItTriesAgain) {
  group_room_.reset();  // and what is available says that there is room
  std::chrono::seconds wait = WeightRoom::kFirstWait;
  for (int turn = 0; turn < 10; ++turn) {
    Thrash();
    PassAfter(wait - std::chrono::seconds(1));
    EXPECT_TRUE(room_->is_short()) << "turn " << turn;
    PassAfter(std::chrono::seconds(1));
    EXPECT_FALSE(room_->is_short()) << "turn " << turn;
    wait = std::min(2 * wait, WeightRoom::kLongestWait);
  }
}

}  // namespace
}  // namespace tael::engine
