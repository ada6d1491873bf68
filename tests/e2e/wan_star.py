#!/usr/bin/env python3
"""Several workers at different distances, asked at once and awaited together: the wait against the slowest path alone, and what asking a second
worker does to the tail. Each run has a backbone, workers and replicas of its own in the lab."""
import itertools
import os
import tempfile

import lib
import wan
from lib import Table
from wan_exchange import quantile

STARS = {3: (20, 50, 80), 8: (20, 30, 40, 50, 60, 70, 80, 80)}  # round trips, ms
LOSSES = ((0, 1), (0.005, 1), (0.02, 4))
RUNS, COUNT, WARM_UP, LIMIT_S = 3, 200, 40, 60
SITES_AT_ONCE = 120
BYTES = 12288


def inside(argument):
    with tempfile.TemporaryDirectory(prefix="linkcpp-star-") as folder:
        servers = []
        for run in argument:
            run["home"] = os.path.join(folder, str(run["number"]))
            first = wan.serve(run["transport"], run["workers"][0], run["home"])
            first.wait_for("^ready", 30)  # it has made the keys that the others read
            servers += [first] + [wan.serve(run["transport"], name, run["home"]) for name in run["workers"][1:] + run["replicas"]]
        for server in servers:
            server.wait_for("^ready", 30)
        def dial(run, names):
            return [run["transport"]["dial"].format(host=wan.address(name)) for name in names]

        asking = [wan.ask(run["transport"], f"c{run['number']}", run["home"], dial(run, run["workers"]), run["options"], dial(run, run["replicas"]))
                  for run in argument]
        return [wan.answer_of(process, LIMIT_S * 3) for process in asking]


def new_run(transport, n, loss, hedged):
    options = {"out": BYTES, "back": BYTES, "count": lib.repetitions(COUNT, 80), "warm_up": WARM_UP, "rtt_ms": max(STARS[n]), "limit_s": LIMIT_S}
    return {"transport": transport.__dict__, "n": n, "loss": loss, "hedged": hedged, "options": options}


def nodes_of(run):
    """Worker and replica lie at the same distance, on lines that lose independently."""
    yield "node", {"name": f"c{run['number']}"}
    for names in (run["workers"], run["replicas"]):
        for name, rtt in zip(names, STARS[run["n"]]):
            yield "node", {"name": name, "delay_ms": rtt / 2, "loss": run["loss"][0], "burst": run["loss"][1]}


def labs(runs):
    """Parts of the runs that fit into one lab."""
    part, sites = [], 0
    for run in runs:
        size = 1 + run["n"] * (2 if run["hedged"] else 1)
        if part and sites + size > SITES_AT_ONCE:
            yield part
            part, sites = [], 0
        part, sites = part + [run], sites + size
    if part:
        yield part


def one_lab(runs):
    for number, run in enumerate(runs):
        names = [f"w{number}-{i}" for i in range(run["n"])]
        run.update(number=number, workers=names, replicas=[f"r{number}-{i}" for i in range(run["n"])] if run["hedged"] else [])
    results, report = wan.in_lab(__file__, [entry for run in runs for entry in nodes_of(run)], runs)
    text, good = wan.lateness(report)
    lib.say(f"a lab of {len(runs)} stars, emulator late by {text}")
    for run, result in zip(runs, results):
        run.update(result=result, late=text, in_time=good, realised=wan.realised_loss(report, *run["workers"]))


def row(table, transport, n, loss, hedged, runs):
    slowest = max(STARS[n])
    head = (transport.name, f"{n}: {' '.join(map(str, STARS[n]))}", f"{100 * loss[0]:g} %" + (f" in rows of {loss[1]}" if loss[1] > 1 else ""))
    good = [run for run in runs if "error" not in run["result"]]
    errors = [run["result"]["error"] for run in runs if "error" in run["result"]]
    table.claim(not errors, f"{head}: {len(errors)} of {len(runs)} runs failed: {errors[:1]}")
    if not good:
        return table.add(*head, "", "yes" if hedged else "no", errors[0], *[""] * 4)
    pooled = sorted(t / slowest for run in good for t in run["result"]["exchanges_ms"])
    medians = [run["result"]["in_rtt"]["p50"] for run in good]
    asked = sum(link.get("hedged", 0) for run in good for link in run["result"]["links"]) / (len(pooled) * n)
    won = sum(link.get("hedges_won", 0) for run in good for link in run["result"]["links"]) / (len(pooled) * n)
    mark = "" if all(run["in_time"] for run in good) else f" (emulator late: {good[0]['late']})"
    table.add(*head, f"{100 * sum(run['realised'] for run in good) / len(good):.2f} %", "yes" if hedged else "no", lib.spread(medians, "{:.2f}") + mark,
              f"{quantile(pooled, 0.95):.2f}", f"{quantile(pooled, 0.99):.2f}", f"{pooled[-1]:.2f}", f"{100 * asked:.1f} % / {100 * won:.1f} %" if hedged else "")
    if loss[0] == 0:
        table.claim(lib.median(medians) <= 1.1, f"{head}: {lib.median(medians):.2f} times the slowest path without loss, more than 1.1")


def measure():
    table = Table("wan-star", f"Stars: {BYTES // 1024} KB to every worker and back, awaited together, in round trips of the slowest path",
                  ["transport", "workers: round trips (ms)", "loss each way", "realised", "second worker asked after p95", "p50 (lowest-highest run)", "p95", "p99", "worst",
                   "requests hedged / won by it"])
    table.note(wan.load())
    losses = lib.repetitions(LOSSES, LOSSES[:2])
    transports = [t for t in wan.transports() if t.name in ("tcp", "quic", "ws") and not t.missing]
    transports = [t for t in transports if t.name != "ws" or lib.full]
    keys = list(itertools.product(transports, STARS, losses, (False, True)))
    waiting = [(key, new_run(*key)) for key in keys for _ in range(RUNS)]
    for part in labs([run for _, run in waiting]):
        one_lab(part)
    for key in keys:
        row(table, *key, [run for other, run in waiting if other is key])
    for n, trips in STARS.items():
        table.note(f"One after the other, {n} workers would take at least {sum(trips) / max(trips):.2f} round trips of the slowest.")
    table.note(f"{RUNS} runs of {lib.repetitions(COUNT, 80)} exchanges each, without pauses, after {WARM_UP} from which hedging learns. A replica is as far "
               "as its worker, on a line of its own.")
    return table


if __name__ == "__main__":
    wan.run_inside(inside)
    lib.finish(measure())
