// Changes to a network while it runs, as `lab/in --set` and its like ask for them. Pure.
#pragma once

#include <string>
#include <string_view>

#include "network.h"

namespace linkcpp::lab {

/// Does what a request says. `{"do":"set","site":"phone","lines":{"delay_ms":5}}` and "cut", "mend", "move" (with "behind", the name of a
/// NAT or "" for the public network; without it only the address changes), "show". All of it, or nothing.
/// \return the site as it is now, as JSON: name, address, address6 (if any), behind (if any), and for "move" the addresses of before
Result<std::string> obey(Network& network, std::string_view request);

}  // namespace linkcpp::lab
