#!/usr/bin/env python3
"""Decoding over a WAN with the real program: llama-server with the plugin, workers in nodes of the lab, each lever alone, against the bound: the model's
own computing, and one round trip of a plain socket for every layer."""
import contextlib
import json
import tempfile

import lib
import wan
from lib import Table

PROMPT = "It is"  # short: the rows of a long prompt come in bursts that the emulator hands over too slowly
COMMON = ("-c", "512", "-np", "1", "-t", "1", "--no-repack", "--no-warmup")
RTTS_MS = (0, 20, 80)
SHARES = {"far": 1, "middle": 0.6, "near": 0.25}  # of the round trip; one worker is far, a star of three at all of them
TOKENS, REPETITIONS = 16, 3
#          name, mode, wire, star, scheme
SETTINGS = [("raw F32", "raw", "f32", False, ""), ("sum F32", "sum", "f32", False, ""), ("sum F16", "sum", "f16", False, ""), ("sum INT8", "sum", "int8", False, ""),
            ("star of 3, raw F32", "raw", "f32", True, ""), ("star of 3, sum F32", "sum", "f32", True, ""),
            ("raw F32 over WebSocket", "raw", "f32", False, "ws://"), ("sum F32 over WebSocket", "sum", "f32", False, "ws://"),
            ("raw F32 over QUIC", "raw", "f32", False, "quic://"), ("sum F32 over QUIC", "sum", "f32", False, "quic://"),
            ("raw F32 over a relay", "raw", "f32", False, "relay://"), ("sum F32 over a relay", "sum", "f32", False, "relay://")]
# Its worker is where the sum of the relay's legs is the round trip: a quarter to the relay, three quarters from there.
LINES = {**{where: share / 2 for where, share in SHARES.items()}, "relay": 1 / 8, "beyond": 1 / 4}
DIRECT_GOAL, RELAY_GOAL = 1.012, 1.05  # a token / bound; a token by the relay / a token by the direct path


# ---- inside ----------------------------------------------------------------------------------------------------------


class Side:
    """One server and what it took for a token."""

    def __init__(self, stack, path, name, mode=None, wire=None, star=False, scheme=""):
        self.name, self.star = name, star
        self.rig = stack.enter_context(wan.FarRig(path))
        if scheme == "relay://":
            self.rig.relayed_worker("beyond", "all", f"relay://{wan.address('relay')}:{wan.RELAY_PORT}")
        elif mode:
            for i, where in enumerate(SHARES if star else ["far"], 1):
                self.rig.far_worker(where, f"{i}/{len(SHARES)}" if star else "all", scheme)
        self.server = self.rig.server(*COMMON, mode=mode, wire=wire, path="fixed") if mode else self.rig.server(*COMMON, linked=False)
        self.ms, self.before, self.error = [], {}, None

    def ask(self, n):
        if self.error:
            return None
        try:
            return wan.complete(self.server, PROMPT, n)["timings"]["predicted_per_token_ms"]
        except OSError as error:
            self.error = f"{type(error).__name__}: {error}"
            return None

    def begin(self):
        """Links and windows get used to the new distance."""
        self.ms = []
        self.ask(6)
        self.before = self.account()

    def repeat(self):
        took = self.ask(TOKENS)
        if took is not None:
            self.ms.append(took)

    def account(self):
        return lib.last_account(self.server.status) if hasattr(self.server, "status") else {}

    def result(self):
        """Of each worker: tokens times layers that it was asked for, and bytes: for each such token they are about the same in prompts and in decoding."""
        now, before = self.account(), self.before
        workers = {name: {key: worker[key] - before.get("workers", {}).get(name, {}).get(key, 0) for key in ("tokens", "bytes_out", "bytes_in")}
                   for name, worker in now.get("workers", {}).items()}
        return {"name": self.name, "star": self.star, "ms": self.ms, "error": self.error, "workers": workers}


def ping_pong(sizes):
    """Median of a plain socket's exchange to each worker's node, in ms."""
    found = {}
    for where in SHARES:
        process = wan.ask({"name": "plain socket"}, "backbone", "", [f"{wan.address(where)}:7000"],
                          {"out": sizes[0], "back": sizes[1], "count": 30, "warm_up": 8})
        found[where] = wan.answer_of(process, 60)
    return found


def inside(argument):
    for where in SHARES:
        wan.serve({"name": "plain socket", "listen": "0.0.0.0:7000"}, where, "").wait_for("^ready", 20)
    results = []
    with contextlib.ExitStack() as stack:
        wan.start_relay("relay", stack.enter_context(tempfile.TemporaryDirectory()))
        plain = Side(stack, argument["model"], "plain llama.cpp")
        sides = [plain]
        for setting in argument["settings"]:
            try:
                sides.append(Side(stack, argument["model"], *setting))
            except AssertionError as error:
                results.append({"rtt": 0, "sides": [{"name": setting[0], "error": str(error).splitlines()[-1], "star": False, "ms": [], "workers": {}}], "ping": {}})
        for rtt in argument["rtts"]:
            for where, share in LINES.items():
                wan.change("--set", where, f"delay_ms={rtt * share}")
            for side in sides:
                side.begin()
            json.loads(wan.change("--report", "--fresh"))
            for _ in range(argument["repetitions"]):
                for side in sides:
                    side.repeat()
            late = json.loads(wan.change("--report"))
            ended = [side.result() for side in sides]
            sizes = {side["name"]: layer_bytes(side) for side in ended if side["workers"] and not side["star"]}
            results.append({"rtt": rtt, "sides": ended, "report": late, "ping": {str(size): ping_pong(size) for size in set(sizes.values())}})
    return results


