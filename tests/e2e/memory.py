#!/usr/bin/env python3
"""Memory of a backbone without experts: a model of 64 GB (apparent size; its experts are holes) served from its backbone file."""
import os
import re
import tempfile

import lib
from lib import LINKCPP, Rig, Table
from swarm import engines

SHAPE = ["--experts", "512", "--layers", "10", "--n-embd", "2048", "--n-ff", "1024", "--top-k", "8"]
ROOM = 200e6


def peak_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmHWM:\s+(\d+) kB", file.read()).group(1)) * 1024


def measure():
    table = Table("memory", "Memory of a backbone without experts", ["experts", "not experts", "llama-server, peak resident", "bound"])
    with tempfile.TemporaryDirectory(prefix="linkcpp-memory-") as folder:
        model, out = os.path.join(folder, "big.gguf"), os.path.join(folder, "cut")
        lib.run([lib.tool("synth_model"), "--out", model, "--sparse-experts", *SHAPE])
        table.claim(os.stat(model).st_blocks * 512 < 1e9, "this file system keeps no holes: the model takes its full size")
        lib.run([LINKCPP, "slice", model, "--out", out, "--backbone-only"])
        backbone = os.path.join(out, "backbone-00001-of-00002.gguf")
        bytes_ = lib.last_json(lib.run([LINKCPP, "inspect", backbone, "--json"]).replace("\n", ""))["bytes"]
        with Rig(model) as rig:
            http, listen = lib.free_port(), lib.free_port()
            rig.listen = f"127.0.0.1:{listen}"
            rig._worker("w", "all", ["--join", rig.token(rig.listen)], 1, ())
            serving = rig.start("serve", [LINKCPP, "serve", "--model", backbone, "--home", rig.home, "--http", f"127.0.0.1:{http}", "--listen",
                                          rig.listen, "--admin", "none", "--slices", "none", "--deadline", "120s", "--", "-c", "512", "-t", "1",
                                          "--no-warmup"])
            serving.wait_for("ready:", 120)
            answer = lib.complete(lib.Server(serving, http), [5, 6, 7], 3)
            table.claim(answer["tokens_predicted"] == 3, f"no answer: {answer}")
            [engine] = engines(http)
            peak = peak_bytes(engine)
            serving.stop()
        bound = 1.1 * bytes_["backbone"] + ROOM
        table.add(f"{bytes_['experts'] / 1e9:.1f} GB", f"{bytes_['backbone'] / 1e6:.1f} MB", f"{peak / 1e6:.1f} MB", f"{bound / 1e6:.1f} MB")
        table.claim(peak <= bound, f"{peak / 1e6:.1f} MB resident, the bound is {bound / 1e6:.1f} MB (1.1 times what is no expert, and 200 MB)")
    return table


if __name__ == "__main__":
    lib.finish(measure())
