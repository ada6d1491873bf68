#!/usr/bin/env python3
"""Time to cut a model into slices, against copying the file with cp. Both read from the page cache and write to the same disk."""
import os
import shutil
import subprocess
import tempfile
import time

import lib
from lib import LINKCPP, Table


def seconds(command):
    subprocess.run(["sync"], check=True)
    begin = time.monotonic()
    lib.run(command)
    subprocess.run(["sync"], check=True)  # what is still in memory is not written
    return time.monotonic() - begin


def measure():
    table = Table("slicing", "linkcpp slice against cp", ["model", "cp, s", "slice, s", "slice / cp, median (lowest-highest)"])
    model = lib.synthetic_model("slicing-f16", n_embd=2048, n_ff=1024, experts=32, layers=4)
    size = os.path.getsize(model)
    ratios, copies, cuts = [], [], []
    with tempfile.TemporaryDirectory(prefix="linkcpp-slicing-", dir=os.path.dirname(model)) as folder:
        for _ in range(lib.repetitions(5, 3)):
            copy, out = os.path.join(folder, "copy.gguf"), os.path.join(folder, "out")
            copies.append(seconds(["cp", "--reflink=never", model, copy]))
            os.remove(copy)
            cuts.append(seconds([LINKCPP, "slice", model, "--out", out]))
            shutil.rmtree(out)
            ratios.append(cuts[-1] / copies[-1])
    table.add(f"{size / 1e9:.2f} GB", lib.spread(copies, "{:.2f}"), lib.spread(cuts, "{:.2f}"), lib.spread(ratios, "{:.2f}"))
    return table


if __name__ == "__main__":
    lib.finish(measure())
