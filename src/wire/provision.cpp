#include "wire/provision.h"

#include <cassert>

#include "wire/malformed.h"
#include "wire/text.h"

namespace linkcpp::wire {
namespace {

Result<SliceSourceAddress> decode_source(ByteReader& in) {
  SliceSourceAddress source;
  source.url = in.text();
  in.fill(source.key);
  if (!in.ok()) return malformed("assignment", "it is cut short");
  if (source.url.empty() || source.url.size() > max_url_bytes || !is_plain_text(source.url))
    return malformed("assignment", "a source has no plain address of 1 to {} bytes", max_url_bytes);
  return source;
}

}  // namespace

void encode(const Offer& offer, Bytes& out) {
  ByteWriter writer(out);
  writer.put(offer.budget);
  writer.put(offer.share_port);
  writer.raw(std::as_bytes(std::span(offer.model)));
  encode_holdings(offer.stored, writer);
}

Result<Offer> decode_offer(ByteSpan body) {
  ByteReader in(body);
  Offer offer;
  offer.budget = in.get<std::uint64_t>();
  offer.share_port = in.get<std::uint16_t>();
  in.fill(offer.model);
  auto stored = decode_holdings(in, "offer");
  if (!stored) return pass(stored);
  offer.stored = std::move(*stored);
  if (!in.finished()) return malformed("offer", "its length does not fit its contents");
  return offer;
}

void encode(const Assign& assign, Bytes& out) {
  assert(assign.sources.size() <= max_sources);
  ByteWriter writer(out);
  writer.raw(std::as_bytes(std::span(assign.model)));
  writer.raw(std::as_bytes(std::span(assign.index)));
  encode_holdings(assign.urgent, writer);
  encode_holdings(assign.spare, writer);
  writer.put(static_cast<std::uint16_t>(assign.sources.size()));
  for (const SliceSourceAddress& source : assign.sources) {
    writer.text(source.url);
    writer.raw(std::as_bytes(std::span(source.key)));
  }
}

Result<Assign> decode_assign(ByteSpan body) {
  ByteReader in(body);
  Assign assign;
  in.fill(assign.model);
  in.fill(assign.index);
  auto urgent = decode_holdings(in, "assignment");
  if (!urgent) return pass(urgent);
  auto spare = decode_holdings(in, "assignment");
  if (!spare) return pass(spare);
  assign.urgent = std::move(*urgent);
  assign.spare = std::move(*spare);
  const auto n = in.get<std::uint16_t>();
  if (!in.ok()) return malformed("assignment", "it is cut short");
  if (n > max_sources) return malformed("assignment", "it names {} sources, the limit is {}", n, max_sources);
  for (std::uint16_t i = 0; i < n; ++i) {
    auto source = decode_source(in);
    if (!source) return pass(source);
    assign.sources.push_back(std::move(*source));
  }
  if (!in.finished()) return malformed("assignment", "its length does not fit its contents");
  return assign;
}

void encode(const Holds& holds, Bytes& out) {
  ByteWriter writer(out);
  writer.put(holds.bytes);
  writer.put(holds.bytes_wanted);
  encode_holdings(holds.holdings, writer);
}

Result<Holds> decode_holds(ByteSpan body) {
  ByteReader in(body);
  Holds holds;
  holds.bytes = in.get<std::uint64_t>();
  holds.bytes_wanted = in.get<std::uint64_t>();
  auto holdings = decode_holdings(in, "message of held experts");
  if (!holdings) return pass(holdings);
  holds.holdings = std::move(*holdings);
  if (!in.finished()) return malformed("message of held experts", "its length does not fit its contents");
  return holds;
}

}  // namespace linkcpp::wire
