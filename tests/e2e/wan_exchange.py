#!/usr/bin/env python3
"""One dispatch and its combine over a WAN: sizes, round trips, losses, pauses and transports; and, for wan_first.py, what
the first answer costs. Each run has two nodes of its own in the lab. A relay lies in the middle, so that its legs are half the way each."""
import itertools
import os
import tempfile

import lib
import wan
from lib import Table

SIZES = ((6144, 6144), (12288, 12288), (12288, 98304))
SMALL, MIDDLE, LARGE = SIZES
LOSSES = ((0, 1), (0.005, 1), (0.005, 4), (0.02, 1), (0.02, 4))  # share of packets in each direction, and how many in a row
NO_LOSS, HALF, HALF_IN_ROWS, TWO, TWO_IN_ROWS = LOSSES
PAUSES_MS = (0, 400, 2000)
RTTS_MS = (80, 20, 150)
AT_ONCE = 30  # runs in one lab: a matter of processors
LIMIT_S = 60
DIRECT_GOAL, RELAY_GOAL = 1.1, 1.05  # round trips of an exchange that fits into a first window, without loss
COLD_GOAL, RESUMED_GOAL = 2.0, 1.1   # ... from dialling to the first answer


def runs_a_cell():
    return lib.repetitions(3, 2)


def count(pause):
    return {0: lib.repetitions(100, 40), 400: lib.repetitions(60, 15), 2000: 20}[pause]


def grid(transport):
    """(rtt, (out, back), (loss, burst), pause). Default: what the goals speak of, and one step in each direction from there; variants of QUIC where they
    differ. --full: everything."""
    if lib.full:
        return list(itertools.product(RTTS_MS, SIZES, LOSSES, PAUSES_MS))
    if transport.name.startswith("quic") and transport.name != "quic":
        return [] if lib.quick else [(80, SMALL, HALF, 0), (80, LARGE, HALF, 0), (80, LARGE, NO_LOSS, 2000)]
    if lib.quick:
        return [(80, SMALL, NO_LOSS, 0), (80, SMALL, HALF, 0), (80, LARGE, NO_LOSS, 0), (80, LARGE, NO_LOSS, 400)]
    near = [(80, size, loss, 0) for size in SIZES for loss in (NO_LOSS, HALF, HALF_IN_ROWS, TWO)] + [(80, MIDDLE, TWO_IN_ROWS, 0)]
    idle = [(80, size, NO_LOSS, 2000) for size in SIZES] + [(80, LARGE, NO_LOSS, 400)]
    far = [(rtt, size, loss, 0) for rtt in RTTS_MS[1:] for size in (SMALL, LARGE) for loss in (NO_LOSS, HALF)]
    return near + idle + far


# ---- in the lab ------------------------------------------------------------------------------------------------------


def inside(argument):
    """All runs of one lab at once."""
    with tempfile.TemporaryDirectory(prefix="linkcpp-exchange-") as folder:
        relay = ""
        if any(run["transport"]["relayed"] for run in argument):
            relay = wan.address("relay")
            wan.start_relay("relay", os.path.join(folder, "relay"))
        for run in argument:
            run["home"] = os.path.join(folder, str(run["pair"]))
            run["server"] = wan.serve(run["transport"], f"s{run['pair']}", run["home"], relay)
        addresses = [wan.address_of(run["transport"], run["server"], f"s{run['pair']}") for run in argument]
        asking = [wan.ask(run["transport"], f"c{run['pair']}", run["home"], [address], run["options"], relay=relay)
                  for run, address in zip(argument, addresses)]
        return [wan.answer_of(process, LIMIT_S * 3) for process in asking]


def lab_of(runs):
    """Every run's server lies at the end of a line that is as long as the whole way; where a relay helps, client and server are equally far from it. Only
    the server's line loses."""
    tables = [("node", {"name": "relay"})]
    for run in runs:
        names = {side: f"{side}{run['pair']}" for side in "cs"}
        halves = {"c": run["rtt"] / 4, "s": run["rtt"] / 4} if run["transport"]["relayed"] else {"c": 0, "s": run["rtt"] / 2}
        lines = {side: {"delay_ms": delay} for side, delay in halves.items()}
        lines["s"].update(loss=run["loss"], burst=run["burst"])
        kind = run["transport"]["behind"]
        for side, name in names.items():
            if kind:
                tables += [("nat", {"name": "n" + name, "kind": kind} | lines[side]), ("node", {"name": name, "behind": "n" + name})]
            else:
                tables.append(("node", {"name": name} | lines[side]))
    return tables


