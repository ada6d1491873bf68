#!/usr/bin/env python3
"""A fat pipe, for which loopback stands in: slices of 794 MB and frames of megabytes against memcpy and iperf3, and a prompt of 2048 tokens; what it took
of both sides' processors says where the bottleneck is."""
import contextlib
import json
import os
import re
import resource
import shutil
import subprocess
import tempfile
import time

import lib
import wan
from lib import LINKCPP, Rig, Table, free_port
from overhead import bench, speed
from swarm import Process

TOTAL, EXPERTS = 794_300_000, 8
FRAME = 4 << 20
REPETITIONS = 5
PROMPT = 2048
LINKS = {"tcp": "", "ws": "ws://", "quic": "quic://"}


class Row:
    """What one way of moving bytes took, again and again."""

    def __init__(self, name, size):
        self.name, self.size, self.seconds, self.cpu = name, size, [], []

    def add(self, seconds, sender, receiver):
        self.seconds.append(seconds)
        self.cpu.append((sender, receiver))

    def rate(self):
        return [self.size / seconds / 1e9 for seconds in self.seconds]

    def put(self, table, reference):
        sender, receiver = ([pair[i] for pair in self.cpu if pair[i] is not None] for i in (0, 1))
        table.add(self.name, f"{self.size / 1e6:.0f}", lib.spread(self.seconds, "{:.2f}"), lib.spread(self.rate(), "{:.3f}"), f"{lib.median(self.rate()) / reference:.3f}",
                  *(f"{lib.median(cpu):.2f}" if cpu else "" for cpu in (sender, receiver)),
                  *(f"{100 * lib.median(cpu) / lib.median(self.seconds):.0f} %" if cpu else "" for cpu in (sender, receiver)))


def children_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def memcpy(row):
    source, target = bytearray(row.size), bytearray(row.size)
    target[:] = source  # the pages are there
    begin = time.monotonic()
    memoryview(target)[:] = source
    row.add(time.monotonic() - begin, None, None)


def iperf(row):
    """Three seconds: of a number of bytes it takes whole seconds. Time and processors are reckoned for as many bytes as the others move."""
    port = free_port()
    server = Process("iperf3", ["iperf3", "-s", "-1", "--forceflush", "-p", str(port)])
    server.wait_for("listening", 10)
    result = json.loads(lib.run(["iperf3", "-c", "127.0.0.1", "-p", str(port), "-C", "cubic", "-t", "3", "-J"]))["end"]
    seconds = row.size / (result["sum_received"]["bits_per_second"] / 8)
    row.add(seconds, *(result["cpu_utilization_percent"][side] / 100 * seconds for side in ("host_total", "remote_total")))
    server.child.wait(10)


def make_distinct(model):
    """Writes a number into every MiB behind the header: without that all slices would be the same zeros, and be sent once."""
    with open(model, "r+b") as file:
        for at in range(32 << 20, os.path.getsize(model), 1 << 20):
            file.seek(at)
            file.write(at.to_bytes(8, "little"))


class Slices:
    """A model's slices, given by a node and fetched by another."""

    def __init__(self, stack):
        self.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="linkcpp-pipe-", dir=os.environ.get("LINKCPP_CACHE") or None))
        model, cut, home, port = (os.path.join(self.folder, "big.gguf"), os.path.join(self.folder, "cut"), os.path.join(self.folder, "home"), free_port())
        lib.run([lib.tool("synth_model"), "--out", model, "--sparse-experts", "--experts", str(EXPERTS), "--top-k", "1", "--layers", "1", "--n-embd", "4096", "--n-ff",
                 "4040"])
        make_distinct(model)
        lib.run([LINKCPP, "slice", model, "--out", cut])
        self.index = os.path.join(cut, "index.json")
        self.size = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(os.path.join(cut, "objects")) for name in names)
        if self.size < 0.99 * TOTAL:
            raise AssertionError(f"the slices are {self.size} bytes, {TOTAL} were meant: some are the same")
        token = lib.run([LINKCPP, "token", "--home", home, "--address", f"127.0.0.1:{port}"]).strip().splitlines()[0]
        self.server = subprocess.Popen([LINKCPP, "share", "--index", self.index, "--model", model, "--home", home, "--listen", f"127.0.0.1:{port}"],
                                       stdout=subprocess.PIPE, text=True)
        stack.callback(self.server.wait, 10)
        stack.callback(self.server.terminate)
        self.server.stdout.readline()
        self.source = ["--from", f"lks://127.0.0.1:{port}", "--join", token, "--home", os.path.join(self.folder, "client")]

    def fetch(self, row):
        store = os.path.join(self.folder, "store")
        sender, receiver, begin = lib.cpu_seconds(self.server.pid), children_cpu(), time.monotonic()
        lib.run([LINKCPP, "fetch", "--index", self.index, "--store", store, "--quiet", *self.source])
        row.add(time.monotonic() - begin, lib.cpu_seconds(self.server.pid) - sender, children_cpu() - receiver)
        shutil.rmtree(store)


