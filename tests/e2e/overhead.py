#!/usr/bin/env python3
"""Overhead: dispatch to workers on the same machine against plain llama.cpp on the same cores with equal total compute."""
import json

import lib
from lib import Rig, Table

PAIRS = 6


def bench(repack, threads, n_prompt, n_gen, device):
    options = ["-t", threads, "-p", n_prompt, "-n", n_gen, "-r", 1, "-o", "jsonl", "--repack", int(repack), "-fa", "auto"]
    return [str(x) for x in (*options, *(("-dev", device, "-ngl", 99) if device else ("-ngl", 0)))]


def speeds(output):
    """(prompt, generation) tokens a second."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return next(x["avg_ts"] for x in lines if x["n_gen"] == 0), next(x["avg_ts"] for x in lines if x["n_prompt"] == 0)


def one_setting(table, name, path, cores, mode, n_prompt, n_gen, wire="f32"):
    """`cores` threads on each side, all processes on the same `cores` cores."""
    with Rig(path) as rig:
        rig.prefix = ["taskset", "-c", "0" if cores == 1 else f"0-{cores - 1}"]
        rig.listening_worker("w1", "all", threads=cores)
        prompt, generation, account = [], [], {}
        for _ in range(PAIRS):
            command = ["llama-bench", "-m", path]
            plain = speeds(lib.run(rig.prefix + command + bench(False, cores, n_prompt, n_gen, None)))
            output, account = rig.run(command + bench(False, cores, n_prompt, n_gen, "LINKCPP0"), mode=mode, wire=wire)
            linked = speeds(output)
            prompt.append(plain[0] / linked[0])
            generation.append(plain[1] / linked[1])
        total = account["total"]
        steps = total["steps"]
        table.add(name, f"{mode} {wire.upper()}", cores, lib.spread(prompt), lib.spread(generation), f"{total['flight_us'] / steps:.0f}",
                  f"{total['compute_us'] / steps:.0f}", f"{total['queued_us'] / steps:.0f}",
                  f"{(total['flight_us'] - total['compute_us'] - total['queued_us']) / steps:.0f}")


def measure():
    table = Table("overhead", "Overhead of dispatch on one machine: time of linkcpp / time of plain llama.cpp, same cores, same number of threads",
                  ["model", "setting", "cores", "prompt", "generation", "layer's flight (us)", "worker's compute", "queued", "wire and wake-ups"])
    big = lib.synthetic_model("wide-2048-q4_0", n_embd=2048, n_ff=768, experts=64, top_k=8, layers=6, type="q4_0")
    for cores in (1, 2):
        for mode in ("raw", "sum"):
            for name, path in lib.models("tinymoe-a-q4_k_s"):
                one_setting(table, name, path, cores, mode, 256, 96)
            one_setting(table, "synthetic 2048, 64 experts of 768, top 8, q4_0", big, cores, mode, 128, 24)
    table.note(f"{PAIRS} interleaved pairs of llama-bench runs; median (lowest-highest) of the ratio of times: 1.00 is no overhead. No weights are "
               "repacked on either side. The last four columns are means over all dispatches of the last run, prompt and generation mixed.")
    return table


if __name__ == "__main__":
    lib.finish(measure())
