#!/usr/bin/env python3
"""What planning a graph costs a node. Paid once for each new graph; a graph that the engine uses again is found by its uid."""
import json
import os

import lib
from lib import Table


def measure():
    table = Table("planning", "Planning a graph", ["layers", "tokens", "shared expert", "nodes", "ns a node, median (lowest-highest) of 9", "us a graph"])
    output = lib.run([lib.tool("bench_planner"), "--benchmark_format=json", "--benchmark_repetitions=9", "--benchmark_min_time=0.1s"])
    runs = {}
    for run in json.loads(output)["benchmarks"]:
        if run["run_type"] == "iteration":
            table.claim(not run.get("error_occurred"), f"{run['name']}: {run.get('error_message')}")
            runs.setdefault(run["name"], []).append(run)
    for name, repetitions in runs.items():
        arguments = dict(part.split(":") for part in name.split("/")[1:] if ":" in part)
        per_node = [run["s_per_node"] * 1e9 for run in repetitions]
        nodes = repetitions[0]["nodes"]
        table.add(arguments["layers"], arguments["tokens"], "yes" if arguments["shared"] == "1" else "no", int(nodes), lib.spread(per_node, "{:.0f}"),
                  f"{lib.median(per_node) * nodes / 1000:.0f}")
        table.claim(lib.median(per_node) <= 1000, f"{name}: {lib.median(per_node):.0f} ns a node, the goal is 1000")
    return table


if __name__ == "__main__":
    lib.finish(measure())
