#!/usr/bin/env python3
"""Against ggml's RPC backend with the experts overridden to it: same model, same added delay, tokens a second and bytes."""
import socket

import lib
from lib import Rig, Table

DELAYS_MS = (0, 5, 20)
REPETITIONS = 3
PROMPT = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife. " * 2


def ask(rig, server, relay, n):
    """Speeds, and bytes for each generated token: what n tokens cost more than one does."""
    lib.complete(server, PROMPT, 1)
    counted = [rig.relayed(relay)]
    lib.complete(server, PROMPT, 1)
    counted.append(rig.relayed(relay))
    answers = []
    for _ in range(lib.repetitions(REPETITIONS, 2)):
        answers.append(lib.complete(server, PROMPT, n))
        counted.append(rig.relayed(relay))
    grown = [{key: b[key] - a[key] for key in ("bytes_out", "bytes_back")} for a, b in zip(counted, counted[1:])]
    return {"text": answers[0]["content"], "prompt": [x["timings"]["prompt_per_second"] for x in answers],
            "generation": [x["timings"]["predicted_per_second"] for x in answers],
            "out": (grown[-1]["bytes_out"] - grown[0]["bytes_out"]) / (n - 1), "back": (grown[-1]["bytes_back"] - grown[0]["bytes_back"]) / (n - 1),
            "upload": counted[0]["bytes_out"]}


COMMON = ["-c", "1024", "-np", "1", "-t", "1", "--no-repack", "--no-warmup"]


def over_rpc(path, delay, n):
    with Rig(path) as rig:
        port = lib.free_port()
        rig.start("rpc_server", [lib.tool("rpc_server"), f"127.0.0.1:{port}", "--threads", "1"])
        lib.wait_until(lambda: reachable(port), 20, "the RPC server")
        address = rig.relay("rpc", f"127.0.0.1:{port}", delay)
        server = rig.llama_server(*COMMON, "--rpc", address, "--device", "RPC0", "-ngl", "0", "-ot", f"exps=RPC0[{address}]")
        return ask(rig, server.wait_ready(300), "rpc", n)


def over_linkcpp(path, delay, n, mode, wire):
    with Rig(path) as rig:
        rig.listening_worker("w1", "all", one_way_ms=delay)
        return ask(rig, rig.linked_server(*COMMON, mode=mode, wire=wire).wait_ready(300), "w1", n)


def reachable(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


def measure():
    table = Table("rpc", "Against ggml's RPC backend with the experts on it (tinymoe-a, q4_k_s; one worker or server)",
                  ["one way (ms)", "through", "prompt t/s", "generation t/s", "prompt / RPC's", "generation / RPC's", "KB out a generated token",
                   "KB back", "MB sent up to the first token"])
    for _, path in lib.models("tinymoe-a-q4_k_s"):
        for delay in lib.repetitions(DELAYS_MS, DELAYS_MS[:2]):
            n = 32 if delay < 10 else 12
            peer = over_rpc(path, delay, n)
            row(table, delay, "ggml RPC", peer, peer)
            for mode, wire in (("raw", "f32"), ("sum", "f32"), ("sum", "f16")):
                ours = over_linkcpp(path, delay, n, mode, wire)
                row(table, delay, f"linkcpp {mode} {wire.upper()}", ours, peer)
                table.claim(lib.median(ours["generation"]) > 0.9 * lib.median(peer["generation"]), f"{mode} {wire} at {delay} ms: slower than ggml RPC")
    table.note(f"llama-server on both sides, {lib.repetitions(REPETITIONS, 2)} completions of the same prompt after two warming ones, one thread each; median "
               "(lowest-highest). Bytes were counted by the relay, TLS included for linkcpp; RPC is plain TCP. The last column holds the expert "
               "weights, which RPC sends at every start.")
    return table


def row(table, delay, what, result, peer):
    form = "{:.1f}"
    table.add(delay, what, lib.spread(result["prompt"], "{:.0f}"), lib.spread(result["generation"], form),
              f"{lib.median(result['prompt']) / lib.median(peer['prompt']):.2f}", f"{lib.median(result['generation']) / lib.median(peer['generation']):.2f}",
              lib.kilobytes(result["out"]), lib.kilobytes(result["back"]), f"{result['upload'] / 1e6:.2f}")


if __name__ == "__main__":
    lib.finish(measure())