class Link:
    """link_bench whose answers are large."""

    def __init__(self, stack, scheme):
        self.home, self.scheme = stack.enter_context(tempfile.TemporaryDirectory(prefix="linkcpp-pipe-")), scheme
        server = Process("link_bench", [lib.tool("link_bench"), "serve", "--home", self.home, "--listen", "127.0.0.1:0"])
        stack.callback(server.stop)
        self.port = server.wait_for("^ready", 10).rsplit(":", 1)[1]

    def run(self, row):
        done = lib.last_json(lib.run([lib.tool("link_bench"), "ask", "--home", self.home, f"{self.scheme}127.0.0.1:{self.port}", "--out", "64", "--back", str(FRAME), "--count",
                                      str(row.size // FRAME), "--warm-up", "5"]))
        row.add(sum(done["exchanges_ms"]) / 1000, done["cpu_s"]["servers"], done["cpu_s"]["client"])


def prefill(table, reference, path, mode, wire, batch):
    """One pass a prompt; the two sides are the backbone and the worker."""
    with Rig(path) as rig:
        worker = rig.listening_worker("w1", "all")
        command = bench(path, 1, PROMPT, 0, "LINKCPP0") + ["-b", str(PROMPT), "-ub", str(batch)]
        row = None
        for _ in range(lib.repetitions(3, 1)):
            before, children = lib.cpu_seconds(worker.child.pid), children_cpu()
            output, account = rig.run(command, mode=mode, wire=wire)
            passes = len(next(json.loads(line)["samples_ts"] for line in output.splitlines() if line.startswith("{"))) + 1  # and the warming one
            total = account["total"]
            row = row or Row(f"prompt of {PROMPT}, {batch} at a time, {mode} {wire.upper()}", (total["bytes_out"] + total["bytes_in"]) // passes)
            row.add(PROMPT / speed(output), (children_cpu() - children) / passes, (lib.cpu_seconds(worker.child.pid) - before) / passes)
        row.put(table, reference)


def plain_prefill(table, path):
    """The same prompt without any swarm."""
    seconds = [PROMPT / speed(lib.run(bench(path, 1, PROMPT, 0) + ["-b", str(PROMPT), "-ub", "512"])) for _ in range(lib.repetitions(3, 1))]
    table.add(f"prompt of {PROMPT}, 512 at a time, plain llama.cpp", "", lib.spread(seconds, "{:.2f}"), *[""] * 6)


def openssl_rate():
    """GB/s of AES-128-GCM in records of 16 KiB on one core, or None."""
    try:
        output = lib.run(["openssl", "speed", "-seconds", "1", "-bytes", "16384", "-evp", "aes-128-gcm"])
    except (OSError, AssertionError):
        return None
    found = re.search(r"^AES-128-GCM\s+([\d.]+)k", output, re.M | re.I)
    return float(found.group(1)) * 1e-6 if found else None


def measure():
    table = Table("wan-pipe", "A fat pipe: loopback at full speed",
                  ["what", "MB", "seconds", "GB/s", "of iperf3", "CPU s, sender (backbone)", "CPU s, receiver (worker)", "busy, sender", "busy, receiver"])
    table.note(wan.load())
    with contextlib.ExitStack() as stack:
        slices = Slices(stack)
        ways = [(Row("memcpy", slices.size), memcpy), (Row("iperf3", slices.size), iperf), (Row("linkcpp fetch of a node's slices (verified, TLS)", slices.size), slices.fetch)]
        for name, scheme in LINKS.items():
            link = Link(stack, scheme)
            ways.append((Row(f"frames of 4 MiB over a link, {name}", slices.size), link.run))
        failed = {}
        for turn in range(lib.repetitions(REPETITIONS, 2) + 1):
            for row, move in ways:
                if row.name in failed:
                    continue
                try:
                    move(row)
                except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
                    failed[row.name] = str(error).strip().splitlines()[-1]
                if turn == 0:  # in the first the machine finds its memory
                    row.seconds.clear()
                    row.cpu.clear()
    reference = lib.median(ways[1][0].rate())
    for row, _ in ways:
        if row.name in failed:
            table.add(row.name, "", f"failed: {failed[row.name]}", *[""] * 6)
            table.claim(False, f"{row.name}: {failed[row.name]}")
        else:
            row.put(table, reference)
    wide = lib.synthetic_model("wide-3072-4", n_embd=3072, n_ff=64, experts=16, top_k=8, layers=4)
    plain_prefill(table, wide)
    for mode, wire, batch in (("raw", "f32", 512), ("sum", "f32", 512), ("sum", "f16", 512), ("sum", "f16", 2048)):
        prefill(table, reference, wide, mode, wire, batch)
    rate = openssl_rate()
    table.note("Both sides share the machine's cores. Frames are asked for one after the other, so that a link's two sides take turns. The prompt's bytes are those of all frames, "
               "in both directions, of one pass; its seconds include all computing, and its processor time that of the engine (synthetic model: 4 layers, 3072, 16 experts of 64, top 8; of the last layer the engine computes the last token alone).")
    table.note(f"AES-128-GCM in records of 16 KiB on one core: {f'{rate:.2f} GB/s, on each side' if rate else 'not measured, there is no openssl'}.")
    return table


if __name__ == "__main__":
    lib.finish(measure())
