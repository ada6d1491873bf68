#!/usr/bin/env python3
"""A swarm behind NATs whose worker changes networks again and again while it answers: requests lost, how long tokens stood still, and how long until there
was a direct path again. The whole program, at a round trip of 80 ms, with a relay in the middle."""
import re
import time

import lib
import wan
from lib import Table
from paths import Asking, NattedSwarm, answers_of_plain, lab

RTT_MS = 80
DIRECT_LIMIT_S = 20
PAIRS = (("port-restricted", "port-restricted"), ("symmetric", "address-restricted"), ("symmetric", "symmetric"))  # worker's NAT, backbone's
DIRECT = {pair: pair != ("symmetric", "symmetric") for pair in PAIRS}


def wait_direct(swarm):
    try:
        return swarm.wait_transport("phone", "quic", DIRECT_LIMIT_S)
    except AssertionError:
        return None


def one_move(swarm, direct):
    """The worker's NAT gets another address: what went over it is dead. Seconds until the worker is reached directly again."""
    begun = time.monotonic()
    lab("--move", "away")
    if not direct:
        time.sleep(6)
        return None
    while time.monotonic() - begun < DIRECT_LIMIT_S:
        endpoints = {path["endpoint"] for path in swarm.worker_of("phone")["paths"] if path["kind"] == "quic" and path["preferred"]}
        if endpoints and not endpoints & swarm.known:
            swarm.known |= endpoints
            return time.monotonic() - begun
        time.sleep(0.05)
    raise AssertionError(f"no direct path {DIRECT_LIMIT_S} s after the move: {swarm.worker_of('phone')}")


def inside(argument):
    with wan.within("backbone"), NattedSwarm(argument["model"]) as swarm:
        expected = answers_of_plain(swarm)
        swarm.relay()
        swarm.server = server = swarm.serve("--relay", swarm.relay_address)
        swarm.worker_in("phone", "all")
        server.wait_ready()
        asking = Asking(server, expected)
        asking.thread.start()
        try:
            first = wait_direct(swarm) if argument["direct"] else time.sleep(3)
            time.sleep(2)
            steady = len(asking.gaps_ms)
            swarm.known = {path["endpoint"] for path in swarm.worker_of("phone")["paths"] if path["kind"] == "quic"}
            moves = []
            for _ in range(argument["moves"]):
                moves.append(one_move(swarm, argument["direct"]))
                time.sleep(3)
            transport = swarm.worker_of("phone")["transport"]
        finally:
            asking.stop()
        lines = [line for line in server.process.lines if line.startswith("linkcpp: worker phone")]
        found = [int(note[1]) for line in lines if (note := re.search(r"found in (\d+) ms", line))]
        return {"first_s": first, "moves_s": moves, "found_ms": found, "left": [line for line in lines if " left" in line], "answered": asking.answered,
                "wrong": asking.wrong, "steady_ms": asking.gaps_ms[:steady], "gaps_ms": asking.gaps_ms[steady:], "transport": transport}


def tables_of(pair):
    """Round trips: 80 ms directly, and 80 ms as the sum of the relay's legs."""
    worker, backbone = pair
    line = {"delay_ms": RTT_MS / 4}
    return [("node", {"name": "relay"}), ("nat", {"name": "home", "kind": backbone} | line), ("nat", {"name": "away", "kind": worker} | line),
            ("node", {"name": "backbone", "behind": "home"}), ("node", {"name": "phone", "behind": "away"})]


def measure():
    table = Table("wan-moves", "A worker that changes networks while it answers, round trip 80 ms",
                  ["NAT of worker / backbone", "ends on", "changes", "answers", "lost or wrong", "search to direct path (ms)", "change to direct path (s)",
                   "token before (ms, p50)", "longest stand-still a change (s)"])
    table.note(wan.load())
    [(_, model)] = lib.models("tinymoe-a-q4_k_s")
    moves = lib.repetitions(6, 2)
    for pair in PAIRS:
        result, report = wan.in_lab(__file__, tables_of(pair), {"model": model, "moves": moves, "direct": DIRECT[pair]})
        late, in_time = wan.lateness(report)
        stands = sorted(result["gaps_ms"])[-moves:]
        table.add(" / ".join(pair), result["transport"], moves, result["answered"], len(result["wrong"]), lib.spread(result["found_ms"], "{:.0f}") if result["found_ms"] else "",
                  lib.spread(result["moves_s"], "{:.1f}") if DIRECT[pair] else "", f"{lib.median(result['steady_ms']):.0f}",
                  lib.spread([gap / 1000 for gap in stands], "{:.1f}") + ("" if in_time else f" (emulator late: {late})"))
        table.claim(not result["wrong"], f"{pair}: {len(result['wrong'])} requests lost or wrong: {result['wrong'][:1]}")
        table.claim(not result["left"], f"{pair}: the worker left: {result['left'][:1]}")
        table.claim(result["transport"] == ("quic" if DIRECT[pair] else "relay"), f"{pair}: ends on {result['transport']}")
    table.note("Every change gives the worker's NAT another address, so that all its connections are dead without a word. Answers of 24 tokens each, streamed, one after the "
               "other; each must be the text of plain llama.cpp. A stand-still is the time between two tokens. A direct path that fell silent is left after one second and three "
               "round trips; then the relay carries the session, and a new path is looked for.")
    return table


if __name__ == "__main__":
    wan.run_inside(inside)
    lib.finish(measure())
