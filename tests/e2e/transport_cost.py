#!/usr/bin/env python3
"""What a transport costs in processor time: of both ends of a link on loopback, a GB in frames of 4 MiB and a message of 12 KB, against TCP with TLS."""
import contextlib
import os
import subprocess
import tempfile

import lib
from lib import Table
from swarm import Process, web_server

FRAME, MESSAGE = 4 << 20, 12288
# Address of the link, options of the side that dials (the one that masks). {port} is the node's, {web} that of nginx in front of it.
REFERENCE = "tcp"
WAYS = {REFERENCE: ("tcp://127.0.0.1:{port}", ()), "ws": ("ws://127.0.0.1:{port}/", ()), "ws, masks with zeros": ("ws://127.0.0.1:{port}/", ("--no-websocket-mask",)),
        "wss, through nginx": ("wss://localhost:{web}/swarm/", ()), "quic": ("quic://127.0.0.1:{port}", ())}


class Nginx:
    """A web server with TLS before a node, and its processor time."""

    def __init__(self, stack, folder, port):
        location = (f"location /swarm/ {{ proxy_pass http://127.0.0.1:{port}; proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; "
                    "proxy_set_header Connection upgrade; }")
        self.port, home = stack.enter_context(web_server(folder, location, tls=True))
        self.certificate = os.path.join(home, "cert.pem")
        with open(os.path.join(home, "pid")) as file:
            master = file.read().strip()
        lib.wait_until(lambda: self.children(master), 5, "nginx's worker")
        self.workers = self.children(master)

    @staticmethod
    def children(pid):
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return file.read().split()

    def cpu(self):
        return sum(map(lib.cpu_seconds, self.workers))


class Node:
    """Answers on one port over TCP, WebSocket and QUIC."""

    def __init__(self, stack):
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="linkcpp-cost-"))
        self.home = os.path.join(folder, "home")
        server = Process("link_bench", [lib.tool("link_bench"), "serve", "--home", self.home, "--listen", "127.0.0.1:0"])
        stack.callback(server.stop)
        self.port = server.wait_for("^ready", 10).rsplit(":", 1)[1]
        self.nginx = Nginx(stack, folder, self.port)

    def ask(self, way, size, count):
        """Processor seconds of (both ends, nginx), and how long it took."""
        address, options = WAYS[way]
        before = self.nginx.cpu()
        done = lib.run([lib.tool("link_bench"), "ask", "--home", self.home, address.format(port=self.port, web=self.nginx.port), "--out", str(size), "--back", str(size),
                        "--count", str(count), "--warm-up", "10", *options], env=dict(lib.BASE_ENV, SSL_CERT_FILE=self.nginx.certificate))
        result = lib.last_json(done)
        return sum(result["cpu_s"].values()), self.nginx.cpu() - before, sum(result["exchanges_ms"]) / 1000


class Row:
    """Of one way: cost in each turn, in `unit` parts."""

    def __init__(self):
        self.ends, self.nginx, self.seconds = [], [], []

    def add(self, measured, unit):
        for values, seconds in zip((self.ends, self.nginx, self.seconds), measured):
            values.append(seconds / unit)

    def cells(self, reference, form):
        """Cost of both ends, its ratio to the reference's in the same turn, and nginx's."""
        ratios = [own / other for own, other in zip(self.ends, reference.ends)]
        nginx = form.format(lib.median(self.nginx)) if lib.median(self.nginx) > 0 else ""
        return lib.spread(self.ends, form), lib.spread(ratios, "{:.2f}"), nginx


def turn(node, gigabytes, messages, failed):
    """Every way once, so that what the machine does besides meets all of them."""
    moved, sent = lib.repetitions(1 << 30, 1 << 28), lib.repetitions(10000, 3000)
    for way in WAYS:
        if way in failed:
            continue
        try:
            gigabytes[way].add(node.ask(way, FRAME, moved // (2 * FRAME)), moved / 1e9)
            messages[way].add(node.ask(way, MESSAGE, sent), 2 * sent / 1e6)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            failed[way] = str(error).strip().splitlines()[-1]


def measure():
    table = Table("transport-cost", "Processor time of a link's transports on loopback, both ends together",
                  ["transport", "CPU s a GB", "against tcp", "of nginx besides", "GB/s", "CPU µs a message of 12 KB", "against tcp", "of nginx besides", "exchange (µs)"])
    table.note(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    gigabytes, messages, failed = {way: Row() for way in WAYS}, {way: Row() for way in WAYS}, {}
    turns = lib.repetitions(3, 2)
    with contextlib.ExitStack() as stack:
        node = Node(stack)
        for _ in range(turns):
            turn(node, gigabytes, messages, failed)
    for way in WAYS:
        if not table.claim(way not in failed, f"{way}: {failed.get(way)}") or REFERENCE in failed:
            table.add(way, f"failed: {failed.get(way, REFERENCE)}", *[""] * 7)
            continue
        rate = lib.spread([1 / seconds for seconds in gigabytes[way].seconds], "{:.2f}")
        exchange = lib.spread([2 * us for us in messages[way].seconds], "{:.0f}")
        table.add(way, *gigabytes[way].cells(gigabytes[REFERENCE], "{:.2f}"), rate, *messages[way].cells(messages[REFERENCE], "{:.1f}"), exchange)
    table.note(f"{turns} turns, each way once in each; ratios are those of the same turn. Frames and messages go in both directions one after the other: the side that dials sends "
               "one, the other answers with as much. Making and filling them is in it, for all alike. TCP, WebSocket and QUIC carry the same TLS 1.3; wss adds the web "
               "server's, and nginx's part stands besides. Only the side that dials masks.")
    return table


if __name__ == "__main__":
    lib.finish(measure())
