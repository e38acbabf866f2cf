#include "mem/process_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "mem/mapping.h"

namespace tael::mem {
namespace {

using ::testing::HasSubstr;

TEST(ProcessMemory, ReadsTheFieldsOfProcStatusInBytes) {
  const Result<ProcessMemory> memory = ParseProcStatus(
      "Name:\ttael\nVmRSS:\t   999 kB\nRssAnon:\t     100 kB\nRssFile:\t    2000 kB\n"
      "RssShmem:\t       3 kB\nVmData:\t 1 kB\nVmExe:\t  5 kB\nVmLib:\t 7 kB\n");
  ASSERT_TRUE(memory) << memory.error().Message();
  EXPECT_EQ(memory->rss_anon_bytes, 100u * 1024);
  EXPECT_EQ(memory->rss_file_bytes, 2000u * 1024);
  EXPECT_EQ(memory->rss_shmem_bytes, 3u * 1024);
  EXPECT_EQ(memory->text_bytes, 12u * 1024);
}

TEST(ProcessMemory, PssIsNotPssAnon) {
  const Result<uint64_t> pss = ParseSmapsRollup(
      "00400000-7fff0000 ---p 00000000 00:00 0   [rollup]\nRss:   10 kB\nPss_Anon: 4 kB\n"
      "Pss:                   7 kB\nPss_Dirty:   1 kB\n");
  ASSERT_TRUE(pss) << pss.error().Message();
  EXPECT_EQ(*pss, 7u * 1024);
}

TEST(ProcessMemory, AMissingOrBrokenFieldIsNamed) {
  for (const char* text : {"", "RssAnon:\t 1 kB\nRssFile:", "RssAnon: 1 kB\nRssFile: -1 kB\n",
                           "RssAnon: 1 kB\nRssFile: 12 MB\n", "RssAnon: 1 kB\nRssFiles: 1 kB\n",
                           "RssAnon: 1 kB\nRssFile: 18446744073709551615 kB\n"}) {
    const Result<ProcessMemory> memory = ParseProcStatus(text);
    ASSERT_FALSE(memory) << text;
    EXPECT_EQ(memory.error().code, ErrorCode::kMalformed);
    EXPECT_THAT(memory.error().Message(), HasSubstr(*text == '\0' ? "RssAnon" : "RssFile"));
  }
}

TEST(ProcessMemory, SeesAnonymousMemoryComeAndGo) {
  constexpr size_t kBytes = size_t{32} << 20;
  const Result<AnonymousMapping> mapping = AnonymousMapping::Create(kBytes);
  ASSERT_TRUE(mapping);
  const Result<ProcessMemory> before = ReadProcessMemory();
  ASSERT_TRUE(before) << before.error().Message();
  std::fill_n(mapping->data(), kBytes, std::byte{1});
  const Result<ProcessMemory> touched = ReadProcessMemory();
  ASSERT_TRUE(touched);
  EXPECT_GE(touched->rss_anon_bytes, before->rss_anon_bytes + kBytes - (size_t{2} << 20));
  mapping->Discard(0, kBytes);
  const Result<ProcessMemory> after = ReadProcessMemory();
  ASSERT_TRUE(after);
  EXPECT_LE(after->rss_anon_bytes, before->rss_anon_bytes + (size_t{2} << 20));
}

TEST(ProcessMemory, PssIsAtMostAboutTheResidentSet) {
  const Result<uint64_t> pss = ReadPssBytes();
  if (!pss) GTEST_SKIP() << pss.error().Message();
  const Result<ProcessMemory> memory = ReadProcessMemory();
  ASSERT_TRUE(memory);
  EXPECT_GT(*pss, 0u);
  EXPECT_LE(*pss, memory->rss_anon_bytes + memory->rss_file_bytes + memory->rss_shmem_bytes +
                      (uint64_t{4} << 20));
}

}  // namespace
}  // namespace tael::mem
