#!/usr/bin/env python3
"""Which pairs of NATs let two nodes find a direct path: every pair of kinds of the lab, in real network namespaces, at a round trip of 80 ms, with a relay
in the middle that carries the offers and answers STUN. What theory says of each pair is written here, and must be what happens."""
import itertools
import os
import tempfile

import lib
import wan
from lib import Table

RTT_MS = 80
GOAL_MS = 1000  # from the start of the search to an authenticated connection
KINDS = ("none", "full-cone", "address-restricted", "port-restricted", "symmetric", "carrier-grade")
# What a kind does to punching: whether others see one port whoever they are, and whether only answers from exactly that port come in. A carrier-grade NAT
# is a home's behind a carrier's, both port-restricted: together they are like one of these.
SAME_PORT = {kind: kind != "symmetric" for kind in KINDS}
PORT_COUNTS = {kind: kind in ("port-restricted", "symmetric", "carrier-grade") for kind in KINDS}
PAIRS_AT_ONCE = 18


def theory(dialler, listener):
    """Packets pass in both directions once each side has sent to where the other's come from. The port of a symmetric NAT is not known before its first
    packet has come, and none comes through to a side that lets in only ports that it has sent to."""
    blind = [(a, b) for a, b in ((dialler, listener), (listener, dialler)) if not SAME_PORT[a] and PORT_COUNTS[b]]
    return "relayed" if blind else "direct"


def side(name, kind):
    """The node of one side, with its NATs, a quarter of the round trip away from everybody."""
    line = {"delay_ms": RTT_MS / 4}
    if kind == "none":
        return [("node", {"name": name} | line)]
    if kind == "carrier-grade":
        return [("nat", {"name": "carrier-" + name, "kind": "port-restricted"} | line),
                ("nat", {"name": "home-" + name, "kind": "port-restricted", "behind": "carrier-" + name, "delay_ms": 0}),
                ("node", {"name": name, "behind": "home-" + name})]
    return [("nat", {"name": "nat-" + name, "kind": kind} | line), ("node", {"name": name, "behind": "nat-" + name})]


def names(pair):
    return f"d{pair['number']}", f"l{pair['number']}"


def transport():
    return next(t for t in wan.transports() if t.name == "punched").__dict__


def inside(argument):
    """One turn after the other; in each, all pairs at once, every one in new processes, so that their NATs know nothing of them."""
    results = [[] for _ in argument["pairs"]]
    with tempfile.TemporaryDirectory(prefix="linkcpp-nats-") as folder:
        relay, kind = wan.address("relay"), transport()
        wan.start_relay("relay", os.path.join(folder, "relay"))
        for _ in range(argument["turns"]):
            for first in range(0, len(argument["pairs"]), PAIRS_AT_ONCE):
                part = argument["pairs"][first:first + PAIRS_AT_ONCE]
                homes = [os.path.join(folder, str(pair["number"])) for pair in part]
                servers = [wan.serve(kind, names(pair)[1], home, relay) for pair, home in zip(part, homes)]
                asking = [wan.ask(kind, names(pair)[0], home, [wan.address_of(kind, server, names(pair)[1])], argument["options"], relay=relay)
                          for pair, home, server in zip(part, homes, servers)]
                for pair, process in zip(part, asking):
                    results[pair["number"]].append(wan.answer_of(process, 60))
                for server in servers:
                    server.stop()
    return results


def seen(result):
    return "direct" if result["punch"]["direct"] else "relayed"


def row(table, pair, results):
    head = (pair["dialler"], pair["listener"])
    expected = theory(*head)
    errors = [result["error"] for result in results if "error" in result]
    good = [result for result in results if "error" not in result]
    table.claim(not errors, f"{head}: {len(errors)} of {len(results)} runs failed: {errors[:1]}")
    if not good:
        return table.add(*head, expected, errors[0], *[""] * 4)
    found = [result for result in good if seen(result) == "direct"]
    table.claim(all(seen(result) == expected for result in good), f"{head}: {len(found)} of {len(good)} runs found a direct path, theory says {expected}")
    times = [result["punch"]["direct_ms"] for result in found]
    table.claim(not times or max(times) <= GOAL_MS, f"{head}: the direct path took {max(times, default=0):.0f} ms, more than {GOAL_MS}")
    exchanges = [result["ms"]["p50"] / RTT_MS for result in good]
    table.add(*head, expected, f"{len(found)} of {len(good)} direct", lib.spread([r["punch"]["found_ms"] for r in found], "{:.0f}") if found else "",
              lib.spread(times, "{:.0f}") if times else "", " ".join(sorted({result["links"][0]["kind"] for result in good})), lib.spread(exchanges, "{:.2f}"))


def measure():
    table = Table("nat-matrix", f"Pairs of NATs at a round trip of {RTT_MS} ms: who finds a direct path, and how fast",
                  ["who dials is behind", "who listens is behind", "theory", "seen", "an answer came after (ms)", "connected after (ms)", "link in the end",
                   "exchange of 12 KB (round trips)"])
    table.note(wan.load())
    ordered = list(itertools.product(KINDS, KINDS))
    kept = ordered if not lib.quick else [(a, b) for a, b in ordered if KINDS.index(a) <= KINDS.index(b)]
    pairs = [{"number": number, "dialler": a, "listener": b} for number, (a, b) in enumerate(kept)]
    tables = [("node", {"name": "relay"})]
    for pair in pairs:
        for name, kind in zip(names(pair), (pair["dialler"], pair["listener"])):
            tables += side(name, kind)
    turns = lib.repetitions(3, 1)
    results, report = wan.in_lab(__file__, tables, {"pairs": pairs, "turns": turns,
                                                    "options": {"out": 12288, "back": 12288, "count": 10, "warm_up": 2, "rtt_ms": RTT_MS}})
    for pair, result in zip(pairs, results):
        row(table, pair, result)
    text, good = wan.lateness(report)
    table.claim(good, f"the emulator was late: {text}")
    table.note(f"{turns} runs of each pair, {PAIRS_AT_ONCE} pairs at once. Times count from the start of the search, when the relayed link is there. A search without success ends "
               f"after 5 s and the relayed link stays. Carrier-grade: a port-restricted NAT behind another one, both sides with carriers of their own. Emulator late by {text}.")
    return table


if __name__ == "__main__":
    wan.run_inside(inside)
    lib.finish(measure())
