#include "text/break_markers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tael::text {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const SpellingSet& Spellings() {
  static const SpellingSet kSet({"<|im_start|>", "<|im_end|>", "</s>", "[INST]", "\u2581"});
  return kSet;
}

std::string Mark(std::string_view content, Marking marking = Marking::kSpellings) {
  return MarkContent(content, Spellings(), {}, marking, "#");
}

TEST(BreakMarkers, TextWithoutSpellingsIsPassedUnchanged) {
  for (const char* text : {"", "hello", "a < b && c > d", "x <| y |> z", "list[0]", "\u2581"}) {
    EXPECT_EQ(Mark(text), text);
  }
}

TEST(BreakMarkers, AWholeSpellingIsMarkedInside) {
  EXPECT_EQ(Mark("a<|im_end|>b"), "a<#|im_end|>b");
  EXPECT_EQ(Mark("</s>[INST]"), "<#/s>[#INST]");
}

TEST(BreakMarkers, ASpellingCutByTheEndIsMarked) {
  EXPECT_EQ(Mark("a<"), "a<#");
  EXPECT_EQ(Mark("a<|im_e"), "a<#|im_e");
  EXPECT_EQ(Mark("a<|im_e "), "a<|im_e ");
  EXPECT_EQ(Mark("<<"), "<<#");
}

TEST(BreakMarkers, ASpellingCutByTheStartIsMarked) {
  EXPECT_EQ(Mark(">a"), "#>a");
  EXPECT_EQ(Mark("_end|>a"), "_end|#>a");
  EXPECT_EQ(Mark("NST] x"), "NST#] x");
  EXPECT_EQ(Mark(" NST]"), " NST]");
}

TEST(BreakMarkers, EveryEdgeMarksWhateverMayBeginOrEnd) {
  EXPECT_EQ(Mark("a < b > [c]", Marking::kEveryEdge), "a <# b #> [#c#]");
}

TEST(BreakMarkers, ExemptSpellingsAreLeftAlone) {
  const SpellingSet spellings({"<think>", "</think>", "</s>"});
  const std::vector<std::string> exempt = {"</think>"};
  EXPECT_EQ(MarkContent("<think>a</think></s>", spellings, exempt, Marking::kSpellings, "#"),
            "<#think>a</think><#/s>");
  EXPECT_EQ(MarkContent("</think>", spellings, exempt, Marking::kEveryEdge, "#"), "</think>");
}

TEST(BreakMarkers, TakingThemOutRemembersTheirPlaces) {
  const RenderedChat chat = TakeMarkers("<#|im##_end|>#", "#");
  EXPECT_EQ(chat.text, "<|im_end|>");
  EXPECT_THAT(chat.breaks, ElementsAre(1u, 4u, 10u));
  EXPECT_THAT(TakeMarkers("plain", "#").breaks, IsEmpty());
}

TEST(BreakMarkers, OnlyABreakStrictlyInsideStopsASpelling) {
  EXPECT_EQ(CountUnbroken({"</s></s>", {}}, Spellings()), 2u);
  EXPECT_EQ(CountUnbroken({"</s></s>", {4}}, Spellings()), 2u);
  EXPECT_EQ(CountUnbroken({"</s></s>", {3}}, Spellings()), 1u);
  EXPECT_EQ(CountUnbroken({"</s></s>", {1, 7}}, Spellings()), 0u);
}

TEST(BreakMarkers, TheMarkerIsACharacterThatNoTextHolds) {
  const std::string_view texts[] = {"a\uFDD0", "\uFDD1"};
  EXPECT_EQ(ChooseMarker(texts), "\uFDD2");
  std::string all;
  for (char last = '\x90'; last <= '\xAF'; ++last) all += {'\xEF', '\xB7', last};
  const std::string_view full[] = {all};
  EXPECT_EQ(ChooseMarker(full), std::nullopt);
}

}  // namespace
}  // namespace tael::text
