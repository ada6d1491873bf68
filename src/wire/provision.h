// Frames by which a worker gets its experts: it offers room, the backbone assigns slices, the worker says what it holds by now.
// The slices themselves travel over HTTP (docs/protocol.md, section 8): other nodes or any web server have them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "wire/holdings.h"
#include "wire/messages.h"

namespace linkcpp::wire {

/// Worker to backbone, after its welcome: room for slices.
struct Offer {
  std::uint64_t budget = 0;      ///< bytes of slices that it will hold in all
  std::uint16_t share_port = 0;  ///< where it gives slices to other nodes; 0: it does not
  Digest model{};                ///< of the slices that it has stored; zeros: none
  std::vector<LayerHolding> stored;
};
void encode(const Offer& offer, Bytes& out);
Result<Offer> decode_offer(ByteSpan body);

inline constexpr std::size_t max_sources = 256;
inline constexpr std::size_t max_url_bytes = 2048;

/// Where slices can be had. "lks://HOST:PORT" is a node that proves to be the owner of `key`; with an empty HOST it is the backbone
/// itself, at the address that the worker reached it by. "http://…" and "https://…" are web servers (key is zeros).
struct SliceSourceAddress {
  std::string url;
  std::array<std::uint8_t, 32> key{};
};

/// Backbone to worker: what to hold and where to get it. A later one replaces an earlier one.
struct Assign {
  Digest model{};
  Digest index{};                    ///< of the slice index (docs/slices.md), which the sources have too
  std::vector<LayerHolding> urgent;  ///< held by nobody else: fetched first
  std::vector<LayerHolding> spare;   ///< replicas
  std::vector<SliceSourceAddress> sources;
};
void encode(const Assign& assign, Bytes& out);
Result<Assign> decode_assign(ByteSpan body);

/// Worker to backbone: everything that it can compute from now on, and how far it is.
struct Holds {
  std::uint64_t bytes = 0;         ///< of assigned slices that are there
  std::uint64_t bytes_wanted = 0;  ///< of all assigned slices
  std::vector<LayerHolding> holdings;
};
void encode(const Holds& holds, Bytes& out);
Result<Holds> decode_holds(ByteSpan body);

}  // namespace linkcpp::wire
