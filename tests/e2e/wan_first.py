#!/usr/bin/env python3
"""What the first answer costs over a WAN, from the call that dials: as a stranger, and resumed with the ticket of an earlier connection."""
import lib
import wan
from wan_exchange import first_answers


def measure():
    return first_answers(wan.transports())


if __name__ == "__main__":
    lib.finish(measure())
