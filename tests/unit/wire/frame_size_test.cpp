// Sizes by calculation are the sizes of real frames, and the row area is cut exactly.
#include "wire/frame_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/wire/samples.h"

namespace linkcpp::wire {
namespace {

TEST(FrameSize, OfADispatchIsThatOfItsEncoding) {
  const Program program = every_op_program();
  for (const RowType type : all_row_types) {
    Dispatch dispatch = sample_dispatch();
    dispatch.row_type = type;
    const Bytes area(input_area_bytes(program, type, 3, 4));
    dispatch.rows = area;
    EXPECT_EQ(encoded(dispatch).size(), dispatch_bytes(program, type, 3, 4));
  }
}

TEST(FrameSize, RouterWeightsStayFloats) {
  const Program program = gated_program(3072, 1024);
  EXPECT_EQ(input_area_bytes(program, RowType::f32, 1, 8), 3072u * 4 + 8 * 4);
  EXPECT_EQ(input_area_bytes(program, RowType::f16, 1, 8), 3072u * 2 + 8 * 4);
}

TEST(FrameSize, TheWorkedExampleOfTheSpecification) {
  const Program program = gated_program(3072, 1024);
  const auto out = [&](RowType type) { return frame_header_bytes + dispatch_bytes(program, type, 1, 8); };
  const auto back = [&](CombineMode mode, RowType type) { return frame_header_bytes + combine_bytes(program, type, mode, 1, 8); };
  EXPECT_EQ(out(RowType::f32), 12377u);
  EXPECT_EQ(out(RowType::f16), 6233u);
  EXPECT_EQ(back(CombineMode::raw, RowType::f32), 98344u);
  EXPECT_EQ(back(CombineMode::raw, RowType::f16), 49192u);
  EXPECT_EQ(back(CombineMode::sum, RowType::f32), 12328u);
  EXPECT_EQ(back(CombineMode::sum, RowType::f16), 6184u);
  EXPECT_EQ(out(RowType::int8), 3353u);
  EXPECT_EQ(back(CombineMode::sum, RowType::int8), 3304u);
}

TEST(FrameSize, MostTokensFillAFrameAndNoMore) {
  for (const RowType type : all_row_types) {
    for (const CombineMode mode : {CombineMode::raw, CombineMode::sum}) {
      const Program program = gated_program(3072, 1024);
      const std::uint32_t n = tokens_in_a_frame(program, type, mode, 8);
      const auto largest = [&](std::size_t tokens) {
        return std::max(dispatch_bytes(program, type, tokens, tokens * 8), combine_bytes(program, type, mode, tokens, tokens * 8));
      };
      EXPECT_LE(largest(n), max_frame_body);
      EXPECT_GT(largest(n + 1), max_frame_body);
    }
  }
  EXPECT_EQ(tokens_in_a_frame(gated_program(3072, 1024), RowType::f32, CombineMode::raw, 8), 682u);
  EXPECT_EQ(tokens_in_a_frame(gated_program(8, 8), RowType::f16, CombineMode::sum, 2), max_dispatch_tokens);
  EXPECT_EQ(tokens_in_a_frame(gated_program(8, 8), RowType::f16, CombineMode::sum, 64), max_dispatch_pairs / 64);
  EXPECT_EQ(tokens_in_a_frame(gated_program(max_row_elements, 8), RowType::f32, CombineMode::raw, 255), 0u);
  EXPECT_EQ(tokens_in_a_frame(gated_program(), RowType::f32, CombineMode::raw, 0), 0u);
  EXPECT_EQ(tokens_in_a_frame(gated_program(), RowType::f32, CombineMode::raw, 256), 0u);
}

TEST(SplitInputArea, CutsByTheInputsInOrder) {
  const Program program = every_op_program();  // token rows of 32, pair rows of 1, pair rows of 16
  Bytes area(input_area_bytes(program, RowType::f16, 3, 4));
  Dispatch dispatch = sample_dispatch();
  dispatch.rows = area;
  const auto parts = split_input_area(dispatch, program);
  ASSERT_TRUE(parts.has_value()) << parts.error().message;
  ASSERT_EQ(parts->size(), 3u);
  EXPECT_EQ((*parts)[0].data(), area.data());
  EXPECT_EQ((*parts)[0].size(), 3u * 32 * 2);
  EXPECT_EQ((*parts)[1].data(), area.data() + 192);
  EXPECT_EQ((*parts)[1].size(), 4u * 4);
  EXPECT_EQ((*parts)[2].data(), area.data() + 208);
  EXPECT_EQ((*parts)[2].size(), 4u * 16 * 2);
}

TEST(SplitInputArea, NamesExpectedAndReceivedBytes) {
  const Program program = every_op_program();
  const Bytes area(input_area_bytes(program, RowType::f16, 3, 4) + 1);
  for (const std::size_t n : {area.size(), area.size() - 2, std::size_t{0}}) {
    Dispatch dispatch = sample_dispatch();
    dispatch.rows = ByteSpan(area).first(n);
    const auto parts = split_input_area(dispatch, program);
    ASSERT_FALSE(parts.has_value());
    EXPECT_EQ(parts.error().kind, ErrorKind::invalid_input);
    EXPECT_THAT(parts.error().message, testing::HasSubstr("takes 336 bytes of f16 rows for 3 tokens and 4 pairs"));
    EXPECT_THAT(parts.error().message, testing::HasSubstr(std::format("got {}", n)));
  }
}

}  // namespace
}  // namespace linkcpp::wire
