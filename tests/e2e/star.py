#!/usr/bin/env python3
"""Star, not chain: with three workers at different distances a layer takes the longest round trip, not their sum."""
import lib
from lib import Rig, Table

ROUND_TRIPS_MS = (10, 30, 60)
TOKENS = 16  # a pass: enough that every worker is touched in every layer
PASSES = 24


def flight_ms(path, round_trips):
    """Mean time from dispatch to the last answer, mean compute of a request, and whether every worker had a part in every step."""
    with Rig(path) as rig:
        for i, round_trip in enumerate(round_trips, 1):
            rig.listening_worker(f"w{i}", f"{i}/{len(round_trips)}", one_way_ms=round_trip / 2)
        command = lib.logits("eval", path, "--text", lib.prompt_text(), "--context", TOKENS, "--chunks", PASSES, "--no-repack", "--discard",
                             device="LINKCPP0")
        _, account = rig.run(command, mode="sum")
        total = account["total"]
        touched = [worker["steps"] / total["steps"] for worker in account["workers"].values()]
        compute = max(worker["compute_us"] / worker["steps"] for worker in account["workers"].values()) / 1000
        rtts = [worker.get("rtt_us", 0) / 1000 for worker in account["workers"].values()]
        return total["flight_us"] / total["steps"] / 1000, compute, min(touched), max(rtts)


def measure():
    table = Table("star", f"Star: time of one layer, three workers, {TOKENS} tokens a pass, {PASSES} passes",
                  ["added round trips (ms)", "longest", "sum", "a layer took (ms)", "of which slowest worker's compute", "workers touched in every step", "layer / longest"])
    for name, path in lib.models("tinymoe-a-q4_k_s"):
        for trips in ((0, 0, 0), (60, 60, 60), ROUND_TRIPS_MS):
            flight, compute, touched, _ = flight_ms(path, trips)
            longest = max(trips)
            table.add(" / ".join(map(str, trips)), longest, sum(trips), f"{flight:.1f}", f"{compute:.2f}", f"{100 * touched:.0f} %",
                      f"{flight / longest:.3f}" if longest else "")
            if trips == ROUND_TRIPS_MS:
                table.claim(flight <= 1.1 * (longest + compute), f"a layer took {flight:.1f} ms: more than the longest round trip and 10 %")
                table.claim(touched > 0.95, "not every worker was touched, so the sum would not have been 100 ms")
    table.note("Added by a relay that holds bytes back. The first two lines show what the machine itself adds.")
    return table


if __name__ == "__main__":
    lib.finish(measure())