def one_lab(runs):
    """Runs them and adds to each its result, the loss that there was, and whether the emulator was in time."""
    for number, run in enumerate(runs):
        run["pair"] = number
    fields = ("pair", "transport", "options")
    results, report = wan.in_lab(__file__, lab_of(runs), [{key: run[key] for key in fields} for run in runs])
    text, good = wan.lateness(report)
    lib.say(f"a lab of {len(runs)} runs, emulator late by {text}")
    for run, result in zip(runs, results):
        line = ("n" if run["transport"]["behind"] else "") + f"s{run['pair']}"
        run.update(result=result, late=text, in_time=good, realised=wan.realised_loss(report, line))


def all_labs(waiting):
    for first in range(0, len(waiting), AT_ONCE):
        one_lab([run for _, run in waiting[first:first + AT_ONCE]])


def new_run(transport, rtt, loss, **options):
    return {"transport": transport.__dict__, "rtt": rtt, "loss": loss[0], "burst": loss[1], "options": {"rtt_ms": rtt, "limit_s": LIMIT_S, **options}}


def worst_late(runs):
    return max((run["late"] for run in runs), key=lambda text: float(text.split("p99 ")[1].split(",")[0]))


# ---- exchanges -------------------------------------------------------------------------------------------------------


def runs_of(transport, cell):
    rtt, (out, back), loss, pause = cell
    return [new_run(transport, rtt, loss, out=out, back=back, count=count(pause), pause_ms=pause, warm_up=5) for _ in range(runs_a_cell())]


def check(table, what, transport, cell, runs, medians):
    rtt, (_, back), (loss, _), _ = cell
    if loss == 0 and back <= MIDDLE[1]:
        goal = RELAY_GOAL if transport.name == "relay" else DIRECT_GOAL
        table.claim(lib.median(medians) <= goal, f"{what}: {lib.median(medians):.2f} RTT without loss, more than {goal}")
    if transport.behind:
        relayed = [run["result"]["punch"]["state"] for run in runs if not run["result"]["punch"]["direct"]]
        table.claim(not relayed, f"{what}: {len(relayed)} of {len(runs)} runs had no direct path: {relayed[:1]}")


def row(table, transport, cell, runs):
    rtt, (out, back), (loss, burst), pause = cell
    head = (transport.name, rtt, f"{out / 1024:.0f} / {back / 1024:.0f}", f"{100 * loss:g} %" + (f" in rows of {burst}" if burst > 1 else ""), pause / 1000)
    what = f"{transport.name} {head[1:]}"
    errors = [run["result"]["error"] for run in runs if "error" in run["result"]]
    good = [run for run in runs if "error" not in run["result"]]
    table.claim(not errors, f"{what}: {len(errors)} of {len(runs)} runs failed: {errors[:1]}")
    if not good:
        return table.add(*head, "", "", errors[0], "", "")
    pooled = sorted(t / rtt for run in good for t in run["result"]["exchanges_ms"])
    medians = [run["result"]["in_rtt"]["p50"] for run in good]
    marks = ("" if all(run["in_time"] for run in good) else f" (emulator late: {good[0]['late']})") + (f" ({len(errors)} runs failed: {errors[0]})" if errors else "")
    realised = sum(run["realised"] for run in good) / len(good)
    table.add(*head, f"{100 * realised:.2f} %", f"{len(pooled)} in {len(good)}", lib.spread(medians, "{:.2f}") + marks, f"{quantile(pooled, 0.95):.2f}",
              f"{quantile(pooled, 0.99):.2f}")
    check(table, what, transport, cell, good, medians)


def quantile(ordered, share):
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def punched(runs):
    """A sentence on how long direct paths took."""
    found = [run["result"]["punch"]["direct_ms"] / run["rtt"] for run in runs if run["result"].get("punch", {}).get("direct")]
    return f"Punched paths were there {lib.spread(found, '{:.1f}')} round trips after the search began, from {len(found)} runs." if found else "No path was punched."


