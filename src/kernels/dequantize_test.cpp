// Every table's dequantised rows beside those of the reference implementation (tests/data/tiny).
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernels.h"

namespace tael::kernels {
namespace {

class Dequantize : public testing::TestWithParam<const KernelTable*> {};

struct Golden {
  std::vector<uint8_t> bytes;
  std::vector<float> values;
};

Golden ReadGolden(const std::string& name) {
  std::ifstream file(std::string(TAEL_TEST_DATA "/tiny/dequant_") + name + ".json");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Golden golden;
  const size_t hex_key = text.find("\"bytes_hex\""), values_key = text.find("\"values\"");
  if (hex_key == std::string::npos || values_key == std::string::npos) return golden;
  for (size_t i = text.find('"', text.find(':', hex_key)) + 1; text[i] != '"'; i += 2) {
    golden.bytes.push_back(static_cast<uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  const char* p = text.c_str() + text.find('[', values_key);
  while (*p == '[' || *p == ',') {
    char* end = nullptr;
    golden.values.push_back(std::strtof(p + 1, &end));
    p = end + std::strspn(end, " \n\r\t");
  }
  return golden;
}

TEST_P(Dequantize, RowsEqualTheGoldenOnesBitForBit) {
  const std::pair<const char*, WeightType> files[] = {
      {"F16", WeightType::kF16},          {"BF16", WeightType::kBF16},
      {"Q4_0", WeightType::kQ4_0},        {"Q4_1", WeightType::kQ4_1},
      {"Q5_0", WeightType::kQ5_0},        {"Q5_1", WeightType::kQ5_1},
      {"Q8_0", WeightType::kQ8_0},        {"Q2_K", WeightType::kQ2_K},
      {"Q3_K_M", WeightType::kQ3_K},      {"Q4_K_M", WeightType::kQ4_K},
      {"Q5_K_M", WeightType::kQ5_K},      {"Q6_K", WeightType::kQ6_K},
      {"IQ4_NL", WeightType::kIQ4_NL},    {"IQ4_XS", WeightType::kIQ4_XS},
      {"Q4_K_M-mixed", WeightType::kQ6_K}};
  for (const auto& [name, type] : files) {
    Golden golden = ReadGolden(name);
    ASSERT_EQ(golden.values.size(), 512u) << name;
    const BlockShape shape = kBlockShapes[static_cast<size_t>(type)];
    ASSERT_EQ(golden.bytes.size(), 512u / shape.elements * shape.bytes) << name;
    golden.bytes.resize(golden.bytes.size() + kWeightSlackBytes);
    std::vector<float> got(512);
    GetParam()->matmul.dequantize_row[static_cast<size_t>(type)](
        reinterpret_cast<const std::byte*>(golden.bytes.data()), 512, got.data());
    EXPECT_EQ(got, golden.values) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(, Dequantize, testing::ValuesIn(Runnable().begin(), Runnable().end()),
                         [](const auto& p) { return p.param->isa; });

}  // namespace
}  // namespace tael::kernels
