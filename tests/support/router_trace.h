// Which experts a router selected, token by token: a file that one tool records and another replays.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace linkcpp::test {

struct TraceLayer {
  std::uint16_t key = 0;
  std::uint16_t n_expert = 0;
  std::uint64_t slice_bytes = 0;  ///< of one expert, all its tensors
};

/// Tokens of one kind of text.
struct TraceDomain {
  std::string name;
  std::uint32_t n_tokens = 0;
};

struct RouterTrace {
  std::uint32_t top_k = 0;
  std::vector<TraceLayer> layers;
  std::vector<TraceDomain> domains;     ///< one after the other
  std::vector<std::uint16_t> selected;  ///< top_k experts for each layer, for each token

  [[nodiscard]] std::size_t n_tokens() const { return layers.empty() ? 0 : selected.size() / (layers.size() * top_k); }
  [[nodiscard]] std::span<const std::uint16_t> at(std::size_t token, std::size_t layer) const {
    return std::span(selected).subspan((token * layers.size() + layer) * top_k, top_k);
  }
};

namespace trace_file {
inline constexpr char magic[] = "linkcpp router trace 1\n";

template <class T>
void put(std::ostream& out, const T& value) {
  out.write(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class T>
T get(std::istream& in) {
  T value{};
  if (!in.read(reinterpret_cast<char*>(&value), sizeof value)) throw std::runtime_error("the router trace ends early");
  return value;
}
}  // namespace trace_file

/// Throws std::runtime_error. The numbers are in the machine's own byte order: a trace does not travel.
inline void write_trace(const RouterTrace& trace, const std::string& path) {
  using namespace trace_file;
  std::ofstream out(path, std::ios::binary);
  out.write(magic, sizeof magic - 1);
  put(out, trace.top_k);
  put(out, static_cast<std::uint32_t>(trace.layers.size()));
  for (const TraceLayer& layer : trace.layers) {
    put(out, layer.key);
    put(out, layer.n_expert);
    put(out, layer.slice_bytes);
  }
  put(out, static_cast<std::uint32_t>(trace.domains.size()));
  for (const TraceDomain& domain : trace.domains) {
    put(out, static_cast<std::uint32_t>(domain.name.size()));
    out.write(domain.name.data(), static_cast<std::streamsize>(domain.name.size()));
    put(out, domain.n_tokens);
  }
  const auto selected = std::as_bytes(std::span(trace.selected));
  out.write(reinterpret_cast<const char*>(selected.data()), static_cast<std::streamsize>(selected.size()));
  if (!out.flush()) throw std::runtime_error("cannot write the router trace '" + path + "'");
}

inline RouterTrace read_trace(const std::string& path) {
  using namespace trace_file;
  std::ifstream in(path, std::ios::binary);
  char head[sizeof magic - 1] = {};
  if (!in.read(head, sizeof head) || std::memcmp(head, magic, sizeof head) != 0)
    throw std::runtime_error("'" + path + "' is no router trace");
  RouterTrace trace{.top_k = get<std::uint32_t>(in), .layers = {}, .domains = {}, .selected = {}};
  trace.layers.resize(get<std::uint32_t>(in));
  for (TraceLayer& layer : trace.layers) {
    layer.key = get<std::uint16_t>(in);
    layer.n_expert = get<std::uint16_t>(in);
    layer.slice_bytes = get<std::uint64_t>(in);
  }
  trace.domains.resize(get<std::uint32_t>(in));
  std::size_t n_tokens = 0;
  for (TraceDomain& domain : trace.domains) {
    domain.name.resize(get<std::uint32_t>(in));
    in.read(domain.name.data(), static_cast<std::streamsize>(domain.name.size()));
    domain.n_tokens = get<std::uint32_t>(in);
    n_tokens += domain.n_tokens;
  }
  trace.selected.resize(n_tokens * trace.layers.size() * trace.top_k);
  const auto selected = std::as_writable_bytes(std::span(trace.selected));
  if (!in.read(reinterpret_cast<char*>(selected.data()), static_cast<std::streamsize>(selected.size())))
    throw std::runtime_error("the router trace '" + path + "' ends early");
  for (std::size_t t = 0; t < trace.n_tokens(); ++t) {
    for (std::size_t l = 0; l < trace.layers.size(); ++l) {
      for (const std::uint16_t e : trace.at(t, l)) {
        if (e >= trace.layers[l].n_expert) throw std::runtime_error("the router trace names an expert that does not exist");
      }
    }
  }
  return trace;
}

}  // namespace linkcpp::test
