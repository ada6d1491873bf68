// Being reachable through a relay.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>

#include "base/error.h"
#include "net/endpoint.h"
#include "net/transport.h"

namespace linkcpp::net {

/// A listener at a relay: as Listener::open() for "relay://host:port". Does not wait for the relay, which may come later.
Result<std::unique_ptr<Listener>> open_relay_listener(boost::asio::io_context& context, const Address& address, Credentials credentials,
                                                      LinkKnobs knobs, Listener::OnLink on_link, Listener::OnRefused on_refused);

}  // namespace linkcpp::net
