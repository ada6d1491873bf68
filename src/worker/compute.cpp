#include "worker/compute.h"

#include <algorithm>
#include <limits>

#include "wire/frame_size.h"

namespace linkcpp::worker {
namespace {

using Clock = std::chrono::steady_clock;

/// Jobs of a batch whose buffers are kept. More are merged at times, but rarely large ones.
constexpr std::size_t kept_jobs = 4;

std::uint32_t whole_us(Clock::duration time) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(us, 0, std::numeric_limits<std::uint32_t>::max()));
}

Result<> decode(const Job& job, JobRows& rows, engine::HostRequest& request) {
  const wire::Program& program = *job.program;
  auto areas = wire::split_input_area(job.dispatch, program);
  if (!areas) return pass(areas);
  rows.inputs.resize(program.inputs.size());
  for (std::size_t k = 0; k < program.inputs.size(); ++k) {
    const wire::Input& input = program.inputs[k];
    const std::size_t n_rows = input.kind == wire::Input::Kind::token ? job.dispatch.n_tokens : job.dispatch.pairs.size();
    rows.inputs[k].resize(n_rows * input.n);
    wire::decode_rows(wire::effective_row_type(job.dispatch.row_type, input.n), (*areas)[k], input.n, n_rows, rows.inputs[k].data(),
                      input.n);
    request.inputs.emplace_back(rows.inputs[k]);
  }
  request.n_tokens = job.dispatch.n_tokens;
  request.pairs = job.dispatch.pairs;
  request.mode = job.dispatch.mode;
  const std::size_t n_rows = request.mode == wire::CombineMode::sum ? job.dispatch.n_tokens : job.dispatch.pairs.size();
  rows.output.resize(n_rows * program.n_out());
  request.output = rows.output;
  return {};
}

Bytes combine_frame(const Job& job, std::span<const float> rows, std::uint32_t compute_us, std::uint32_t queue_us) {
  wire::Combine combine{.mode = job.dispatch.mode, .row_type = job.dispatch.row_type, .compute_us = compute_us, .queue_us = queue_us};
  combine.n = job.program->n_out();
  combine.n_rows = static_cast<std::uint32_t>(rows.size() / combine.n);
  const wire::RowType type = wire::effective_row_type(combine.row_type, combine.n);
  const std::size_t bytes = combine.n_rows * wire::row_bytes(type, combine.n);
  Bytes frame = wire::begin_frame(wire::FrameType::combine, job.request, wire::combine_header_bytes + bytes);
  wire::encode_combine_header(combine, frame);
  wire::encode_rows(type, rows.data(), combine.n, combine.n_rows, combine.n, ByteWriter(frame).extend(bytes));
  wire::finish_frame(frame);
  return frame;
}

/// Whether the answer fits a frame; a raw answer may be many times its request.
Result<> check_answer_size(const Job& job) {
  const std::size_t bytes =
      wire::combine_bytes(*job.program, job.dispatch.row_type, job.dispatch.mode, job.dispatch.n_tokens, job.dispatch.pairs.size());
  if (bytes <= wire::max_frame_body) return {};
  return fail(ErrorKind::invalid_input, "the answer would have {} bytes, a frame holds {}: lower the backbone's batch size (-ub)", bytes,
              wire::max_frame_body);
}

}  // namespace

ComputeCounters& ComputeCounters::operator+=(const ComputeCounters& other) {
  requests += other.requests;
  tokens += other.tokens;
  pairs += other.pairs;
  batches += other.batches;
  failures += other.failures;
  compute += other.compute;
  return *this;
}

Bytes failure_frame(std::uint64_t request, const Error& error) {
  Bytes body;
  wire::encode(wire::Failed{error.kind, error.message}, body);
  return wire::make_frame(wire::FrameType::failed, request, body);
}

std::vector<Answer> compute(engine::ExpertHost& host, std::span<const Job> batch, Scratch& scratch, ComputeCounters& counters) {
  const auto start = Clock::now();
  std::vector<Answer> answers;
  if (scratch.size() < batch.size()) scratch.resize(batch.size());
  std::vector<engine::HostRequest> requests;
  std::vector<std::size_t> job_of;  // requests that can be computed
  for (std::size_t i = 0; i < batch.size(); ++i) {
    engine::HostRequest request;
    Result<> ready = check_answer_size(batch[i]);
    if (ready) ready = decode(batch[i], scratch[i], request);
    if (ready) ready = host.check(*batch[i].program, batch[i].dispatch.layer, request);
    if (!ready) {
      ++counters.failures;
      answers.push_back({batch[i].session, failure_frame(batch[i].request, ready.error())});
      continue;
    }
    requests.push_back(std::move(request));
    job_of.push_back(i);
  }
  if (requests.empty()) return answers;
  const Result<> done = host.run(*batch[job_of[0]].program, batch[job_of[0]].dispatch.layer, requests);
  const auto spent = Clock::now() - start;
  ++counters.batches;
  counters.compute += spent;
  for (std::size_t r = 0; r < requests.size(); ++r) {
    const Job& job = batch[job_of[r]];
    ++counters.requests;
    counters.tokens += job.dispatch.n_tokens;
    counters.pairs += job.dispatch.pairs.size();
    counters.failures += done ? 0 : 1;
    answers.push_back({job.session, done ? combine_frame(job, requests[r].output, whole_us(spent), whole_us(start - job.arrived))
                                         : failure_frame(job.request, done.error())});
  }
  if (scratch.size() > kept_jobs) scratch.resize(kept_jobs);
  return answers;
}

}  // namespace linkcpp::worker
