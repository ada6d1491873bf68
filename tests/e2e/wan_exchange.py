#!/usr/bin/env python3
"""One dispatch and its combine over a WAN: sizes, round trips, losses, pauses and transports. Each run has two nodes of its own in the lab."""
import itertools
import os
import tempfile

import lib
import wan
from lib import Table

SIZES = ((6144, 6144), (12288, 12288), (12288, 98304))
LOSSES = ((0, 1), (0.005, 1), (0.005, 4), (0.02, 1), (0.02, 4))  # share of packets in each direction, and how many in a row
PAUSES_MS = (0, 400, 2000)
RTTS_MS = (80, 20, 150)
RUNS = 3
AT_ONCE = 30  # runs in one lab: a matter of processors
COUNTS = {0: 100, 400: 60, 2000: 20}
LIMIT_S = 60


def grid():
    """(rtt, (out, back), (loss, burst), pause): all of them with --full, else all of 80 ms and corners of the others; --quick: fewer still."""
    everything = list(itertools.product(RTTS_MS, SIZES, LOSSES, PAUSES_MS))
    if lib.full:
        return everything
    if lib.quick:
        return [(80, SIZES[0], loss, 0) for loss in LOSSES[:3]] + [(80, SIZES[1], LOSSES[1], 0), (80, SIZES[2], LOSSES[0], 2000), (80, SIZES[2], LOSSES[1], 0)]
    return [cell for cell in everything if cell[0] == 80 or (cell[2] in (LOSSES[0], LOSSES[1]) and cell[3] != 400)]


def inside(argument):
    """All runs of one lab at once."""
    with tempfile.TemporaryDirectory(prefix="linkcpp-exchange-") as folder:
        for run in argument:
            run["server"] = wan.serve(run["transport"], f"s{run['pair']}", os.path.join(folder, str(run["pair"])))
        for run in argument:
            run["server"].wait_for("^ready", 30)
        asking = [wan.ask(run["transport"], f"c{run['pair']}", os.path.join(folder, str(run["pair"])), [wan.address(f"s{run['pair']}")], run["options"])
                  for run in argument]
        return [wan.answer_of(process, LIMIT_S * 3) for process in asking]


def lab_of(runs):
    """Every run's server lies at the end of a line that is as long as the whole way."""
    tables = []
    for run in runs:
        tables += [("node", {"name": f"c{run['pair']}"}),
                   ("node", {"name": f"s{run['pair']}", "delay_ms": run["rtt"] / 2, "loss": run["loss"], "burst": run["burst"]})]
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
        run.update(result=result, late=text, in_time=good, realised=wan.realised_loss(report, f"s{run['pair']}"))


def runs_of(transport, cell):
    rtt, (out, back), (loss, burst), pause = cell
    options = {"out": out, "back": back, "count": COUNTS[pause], "pause_ms": pause, "rtt_ms": rtt, "limit_s": LIMIT_S, "warm_up": 5}
    return [{"transport": {"name": transport.name, "listen": transport.listen, "dial": transport.dial, "options": transport.options}, "rtt": rtt, "loss": loss, "burst": burst, "pause": pause,
             "options": options} for _ in range(RUNS)]


def row(table, transport, cell, runs):
    rtt, (out, back), (loss, burst), pause = cell
    head = (transport.name, rtt, f"{out / 1024:.0f} / {back / 1024:.0f}", f"{100 * loss:g} %" + (f" in rows of {burst}" if burst > 1 else ""), pause / 1000)
    errors = [run["result"]["error"] for run in runs if "error" in run["result"]]
    good = [run for run in runs if "error" not in run["result"]]
    if not good:
        table.add(*head, "", "", errors[0], "", "", "", "")
        table.claim(False, f"{transport.name} {head[1:]}: {errors[0]}")
        return
    pooled = sorted(t / rtt for run in good for t in run["result"]["exchanges_ms"])
    medians = [run["result"]["in_rtt"]["p50"] for run in good]
    cold = [run["result"]["cold"] for run in good if "cold" in run["result"]]
    marks = ("" if all(run["in_time"] for run in good) else f" (emulator late: {good[0]['late']})") + (f" ({len(errors)} runs failed: {errors[0]})" if errors else "")
    realised = sum(run["realised"] for run in good) / len(good)
    table.add(*head, f"{100 * realised:.2f} %", f"{len(pooled)} in {len(good)}", lib.spread(medians, "{:.2f}") + marks, f"{quantile(pooled, 0.95):.2f}",
              f"{quantile(pooled, 0.99):.2f}", *((lib.spread([c[key] / rtt for c in cold], "{:.2f}") if cold else "") for key in ("link_ms", "first_exchange_ms")))
    if loss == 0 and back <= 12288:
        table.claim(lib.median(medians) <= 1.1, f"{transport.name} {head[1:]}: {lib.median(medians):.2f} RTT without loss, more than 1.1")
    table.claim(not errors, f"{transport.name} {head[1:]}: {len(errors)} of {len(runs)} runs failed: {errors[:1]}")


def quantile(ordered, share):
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def measure():
    table = Table("wan-exchange", "One exchange over a WAN, in round trips of its path",
                  ["transport", "RTT (ms)", "KB out / back", "loss each way", "pause (s)", "loss realised", "exchanges", "p50 (lowest-highest run)", "p95", "p99",
                   "cold: link", "cold: first exchange after it"])
    table.note(wan.load())
    known = wan.transports()
    cells = [(transport, cell) for transport in known if not transport.missing for cell in grid()]
    waiting = [(key, run) for key in cells for run in runs_of(*key)]
    # The long ones together, so that a lab is not kept for one of them.
    waiting.sort(key=lambda entry: (entry[1]["pause"], -entry[1]["loss"], -entry[1]["rtt"]))
    for first in range(0, len(waiting), AT_ONCE):
        one_lab([run for _, run in waiting[first:first + AT_ONCE]])
    for key in cells:
        row(table, *key, [run for other, run in waiting if other is key])
    for transport in known:
        if transport.missing:
            table.add(transport.name, *[""] * 6, f"not measured: {transport.missing}", *[""] * 4)
    congestion = {run["result"].get("congestion_control") for _, run in waiting if "error" not in run["result"]}
    table.note(f"{RUNS} runs of each, each between two nodes of their own, up to {AT_ONCE} runs at once in one lab; p95 and p99 of all their exchanges. Congestion "
               f"control in force: {', '.join(sorted(filter(None, congestion)))}. Links ping after 100 ms without traffic; the plain socket does not. A run stops "
               f"after {LIMIT_S} s. Emulator late (worst of all labs by p99): {max((run['late'] for _, run in waiting), key=lambda text: float(text.split('p99 ')[1].split(',')[0]))}.")
    return table


if __name__ == "__main__":
    wan.run_inside(inside)
    lib.finish(measure())
