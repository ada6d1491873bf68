// Region programs: one encoding each, and a refusal for every rule that a hostile backbone could break.
#include "wire/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "unit/wire/samples.h"

namespace linkcpp::wire {
namespace {

using testing::HasSubstr;

TEST(Programs, ComeBack) {
  for (const Program& program : {gated_program(), every_op_program()}) {
    const auto back = decode_program(encoded(program));
    ASSERT_TRUE(back.has_value()) << back.error().message;
    EXPECT_EQ(*back, program);
    EXPECT_EQ(encoded(*back), encoded(program));
  }
  EXPECT_EQ(gated_program().n_out(), 64u);
}

TEST(Programs, HaveTheSpecifiedBytes) {
  Program program;
  program.inputs = {{Input::Kind::token, 0x0102}};
  program.weights = {"w"};
  program.ops = {make_op(OpKind::mul_mat_id, 7, input(0), weight(0))};
  program.ops[0].params[1] = -1;
  std::vector<std::uint8_t> expected{1, 1, 1,   0, 0, 0,  // inputs, weights, ops, output
                                     0, 2, 1,   0, 0,     // token input of 258
                                     1, 0, 'w',           // weight name
                                     1, 7, 0,   0, 0, 0, 0, 0, 0};
  for (int i = 0; i < 64; ++i) expected.push_back(i / 4 == 1 ? 0xFF : 0);
  expected.insert(expected.end(), {2, 0, 0, 3, 0, 0, 0, 0, 0});
  EXPECT_THAT(encoded(program), testing::ElementsAreArray(std::as_bytes(std::span(expected))));
}

TEST(Programs, IdIsTheBeginningOfTheDigestOfTheEncoding) {
  // sha256sum of the bytes above begins with these eight.
  Program program;
  program.inputs = {{Input::Kind::token, 0x0102}};
  program.weights = {"w"};
  program.ops = {make_op(OpKind::mul_mat_id, 7, input(0), weight(0))};
  program.ops[0].params[1] = -1;
  EXPECT_EQ(program_id(program), 0x33af4fe80e2eb894u);
}

TEST(Programs, IdDependsOnEverything) {
  const Program program = every_op_program();
  EXPECT_EQ(program_id(program), program_id(every_op_program()));
  const std::function<void(Program&)> changes[] = {
      [](Program& p) { p.output = 13; },        [](Program& p) { p.inputs[2].n = 17; },
      [](Program& p) { p.weights[0] += "x"; },  [](Program& p) { p.ops[4].params[15] = 1; },
      [](Program& p) { p.ops[3].offset = 15; }, [](Program& p) { std::swap(p.ops[2], p.ops[3]); },
  };
  for (const auto& change : changes) {
    Program other = program;
    change(other);
    EXPECT_NE(program_id(other), program_id(program));
  }
}

TEST(Programs, MustHaveExactlyTheirLength) {
  const Bytes body = encoded(every_op_program());
  for (std::size_t n = 0; n < body.size(); ++n) ASSERT_FALSE(decode_program(ByteSpan(body).first(n)).has_value()) << n;
  Bytes longer = body;
  longer.push_back({});
  EXPECT_FALSE(decode_program(longer).has_value());
}

TEST(Programs, AnyByteMayBeWrong) {
  const Bytes body = encoded(every_op_program());
  std::size_t accepted = 0;
  for (std::size_t at = 0; at < body.size(); ++at) {
    for (const int value : {0x00, 0x01, 0x7F, 0x80, 0xFF}) {
      Bytes changed = body;
      changed[at] = static_cast<std::byte>(value);
      const auto program = decode_program(changed);
      if (!program) continue;
      ++accepted;
      ASSERT_EQ(encoded(*program), changed) << "what is accepted has this one encoding";
    }
  }
  EXPECT_GT(accepted, 0u) << "op parameters may be anything here";
}

TEST(Programs, LimitsThemselvesAreAllowed) {
  Program program;
  program.inputs.assign(max_program_inputs, {Input::Kind::pair, max_row_elements});
  program.weights.assign(max_program_weights, std::string(max_weight_name, 'z'));
  program.ops.assign(max_program_ops, make_op(OpKind::add, max_row_elements, input(15), input(0)));
  program.output = max_program_ops - 1;
  const auto back = decode_program(encoded(program));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(*back, program);
}

/// A change that makes a sound program unsound, and what the refusal must say.
struct Fault {
  const char* name;
  std::function<void(Program&)> apply;
  const char* says;
};

/// So that a failing test names the fault.
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class UnsoundPrograms : public testing::TestWithParam<Fault> {};

TEST_P(UnsoundPrograms, AreRefused) {
  Program program = every_op_program();
  GetParam().apply(program);
  const auto checked = check_program(program);
  ASSERT_FALSE(checked.has_value());
  EXPECT_EQ(checked.error().kind, ErrorKind::invalid_input);
  EXPECT_THAT(checked.error().message, HasSubstr(GetParam().says));
  // The decoder says the same, or stops even earlier where the encoding cannot hold so much.
  EXPECT_FALSE(decode_program(encoded(program)).has_value());
}

constexpr auto never = static_cast<OpKind>(0), beyond = static_cast<OpKind>(14);

const Fault faults[] = {
    {"no_ops", [](Program& p) { p.ops.clear(); }, "it has 0 ops"},
    {"too_many_ops", [](Program& p) { p.ops.resize(max_program_ops + 1, p.ops[4]); }, "it has 65 ops"},
    {"no_inputs", [](Program& p) { p.inputs.clear(); }, "it has 0 inputs"},
    {"too_many_inputs", [](Program& p) { p.inputs.resize(max_program_inputs + 1, p.inputs[0]); }, "it has 17 inputs"},
    {"too_many_weights", [](Program& p) { p.weights.resize(max_program_weights + 1, "w"); }, "it names 33 weights"},
    {"output_out_of_range", [](Program& p) { p.output = 15; }, "its output is op 15 of 15"},
    {"empty_weight_name", [](Program& p) { p.weights[1] = ""; }, "a weight name"},
    {"long_weight_name", [](Program& p) { p.weights[1] = std::string(65, 'a'); }, "a weight name"},
    {"weight_name_with_space", [](Program& p) { p.weights[1] = "a b"; }, "a weight name"},
    {"weight_name_with_slash", [](Program& p) { p.weights[1] = "../w"; }, "a weight name"},
    {"weight_name_with_zero", [](Program& p) { p.weights[1] = std::string("w\0w", 3); }, "a weight name"},
    {"weight_name_beyond_ascii", [](Program& p) { p.weights[1] = "w\xC3\xA4"; }, "a weight name"},
    {"input_of_unknown_kind", [](Program& p) { p.inputs[0].kind = static_cast<Input::Kind>(2); }, "an input is of unknown kind 2"},
    {"input_without_elements", [](Program& p) { p.inputs[2].n = 0; }, "an input has rows of 0"},
    {"input_too_long", [](Program& p) { p.inputs[2].n = max_row_elements + 1; }, "an input has rows of 1048577"},
    {"unknown_op_0", [](Program& p) { p.ops[4].kind = never; }, "op 4 is of unknown kind 0"},
    {"unknown_op_14", [](Program& p) { p.ops[4].kind = beyond; }, "op 4 is of unknown kind 14"},
    {"op_without_elements", [](Program& p) { p.ops[0].n_out = 0; }, "op 0 makes rows of 0"},
    {"op_too_long", [](Program& p) { p.ops[0].n_out = max_row_elements + 1; }, "op 0 makes rows of 1048577"},
    {"offset_of_no_view", [](Program& p) { p.ops[4].offset = 1; }, "op 4 is no view but has an offset"},
    {"third_source", [](Program& p) { p.ops[8].sources[2] = input(1); }, "op 8 has a third source"},
    {"third_source_none_with_index", [](Program& p) { p.ops[8].sources[2].index = 1; }, "op 8 has a third source"},
    {"first_source_missing", [](Program& p) { p.ops[4].sources[0] = {}; }, "the first source of op 4"},
    {"first_source_is_itself", [](Program& p) { p.ops[4].sources[0] = op(4); }, "the first source of op 4"},
    {"first_source_is_later", [](Program& p) { p.ops[4].sources[0] = op(5); }, "the first source of op 4"},
    {"first_source_is_no_op", [](Program& p) { p.ops[4].sources[0] = op(65535); }, "the first source of op 4"},
    {"first_source_is_no_input", [](Program& p) { p.ops[0].sources[0] = input(3); }, "the first source of op 0"},
    {"first_source_is_weight", [](Program& p) { p.ops[0].sources[0] = weight(0); }, "the first source of op 0"},
    {"first_source_of_unknown_kind", [](Program& p) { p.ops[0].sources[0].kind = static_cast<Source::Kind>(4); },
     "the first source of op 0"},
    {"matmul_without_weight", [](Program& p) { p.ops[0].sources[1] = {}; }, "op 0 has no weight"},
    {"matmul_with_rows", [](Program& p) { p.ops[0].sources[1] = input(0); }, "op 0 has no weight"},
    {"matmul_weight_out_of_range", [](Program& p) { p.ops[0].sources[1] = weight(2); }, "op 0 has no weight"},
    {"bias_without_weight", [](Program& p) { p.ops[1].sources[1] = op(0); }, "op 1 has no weight"},
    {"bias_weight_out_of_range", [](Program& p) { p.ops[1].sources[1] = weight(2); }, "op 1 has no weight"},
    {"bias_changes_length", [](Program& p) { p.ops[1].n_out = 31; }, "op 1 adds a bias to rows of 32 and makes 31"},
    {"view_beyond_the_row", [](Program& p) { p.ops[3].offset = 17; }, "op 3 views elements 17 to 33 of a row of 32"},
    {"view_offset_wraps", [](Program& p) { p.ops[3].offset = UINT32_MAX; }, "op 3 views elements 4294967295 to 4294967311"},
    {"view_with_second_source", [](Program& p) { p.ops[2].sources[1] = op(0); }, "op 2 has a second source"},
    {"unary_changes_length", [](Program& p) { p.ops[4].n_out = 8; }, "op 4 turns rows of 16 into 8"},
    {"clamp_changes_length", [](Program& p) { p.ops[5].n_out = 8; }, "op 5 turns rows of 16 into 8"},
    {"scale_changes_length", [](Program& p) { p.ops[6].n_out = 8; }, "op 6 turns rows of 16 into 8"},
    {"sqr_changes_length", [](Program& p) { p.ops[11].n_out = 8; }, "op 11 turns rows of 16 into 8"},
    {"sqrt_changes_length", [](Program& p) { p.ops[12].n_out = 8; }, "op 12 turns rows of 16 into 8"},
    {"unary_with_second_source", [](Program& p) { p.ops[4].sources[1] = op(3); }, "op 4 has a second source"},
    {"unary_with_weight", [](Program& p) { p.ops[4].sources[1] = weight(0); }, "the second source of op 4"},
    {"mul_without_second_source", [](Program& p) { p.ops[7].sources[1] = {}; }, "op 7 combines rows of 16 and 0 into 16"},
    {"mul_with_weight", [](Program& p) { p.ops[7].sources[1] = weight(0); }, "the second source of op 7"},
    {"mul_with_longer_rows", [](Program& p) { p.ops[7].sources[1] = op(1); }, "op 7 combines rows of 16 and 32 into 16"},
    {"add_broadcasts_the_wrong_way", [](Program& p) { p.ops[8].sources = {input(1), input(2), Source{}}; },
     "op 8 combines rows of 1 and 16 into 16"},
    {"sub_changes_length", [](Program& p) { p.ops[9].n_out = 8; }, "op 9 combines rows of 16 and 16 into 8"},
    {"div_with_later_rows", [](Program& p) { p.ops[10].sources[1] = op(10); }, "the second source of op 10"},
    {"second_source_none_with_index", [](Program& p) { p.ops[4].sources[1].index = 1; }, "the second source of op 4"},
    {"glu_of_halves_that_are_none", [](Program& p) { p.ops[13].n_out = 15; }, "op 13 gates rows of 32 and 0 into 15"},
    {"glu_of_unequal_rows", [](Program& p) { p.ops[13].sources = {op(2), op(1), Source{}}; }, "op 13 gates rows of 16 and 32 into 16"},
    {"glu_of_two_that_halves", [](Program& p) { p.ops[13].sources = {op(1), op(0), Source{}}; }, "op 13 gates rows of 32 and 32 into 16"},
};

INSTANTIATE_TEST_SUITE_P(Faults, UnsoundPrograms, testing::ValuesIn(faults),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(Programs, SplitGluIsAllowed) {
  Program program = every_op_program();
  program.ops[13].sources = {op(2), op(3), Source{}};
  EXPECT_TRUE(check_program(program).has_value());
}

TEST(Programs, CountsBeyondTheLimitsAreRefusedBeforeAnythingIsRead) {
  const std::uint8_t greedy[] = {255, 255, 255, 255, 0, 0};
  const auto program = decode_program(std::as_bytes(std::span(greedy)));
  ASSERT_FALSE(program.has_value());
  EXPECT_THAT(program.error().message, HasSubstr("exceed the limits"));
}

TEST(Programs, RandomBytesNeverPassUnlessTheyAreSound) {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    Bytes body(random() % 300);
    for (std::byte& b : body) b = static_cast<std::byte>(random() % 4 == 0 ? random() : random() % 4);
    const auto program = decode_program(body);
    ASSERT_TRUE(!program || check_program(*program).has_value());
  }
}

}  // namespace
}  // namespace linkcpp::wire
