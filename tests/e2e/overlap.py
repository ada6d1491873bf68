#!/usr/bin/env python3
"""Overlap: what does not depend on the routed experts (the shared expert) runs during the wait."""
import lib
from lib import Rig, Table

TOKENS, PASSES, PAIRS = 128, 10, 5


def one_run(rig, path, overlap):
    """Mean step: (time of a pass, flight and wait of a layer), milliseconds."""
    command = lib.logits("eval", path, "--text", lib.prompt_text(), "--context", TOKENS, "--chunks", PASSES, "--no-repack", "--discard",
                         device="LINKCPP0")
    output, account = rig.run(command, mode="sum", wire="f16", overlap=overlap)
    total = account["total"]
    passes = lib.batch_times(lib.last_json(output), TOKENS)
    return lib.median(passes) / 1000, total["flight_us"] / total["steps"] / 1000, total["wait_us"] / total["steps"] / 1000, total["steps"] / account["passes"]


def measure():
    table = Table("overlap", f"Overlap: tinymoe-a, {TOKENS} tokens a pass, one worker",
                  ["added round trip (ms)", "hidden work a layer (ms)", "pass without overlap (ms)", "pass with overlap (ms)", "with / without",
                   "gain a pass (ms)", "hidden work x layers (ms)"])
    for _, path in lib.models("tinymoe-a-f16") or lib.models("tinymoe-a-q4_k_s"):
        with Rig(path) as rig:
            rig.listening_worker("w1", "all", one_way_ms=0)
            runs = [one_run(rig, path, True) for _ in range(3)]
            local = max(lib.median([flight - wait for _, flight, wait, _ in runs]), 0.2)  # what ran between dispatch and combine
        for round_trip in (local, 3 * local):
            with Rig(path) as rig:
                rig.listening_worker("w1", "all", one_way_ms=round_trip / 2)
                on, off, hidden = [], [], []
                for _ in range(lib.repetitions(PAIRS, 2)):
                    off.append(one_run(rig, path, False)[0])
                    took, flight, wait, layers = one_run(rig, path, True)
                    on.append(took)
                    hidden.append(flight - wait)
            ratios = [a / b for a, b in zip(on, off)]
            gain = lib.median([b - a for a, b in zip(on, off)])
            table.add(f"{round_trip:.2f}", f"{lib.median(hidden):.2f}", lib.spread(off, "{:.1f}"), lib.spread(on, "{:.1f}"), lib.spread(ratios),
                      f"{gain:.1f}", f"{lib.median(hidden) * layers:.1f}")
            table.claim(lib.median(ratios) < 1, f"overlap gained nothing at {round_trip:.2f} ms: ratio {lib.median(ratios):.3f}")
    table.note(f"{lib.repetitions(PAIRS, 2)} interleaved pairs; median (lowest-highest). The first delay equals the local work that is there to hide. sum F16 rows.")
    return table


if __name__ == "__main__":
    lib.finish(measure())
