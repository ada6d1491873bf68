#!/usr/bin/env python3
"""The WAN lab: what its scenario asked for and what was realised (lab/selftest)."""
import json
import os

import lib
from lib import PROJECT, Table


def measure():
    table = Table("lab", "The WAN lab: asked for, and measured", ["what", "asked for", "measured"])
    result = json.loads(lib.run([os.path.join(PROJECT, "lab", "selftest"), "--json"], ok=(0, 1)))
    for row in result["rows"]:
        table.add(row["what"], row["asked"], row["measured"])
        table.claim(row["good"], f"{row['what']}: asked for {row['asked']}, measured {row['measured']}")
    table.note(f"Congestion control that sockets get by default: {result['congestion_control']}.")
    return table


if __name__ == "__main__":
    lib.finish(measure())