def exchanges(known):
    table = Table("wan-exchange", "One exchange over a WAN, in round trips of its path",
                  ["transport", "RTT (ms)", "KB out / back", "loss each way", "pause (s)", "loss realised", "exchanges", "p50 (lowest-highest run)", "p95", "p99"])
    table.note(wan.load())
    cells = [(transport, cell) for transport in known if not transport.missing for cell in grid(transport)]
    waiting = [(key, run) for key in cells for run in runs_of(*key)]
    # The long ones together, so that a lab is not kept for one of them.
    waiting.sort(key=lambda entry: (entry[1]["options"]["pause_ms"], -entry[1]["loss"], -entry[1]["rtt"], -entry[1]["options"]["back"]))
    all_labs(waiting)
    for key in cells:
        row(table, *key, [run for other, run in waiting if other is key])
    for transport in known:
        if transport.missing:
            table.add(transport.name, *[""] * 6, f"not measured: {transport.missing}", *[""] * 2)
    runs = [run for _, run in waiting]
    congestion = {run["result"].get("congestion_control") for run in runs if "error" not in run["result"]}
    table.note(f"{runs_a_cell()} runs of each, each between two nodes of their own, up to {AT_ONCE} runs at once in one lab; p95 and p99 of all their exchanges. "
               f"Congestion control in force: {', '.join(sorted(filter(None, congestion)))}. Links ping after 100 ms without traffic; the plain socket does not. A run "
               f"stops after {LIMIT_S} s. Emulator late (worst of all labs by p99): {worst_late(runs)}.")
    table.note("relay: both nodes dial `linkcpp relay`, which lies in the middle; the round trip is the sum of its two legs. punched: QUIC between two nodes behind "
               "port-restricted NATs. " + punched(runs))
    return table


# ---- the first answer ------------------------------------------------------------------------------------------------


def first_answers(known):
    table = Table("wan-first", "From the call that dials to the first answer, in round trips",
                  ["transport", "RTT (ms)", "KB out / back", "times", "cold (lowest-highest run)", "cold, worst", "resumed (lowest-highest run)", "resumed, worst"])
    names = ("tcp", "quic") if lib.quick else ("tcp", "ws", "quic", "relay")
    keys = list(itertools.product([t for t in known if t.name in names], RTTS_MS[:1] if lib.quick else sorted(RTTS_MS), (SMALL,) if lib.quick else (SMALL, MIDDLE)))
    redials = lib.repetitions(10, 4)
    waiting = [(key, new_run(transport, rtt, NO_LOSS, out=out, back=back, count=1, warm_up=0, redials=redials)) for key in keys
               for transport, rtt, (out, back) in [key] for _ in range(runs_a_cell())]
    waiting.sort(key=lambda entry: entry[1]["rtt"])
    all_labs(waiting)
    for key in keys:
        first_answer_row(table, *key, [run for other, run in waiting if other is key])
    table.note(f"{redials} times in each of {runs_a_cell()} runs, in a process that runs already: every time a new dialer, without tickets; then, with QUIC, from one socket "
               "with the ticket of the connection before, the request in the first packets. Over TCP nothing is resumed. Through a relay, connecting to it is in it. "
               f"Emulator late (worst by p99): {worst_late([run for _, run in waiting])}.")
    return table


def first_answer_row(table, transport, rtt, size, runs):
    head = (transport.name, rtt, f"{size[0] / 1024:.0f} / {size[1] / 1024:.0f}")
    errors = [run["result"]["error"] for run in runs if "error" in run["result"]]
    good = [run["result"]["redials"] for run in runs if "error" not in run["result"]]
    if not table.claim(not errors, f"first answer, {head}: {len(errors)} of {len(runs)} runs failed: {errors[:1]}"):
        return table.add(*head, "", errors[0], *[""] * 3)

    def cells(kind, goal):
        times = [[t / rtt for t in run[kind]] for run in good]
        if not any(times):
            return "", ""
        medians = [lib.median(run) for run in times]
        if goal:
            table.claim(lib.median(medians) <= goal, f"first answer, {head}, {kind}: {lib.median(medians):.2f} RTT, more than {goal}")
        return lib.spread(medians, "{:.2f}"), f"{max(map(max, times)):.2f}"
    # Goals are for what fits into QUIC's first window.
    cold, resumed = (COLD_GOAL, RESUMED_GOAL) if transport.name == "quic" and size == SMALL else (None, None)
    table.add(*head, sum(len(run["cold_ms"]) for run in good), *cells("cold_ms", cold), *cells("resumed_ms", resumed))


def measure():
    return exchanges(wan.transports())


if __name__ == "__main__":
    wan.run_inside(inside)
    lib.finish(measure())