def layer_bytes(side):
    """Out and back of one layer of a token, with one worker."""
    [worker] = side["workers"].values()
    return tuple(max(8, round(worker[key] / max(1, worker["tokens"]))) for key in ("bytes_out", "bytes_in"))


# ---- outside ---------------------------------------------------------------------------------------------------------


def asked_for(part):
    """Tokens times layers of the same completions: what a worker was asked for that is alone."""
    return max([worker["tokens"] for side in part["sides"] if not side["star"] for worker in side["workers"].values()] or [1])


def chain_ms(side, ping, layers, tokens):
    """What asking each touched worker of a star after the other would take a token: measured single paths, added."""
    total = 0
    for where in SHARES:
        worker = side["workers"].get(f"at-{where}", {"tokens": 0})
        total += worker["tokens"] / tokens * ping[where]["ms"]["p50"]
    return layers * total


def rows(table, model, layers, measured, tokens_claim):
    for part in measured:
        plain = next((side["ms"] for side in part["sides"] if side["name"] == "plain llama.cpp"), [])
        late, in_time = wan.lateness(part["report"]) if "report" in part else ("", True)
        for side in part["sides"]:
            if side["name"] == "plain llama.cpp":
                table.add(model, part["rtt"], side["name"], *[""] * 2, lib.spread(side["ms"], "{:.1f}"), f"{1000 / lib.median(side['ms']):.1f}", *[""] * 3)
            elif side.get("error") or not side["ms"]:
                table.add(model, part["rtt"], side["name"], *[""] * 2, f"failed: {side.get('error')}", *[""] * 4)
                table.claim(False, f"{model}, {side['name']} at {part['rtt']} ms: {side.get('error')}")
            else:
                one_row(table, model, layers, part, side, plain, "" if in_time else f" (emulator late: {late})", tokens_claim)


def one_row(table, model, layers, part, side, plain, mark, tokens_claim):
    rtt = part["rtt"]
    out, back = (sum(worker[key] for worker in side["workers"].values()) / asked_for(part) for key in ("bytes_out", "bytes_in"))
    pings = part["ping"]
    ping = pings.get(str(layer_bytes(side))) if not side["star"] else next(iter(pings.values()), None)
    socket = ping["far"]["ms"]["p50"] if ping else rtt
    bound = lib.median(plain) + layers * socket
    over = [ms / bound for ms in side["ms"]]
    chain = f"{chain_ms(side, ping, layers, asked_for(part)) + lib.median(plain):.0f}" if side["star"] and ping else ""
    table.add(model, rtt, side["name"], f"{out:.0f} / {back:.0f}", f"{socket:.2f}", lib.spread(side["ms"], "{:.1f}") + mark, f"{1000 / lib.median(side['ms']):.2f}", f"{bound:.1f}",
              lib.spread(over, "{:.3f}"), chain)
    if tokens_claim and rtt == 80 and side["name"] == "sum F32":
        table.claim(lib.median(over) <= DIRECT_GOAL, f"{model}, {side['name']} at {rtt} ms: {lib.median(over):.3f} of the bound, the goal is {DIRECT_GOAL}")
    if tokens_claim and rtt == 80 and side["name"].endswith(" over a relay"):
        direct = next((other["ms"] for other in part["sides"] if other["name"] + " over a relay" == side["name"]), [])
        ratio = lib.median(side["ms"]) / lib.median(direct) if direct else 0
        table.note(f"{model}, {side['name']} at {rtt} ms: {ratio:.3f} times a token by the direct path.")
        table.claim(0 < ratio <= RELAY_GOAL, f"{model}, {side['name']} at {rtt} ms: {ratio:.3f} times the direct path, the goal is {RELAY_GOAL}")


def measure():
    table = Table("wan-decode", "Decoding over a WAN, a token at a time",
                  ["model", "RTT (ms)", "setting", "bytes a layer, out / back", "plain socket (ms)", "a token (ms)", "tokens/s", "bound (ms)", "token / bound",
                   "chain (ms, calculated)"])
    table.note(wan.load())
    wide = lib.synthetic_model("wide-3072", n_embd=3072, n_ff=64, experts=16, top_k=8, layers=2)
    tables = [("node", {"name": "backbone"})] + [("node", {"name": where}) for where in LINES]
    rtts = lib.repetitions(RTTS_MS, (0, 80))
    for model, layers, path, claims in [(name, 4, path, True) for name, path in lib.models("tinymoe-a-q4_k_s")] + [("synthetic, 3072, top 8", 2, wide, False)]:
        measured, _ = wan.in_lab(__file__, tables, {"model": path, "rtts": rtts, "repetitions": lib.repetitions(REPETITIONS, 2), "settings": SETTINGS})
        rows(table, model, layers, measured, claims)
    table.note(f"llama-server with the plugin in one node, one thread each, {lib.repetitions(REPETITIONS, 2)} interleaved completions of {TOKENS} tokens after a prompt of a few; median "
               "(lowest-highest). All servers stay up while the distance changes under them. The bound is plain llama.cpp's time for a token, computing all experts here, and for each layer one "
               "exchange of the same sizes over a plain socket of the same lab at that moment, to the farthest worker (which a star does not touch in every layer, so that it can be below this bound). A star's workers are at "
               f"{', '.join(f'{share:g}' for share in SHARES.values())} of the round trip. The product has no chain: its figure adds the measured single paths of the "
               "touched workers. A quarter of the way to the worker behind a relay is before the relay; the sum of its legs is the round trip.")
    return table


if __name__ == "__main__":
    wan.run_inside(inside)
    lib.finish(measure())
