#!/usr/bin/env python3
"""Bytes a layer and token, out and back, for each touched worker: the account's and those that a relay counts on the wire."""
import lib
from lib import Rig, Table

N_EMBD, TOP_K = 3072, 8
# Rows a token, out and back for one worker that computes all selected experts.
EXPECTED = {("raw", "f32"): (N_EMBD * 4, N_EMBD * 4 * TOP_K), ("sum", "f32"): (N_EMBD * 4, N_EMBD * 4),
            ("sum", "f16"): (N_EMBD * 2, N_EMBD * 2), ("raw", "f16"): (N_EMBD * 2, N_EMBD * 2 * TOP_K),
            ("sum", "int8"): (N_EMBD + N_EMBD // 32 * 2,) * 2, ("sum", "fp8"): (N_EMBD + N_EMBD // 128 * 4,) * 2}


def near(value, expected):
    """Never below, and above by two per cent of headers and the router weights at most."""
    return expected <= value <= expected * 1.02 + 4 * TOP_K


def one_setting(table, path, n_workers, mode, wire):
    with Rig(path) as rig:
        for i in range(1, n_workers + 1):
            rig.listening_worker(f"w{i}", f"{i}/{n_workers}", one_way_ms=0)
        command = lib.logits("record", path, "--text", lib.prompt_text(), "--lengths", 1, "--n-decode", 63, "--parallel", 1, "--no-repack",
                             "--discard", device="LINKCPP0")
        _, account = rig.run(command, mode=mode, wire=wire)
        for i in range(1, n_workers + 1):
            worker = account["workers"][f"w{i}"]
            rows = worker["tokens"]
            out, back = worker["bytes_out"] / rows, worker["bytes_in"] / rows
            share = 1 - (worker["payload_out"] + worker["payload_in"]) / (worker["bytes_out"] + worker["bytes_in"])
            relayed = rig.relayed(f"w{i}")
            on_wire = (relayed["bytes_out"] + relayed["bytes_back"]) / (worker["bytes_out"] + worker["bytes_in"])
            table.add(f"{mode} {wire.upper()}", n_workers, f"w{i}", f"{worker['pairs'] / rows:.2f}", lib.kilobytes(out), lib.kilobytes(back),
                      f"{100 * share:.2f} %", f"{on_wire:.3f}")
            expect_out, expect_back = EXPECTED[mode, wire]
            if mode == "raw":  # a row for each of this worker's experts
                expect_back = expect_back / TOP_K * worker["pairs"] / rows
            what = f"{mode} {wire}, {n_workers} workers, w{i}"
            table.claim(near(out, expect_out), f"{what}: {out:.0f} bytes out a layer and token, expected {expect_out:.0f}")
            table.claim(near(back, expect_back), f"{what}: {back:.0f} bytes back a layer and token, expected {expect_back:.0f}")
            table.claim(share < 0.02, f"{what}: headers are {100 * share:.2f} % of the bytes")


def measure():
    table = Table("bytes", f"Bytes a layer and token (n_embd {N_EMBD}, top-{TOP_K}), for each touched worker, one token a pass",
                  ["setting", "workers", "worker", "experts a token", "KB out", "KB back", "headers", "on TCP / frames"])
    path = lib.synthetic_model("wide-3072", n_embd=N_EMBD, n_ff=64, experts=16, top_k=TOP_K, layers=2)
    for mode, wire in EXPECTED:
        for n_workers in (1, 2):
            one_setting(table, path, n_workers, mode, wire)
    table.note("KB out and back count whole frames before encryption. 'On TCP' is what a relay counted, everything included: TLS, the handshake, "
               "the program, keep-warm pings.")
    return table


if __name__ == "__main__":
    lib.finish(measure())
