#!/usr/bin/env python3
"""Against ggml's RPC backend with the experts overridden to it: same model, same added delay, tokens a second and bytes."""
import contextlib
import socket

import lib
from lib import Rig, Table

DELAYS_MS = (0, 5, 20)
REPETITIONS, TOKENS = 3, 24
PROMPT = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife. " * 2
COMMON = ["-c", "1024", "-np", "1", "-t", "1", "--no-repack", "--no-warmup"]


class Side:
    """One llama-server with its experts elsewhere, behind a relay."""

    def __init__(self, name, rig, server, relay):
        self.name, self.rig, self.server, self.relay = name, rig, server.wait_ready(300), relay
        self.prompt, self.generation = [], []
        lib.complete(self.server, PROMPT, 1)
        before = self.counted()
        self.upload = before["bytes_out"]
        lib.complete(self.server, PROMPT, 1)
        middle = self.counted()
        self.text = lib.complete(self.server, PROMPT, TOKENS)["content"]
        after = self.counted()
        # What further tokens cost: the completion of many less that of one.
        self.out, self.back = ((after[key] - 2 * middle[key] + before[key]) / (TOKENS - 1) for key in ("bytes_out", "bytes_back"))

    def counted(self):
        return self.rig.relayed(self.relay)

    def repeat(self):
        timings = lib.complete(self.server, PROMPT, TOKENS)["timings"]
        self.prompt.append(timings["prompt_per_second"])
        self.generation.append(timings["predicted_per_second"])


def over_rpc(stack, path, delay):
    rig = stack.enter_context(Rig(path))
    port = lib.free_port()
    rig.start("rpc_server", [lib.tool("rpc_server"), f"127.0.0.1:{port}", "--threads", "1"])
    lib.wait_until(lambda: reachable(port), 20, "the RPC server")
    address = rig.relay("rpc", f"127.0.0.1:{port}", delay)
    return Side("ggml RPC", rig, rig.llama_server(*COMMON, "--rpc", address, "--device", "RPC0", "-ngl", "0", "-ot", f"exps=RPC0[{address}]"), "rpc")


def over_linkcpp(stack, path, delay, mode, wire):
    rig = stack.enter_context(Rig(path))
    rig.listening_worker("w1", "all", one_way_ms=delay)
    return Side(f"linkcpp {mode} {wire.upper()}", rig, rig.linked_server(*COMMON, mode=mode, wire=wire), "w1")


def reachable(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


def one_delay(table, path, delay):
    """All servers run at once and are asked in turn, so that they meet the same machine."""
    with contextlib.ExitStack() as stack:
        sides = [over_rpc(stack, path, delay)] + [over_linkcpp(stack, path, delay, *setting) for setting in (("raw", "f32"), ("sum", "f32"), ("sum", "f16"))]
        for _ in range(lib.repetitions(REPETITIONS, 2)):
            for side in sides:
                side.repeat()
    peer = sides[0]
    for side in sides:
        prompt, generation = ([a / b for a, b in zip(ours, theirs)] for ours, theirs in ((side.prompt, peer.prompt), (side.generation, peer.generation)))
        table.add(delay, side.name, f"{lib.median(side.prompt):.0f}", f"{lib.median(side.generation):.1f}", lib.spread(prompt, "{:.2f}"),
                  lib.spread(generation, "{:.2f}"), lib.kilobytes(side.out), lib.kilobytes(side.back), f"{side.upload / 1e6:.2f}")
        table.claim(lib.median(generation) > 0.9, f"{side.name} at {delay} ms: slower than ggml RPC")


def measure():
    table = Table("rpc", "Against ggml's RPC backend with the experts on it (tinymoe-a, q4_k_s; one worker or server)",
                  ["one way (ms)", "through", "prompt t/s", "generation t/s", "prompt / RPC's", "generation / RPC's", "KB out a generated token", "KB back",
                   "MB sent up to the first token"])
    for _, path in lib.models("tinymoe-a-q4_k_s"):
        for delay in lib.repetitions(DELAYS_MS, DELAYS_MS[:2]):
            one_delay(table, path, delay)
    table.note(f"llama-server on both sides, one thread each, {lib.repetitions(REPETITIONS, 2)} interleaved completions of the same prompt after warming ones; "
               "medians, and the ratio to RPC in the same round (lowest-highest). Bytes were counted by the relay, TLS included for linkcpp; RPC is "
               "plain TCP. The last column holds the expert weights, which RPC sends at every start.")
    return table


if __name__ == "__main__":
    lib.finish(measure())
