// Row codecs against memcpy in the same run. Arguments: elements a row, rows. Bytes are those of the floats.
#include "wire/rows.h"

#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <vector>

#include "wire/half.h"

namespace linkcpp::wire {
namespace {

std::vector<float> activations(std::size_t n) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

/// Floats, and room for their encoding.
struct Case {
  explicit Case(const benchmark::State& state)
      : n(state.range(0)), n_rows(state.range(1)), floats(activations(n * n_rows)), bytes(floats.size() * 4) {}
  [[nodiscard]] std::span<std::byte> encoding(RowType type) { return std::span(bytes).first(n_rows * row_bytes(type, n)); }
  void report(benchmark::State& state) const {
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(floats.size() * sizeof(float)));
  }
  std::size_t n, n_rows;
  std::vector<float> floats;
  Bytes bytes;
};

void BM_Memcpy(benchmark::State& state) {
  Case c(state);
  for (auto _ : state) {
    std::memcpy(c.bytes.data(), c.floats.data(), c.bytes.size());
    benchmark::ClobberMemory();
  }
  c.report(state);
}

template <RowType type>
void BM_Encode(benchmark::State& state) {
  Case c(state);
  for (auto _ : state) {
    encode_rows(type, c.floats.data(), c.n, c.n_rows, c.n, c.encoding(type));
    benchmark::ClobberMemory();
  }
  c.report(state);
  if (type == RowType::f16) state.SetLabel(std::string(half_conversion()));
}

template <RowType type>
void BM_Decode(benchmark::State& state) {
  Case c(state);
  encode_rows(type, c.floats.data(), c.n, c.n_rows, c.n, c.encoding(type));
  for (auto _ : state) {
    decode_rows(type, c.encoding(type), c.n, c.n_rows, c.floats.data(), c.n);
    benchmark::ClobberMemory();
  }
  c.report(state);
  if (type == RowType::f16) state.SetLabel(std::string(half_conversion()));
}

void BM_EncodeF16Portable(benchmark::State& state) {
  Case c(state);
  for (auto _ : state) {
    halves_from_floats_portable(c.floats.data(), c.floats.size(), c.bytes.data());
    benchmark::ClobberMemory();
  }
  c.report(state);
}

void BM_DecodeF16Portable(benchmark::State& state) {
  Case c(state);
  halves_from_floats_portable(c.floats.data(), c.floats.size(), c.bytes.data());
  for (auto _ : state) {
    floats_from_halves_portable(c.bytes.data(), c.floats.size(), c.floats.data());
    benchmark::ClobberMemory();
  }
  c.report(state);
}

/// One token, its eight pair rows, and a prompt's worth of tokens, at n_embd 3072.
void shapes(benchmark::internal::Benchmark* benchmark) { benchmark->Args({3072, 1})->Args({3072, 8})->Args({3072, 512}); }

BENCHMARK(BM_Memcpy)->Apply(shapes);
BENCHMARK(BM_Encode<RowType::f32>)->Apply(shapes);
BENCHMARK(BM_Encode<RowType::f16>)->Apply(shapes);
BENCHMARK(BM_EncodeF16Portable)->Apply(shapes);
BENCHMARK(BM_Encode<RowType::int8>)->Apply(shapes);
BENCHMARK(BM_Encode<RowType::fp8>)->Apply(shapes);
BENCHMARK(BM_Decode<RowType::f32>)->Apply(shapes);
BENCHMARK(BM_Decode<RowType::f16>)->Apply(shapes);
BENCHMARK(BM_Decode<RowType::int8>)->Apply(shapes);
BENCHMARK(BM_Decode<RowType::fp8>)->Apply(shapes);
BENCHMARK(BM_DecodeF16Portable)->Apply(shapes);

}  // namespace
}  // namespace linkcpp::wire
