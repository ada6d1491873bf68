#!/usr/bin/env python3
"""Against ggml's RPC backend over the lab: the same model, its experts on the far side, 20 and 80 ms of round trip, with and without loss."""
import contextlib
import socket

import lib
import wan
from lib import Table
from wan_decode import COMMON, PROMPT

PATHS = ((20, 0), (80, 0), (80, 0.005))  # round trip in ms, loss each way
TOKENS, REPETITIONS = 16, 3
SETTINGS = (("linkcpp raw F32", "raw", "f32", ""), ("linkcpp sum F16", "sum", "f16", ""), ("linkcpp sum F16 over QUIC", "sum", "f16", "quic://"))


def inside(argument):
    """All servers run at once and are asked in turn, at each distance."""
    with contextlib.ExitStack() as stack:
        servers = {"ggml RPC": over_rpc(stack, argument["model"])}
        for name, mode, wire, scheme in SETTINGS:
            rig = stack.enter_context(wan.FarRig(argument["model"]))
            rig.far_worker("far", "all", scheme)
            servers[name] = rig.server(*COMMON, mode=mode, wire=wire)
        return [at_distance(servers, rtt, loss, argument["repetitions"]) for rtt, loss in argument["paths"]]


def over_rpc(stack, model):
    rig = stack.enter_context(wan.FarRig(model))
    with wan.within("far"):
        port = lib.free_port()
        rig.start("rpc_server", [lib.tool("rpc_server"), f"0.0.0.0:{port}", "--threads", "1"])
        lib.wait_until(lambda: reachable("127.0.0.1", port), 20, "the RPC server")
    where = f"{wan.address('far')}:{port}"
    with wan.within("backbone"):
        return rig.llama_server(*COMMON, "--rpc", where, "--device", "RPC0", "-ngl", "0", "-ot", f"exps=RPC0[{where}]").wait_ready(120)


def reachable(host, port):
    try:
        socket.create_connection((host, port), timeout=1).close()
        return True
    except OSError:
        return False


def at_distance(servers, rtt, loss, repetitions):
    wan.change("--set", "far", f"delay_ms={rtt / 2}", f"loss={loss}")
    found = {name: {"ms": [], "text": None, "error": None} for name in servers}
    for turn in range(repetitions + 1):
        for name, server in servers.items():
            if found[name]["error"]:
                continue
            try:
                answer = wan.complete(server, PROMPT, TOKENS if turn else 4)
            except OSError as error:
                found[name]["error"] = f"{type(error).__name__}: {error}"
                continue
            if turn:  # the first one gets used to the distance
                found[name]["ms"].append(answer["timings"]["predicted_per_token_ms"])
                found[name]["text"] = answer["content"]
    return {"rtt": rtt, "loss": loss, "servers": found}


def rows(table, layers, part):
    peer = part["servers"]["ggml RPC"]
    for name, found in part["servers"].items():
        head = (part["rtt"], f"{100 * part['loss']:g} %", name)
        if found["error"] or not found["ms"]:
            table.add(*head, f"failed: {found['error']}", "", "", "")
            table.claim(name == "ggml RPC", f"{name} at {part['rtt']} ms: {found['error']}")
            continue
        ratios = [theirs / ours for ours, theirs in zip(found["ms"], peer["ms"])]
        in_rtt = lib.median(found["ms"]) / part["rtt"] / layers
        table.add(*head, lib.spread(found["ms"], "{:.1f}"), f"{1000 / lib.median(found['ms']):.2f}", f"{in_rtt:.3f}", lib.spread(ratios, "{:.2f}") if ratios else "")
        if ratios:
            table.claim(lib.median(ratios) >= 0.98, f"{name} at {part['rtt']} ms: {lib.median(ratios):.2f} of ggml RPC's speed")


def measure():
    table = Table("wan-peers", "Against ggml's RPC backend over the lab (tinymoe-a, q4_k_s, one worker or server)",
                  ["RTT (ms)", "loss each way", "through", "a token (ms)", "tokens/s", "round trips a layer", "speed / RPC's"])
    table.note(wan.load())
    for _, path in lib.models("tinymoe-a-q4_k_s"):
        argument = {"model": path, "paths": PATHS, "repetitions": lib.repetitions(REPETITIONS, 2)}
        measured, report = wan.in_lab(__file__, [("node", {"name": "backbone"}), ("node", {"name": "far"})], argument)
        for part in measured:
            rows(table, 4, part)
        text, good = wan.lateness(report)
        table.note(f"Emulator late: {text}{'' if good else ' - too late to trust'}. ")
        table.claim(good, f"the emulator was too late: {text}")
    table.note(f"llama-server on both sides, one thread each, {lib.repetitions(REPETITIONS, 2)} interleaved completions of {TOKENS} tokens; the weights were sent before, without "
               "distance. RPC is plain TCP with the machine's default congestion control. `-ot` puts an expert tensor on one server only, so RPC has no star.")
    return table


if __name__ == "__main__":
    wan.run_inside(inside)
    lib.finish(measure())
