// The account: bytes, pairs and time of every layer and worker. Plain sums; whoever needs rates divides.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace linkcpp::dispatch {

/// Sums over the steps of one layer, one worker, or one (layer, worker).
struct Tally {
  std::uint64_t steps = 0;      ///< dispatches (one a layer and pass; for a worker: requests sent to it)
  std::uint64_t tokens = 0;     ///< token rows sent
  std::uint64_t pairs = 0;      ///< (token, expert) pairs
  std::uint64_t bytes_out = 0;  ///< whole frames, headers included, before encryption
  std::uint64_t bytes_in = 0;
  std::uint64_t payload_out = 0;  ///< rows only, for the share of headers
  std::uint64_t payload_in = 0;
  std::uint64_t resent_pairs = 0;
  std::uint64_t failed_steps = 0;
  std::chrono::nanoseconds wait{0};     ///< backbone blocked on combine (layers only)
  std::chrono::nanoseconds flight{0};   ///< dispatch to combine (from first send to last answer)
  std::chrono::nanoseconds compute{0};  ///< reported by workers
  std::chrono::nanoseconds queued{0};   ///< reported by workers
  Tally& operator+=(const Tally& other);
};

/// What became of the graphs' matmuls with stacked expert tensors.
struct MatmulCount {
  std::uint64_t seen = 0;
  std::uint64_t dispatched = 0;
  std::map<std::string, std::uint64_t> on_base;  ///< computed by the base, by the weight's name without its layer
};

struct Account {
  std::map<std::uint16_t, Tally> layers;
  std::map<std::string, Tally> workers;  ///< by name
  Tally total;
  std::map<std::uint16_t, std::vector<bool>> selected;  ///< by layer: experts that the router has ever chosen
  MatmulCount matmuls;
  std::uint64_t passes = 0;   ///< forward passes (graphs with at least one region)
  std::uint64_t regions = 0;  ///< of all passes
};

}  // namespace linkcpp::dispatch
