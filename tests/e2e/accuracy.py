#!/usr/bin/env python3
"""Accuracy of the settings that are not bit-identical, on the held-out text."""
import os

import lib
from lib import Rig, Table

SETTINGS = [("sum", "f32"), ("sum", "f16"), ("raw", "f16"), ("sum", "int8"), ("raw", "int8"), ("sum", "fp8"), ("raw", "fp8")]
WORKERS = 3
THREADS = os.cpu_count() or 1


def add_row(table, name, what, report):
    table.add(name, what, report["rows"], f"{report['mean_kld']:.2e}", f"{report['mean_cosine']:.8f}", f"{report['worst_cosine']:.6f}",
              f"{100 * report['argmax_agreement']:.3f} %", f"{report['perplexity_ratio']:.6f}")


def one_model(table, name, path, text):
    settings = SETTINGS[:1] if "q4" in name else SETTINGS
    with Rig(path) as rig:
        reference = os.path.join(rig.folder, "reference")
        shape = ["--text", text, "--threads", THREADS, "--chunks", lib.repetitions(0, 12)]
        lib.run(lib.logits("eval", path, *shape, "--no-repack", "--out", reference), timeout=1800)
        rig.dialling_workers(WORKERS)
        for mode, wire in settings:
            output, _ = rig.run(lib.logits("eval", path, *shape, "--no-repack", "--against", reference, device="LINKCPP0"), timeout=1800, ok=(0, 3),
                                mode=mode, wire=wire)
            report = lib.last_json(output)
            add_row(table, name, f"{mode} {wire.upper()}", report)
            table.claim(report["mean_kld"] < 0.01 and report["argmax_agreement"] > 0.98, f"{name}, {mode} {wire}: far from plain: {report}")
        if "q4" in name:
            report = lib.last_json(lib.run(lib.logits("eval", path, *shape, "--against", reference), timeout=1800, ok=(0, 3)))
            add_row(table, name, "plain llama.cpp, repacked weights (yardstick)", report)


def measure():
    table = Table("accuracy", f"Accuracy against plain llama.cpp, {WORKERS} workers",
                  ["model", "setting", "positions", "mean KLD", "mean cosine", "worst cosine", "same top token", "perplexity ratio"])
    text = lib.prompt_text()
    for name, path in lib.models("tinymoe-a-f16", "tinymoe-a-q4_k_s", "tinymoe-b-f16", "tinymoe-c-f16"):
        one_model(table, name, path, text)
    table.note("Text: eval/all.txt in chunks of 512 tokens, positions of the second half of each. Cosines are of whole rows of logits. "
               "Raw F32 is not listed: it is bit-identical (see identity).")
    return table


if __name__ == "__main__":
    lib.finish(measure())
