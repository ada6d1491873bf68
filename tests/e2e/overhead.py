#!/usr/bin/env python3
"""Overhead: dispatch to workers on the same machine against plain llama.cpp on the same cores with equal total compute."""
import json

import lib
from lib import Rig, Table

PAIRS, REPETITIONS = 5, 4


def bench(path, threads, n_prompt, n_gen, device=None):
    where = ("-dev", device, "-ngl", 99) if device else ("-ngl", 0)
    return ["llama-bench", "-m", path, *map(str, ("-t", threads, "-p", n_prompt, "-n", n_gen, "-r", REPETITIONS, "-lm", "none", "-o", "jsonl", "--repack", 0, *where))]


def speed(output):
    """Tokens a second of a run with one test. The first repetition is left out: caches fill, and connections begin."""
    return lib.median(next(json.loads(line)["samples_ts"] for line in output.splitlines() if line.startswith("{"))[1:])


def one_phase(rig, path, cores, n_prompt, n_gen, mode, wire):
    """Ratios of times (linkcpp / plain) of interleaved pairs, and the account of the last linked run."""
    ratios, account = [], {}
    for _ in range(lib.repetitions(PAIRS, 2)):
        plain = speed(lib.run(rig.prefix + bench(path, cores, n_prompt, n_gen)))
        output, account = rig.run(bench(path, cores, n_prompt, n_gen, "LINKCPP0"), mode=mode, wire=wire)
        ratios.append(plain / speed(output))
    return ratios, account["total"]


def one_setting(table, name, path, cores, mode, n_prompt, n_gen, wire="f32"):
    """`cores` threads on each side, all processes on the same `cores` cores."""
    with Rig(path) as rig:
        rig.prefix = ["taskset", "-c", "0" if cores == 1 else f"0-{cores - 1}"]
        rig.listening_worker("w1", "all", threads=cores)
        for phase, prompt, generated in ((f"prompt of {n_prompt}", n_prompt, 0), ("generation", 0, n_gen)):
            ratios, total = one_phase(rig, path, cores, prompt, generated, mode, wire)
            flight, compute, queued, wait = (total[key] / total["steps"] for key in ("flight_us", "compute_us", "queued_us", "wait_us"))
            table.add(name, f"{mode} {wire.upper()}", cores, phase, lib.spread(ratios), f"{flight:.0f}", f"{compute:.0f}", f"{queued:.0f}",
                      f"{flight - compute - queued:.0f}", f"{wait:.0f}")


def measure():
    table = Table("overhead", "Overhead of dispatch on one machine: time of linkcpp / time of plain llama.cpp, same cores, same number of threads",
                  ["model", "setting", "cores", "phase", "time / plain's", "flight of a layer (us)", "= worker's compute", "+ queued", "+ wire and wake-ups",
                   "waited (us)"])
    big = lib.synthetic_model("wide-2048-q4_0", n_embd=2048, n_ff=768, experts=64, top_k=8, layers=6, type="q4_0")
    for cores in (1, 2):
        for mode in ("raw", "sum"):
            for name, path in lib.models("tinymoe-a-q4_k_s"):
                one_setting(table, name, path, cores, mode, 256, 64)
            one_setting(table, "synthetic 2048, 64 experts of 768, top 8, q4_0", big, cores, mode, 64, 16)
    table.note(f"{lib.repetitions(PAIRS, 2)} interleaved pairs of llama-bench runs; median (lowest-highest) of the ratio of times: 1.00 is no overhead. No weights are "
               f"repacked on either side, and none are mapped by llama.cpp, which would else meet page faults that the older worker does not; each run is the median of {REPETITIONS - 1}. "
               " Flight is from dispatch to the last answer; the last five columns are means over all dispatches of the last run.")
    return table


if __name__ == "__main__":
    lib.finish(measure())
