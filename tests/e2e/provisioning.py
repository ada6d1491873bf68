#!/usr/bin/env python3
"""Fetching one slice of a gigabyte over loopback, from another node over TLS and from nginx in the clear, against a plain socket copied
into a file by cat.

The plain copy is a Python process that sendfile()s the same bytes into a socket, and bash's /dev/tcp read by cat: nc without nc.
"""
import os
import shutil
import socket
import subprocess
import tempfile
import time

import lib
from fetch import nginx
from lib import LINKCPP, Table, free_port


def plain_copy(source, target):
    """Seconds for `cat </dev/tcp/127.0.0.1/PORT >target` from a process that sends a file."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    sender = os.fork()
    if sender == 0:
        connection, _ = listener.accept()
        with open(source, "rb") as file:
            connection.sendfile(file)
        os._exit(0)
    listener.close()
    begin = time.monotonic()
    subprocess.run(["bash", "-c", f"cat </dev/tcp/127.0.0.1/{port} >{target}"], check=True)
    passed = time.monotonic() - begin
    os.waitpid(sender, 0)
    return passed


def fetch(folder, index, *source):
    """Seconds; the store is empty before and after."""
    store = os.path.join(folder, "store")
    begin = time.monotonic()
    lib.run([LINKCPP, "fetch", "--index", index, "--store", store, "--quiet", *source])
    passed = time.monotonic() - begin
    shutil.rmtree(store)
    return passed


def measure():
    table = Table("provisioning", "One slice of a gigabyte over loopback",
                  ["bytes", "from", "plain socket and cat, s", "linkcpp fetch (verified), s", "speed of fetch / plain: median of pairs (lowest-highest)",
                   "of the fastest runs"])
    # One expert of one layer: 3 matrices of 8192 x 20480 in f16 are 1.007 GB. Random weights would take minutes to write; zeros travel as well.
    with tempfile.TemporaryDirectory(prefix="linkcpp-provisioning-", dir=os.environ.get("LINKCPP_CACHE") or None) as folder:
        model = os.path.join(folder, "big.gguf")
        lib.run([lib.tool("synth_model"), "--out", model, "--sparse-experts", "--experts", "1", "--top-k", "1", "--layers", "1", "--n-embd", "8192",
                 "--n-ff", "20480"])
        cut, home, port = os.path.join(folder, "cut"), os.path.join(folder, "home"), free_port()
        lib.run([LINKCPP, "slice", model, "--out", cut])
        index = os.path.join(cut, "index.json")
        [whole] = (os.path.join(at, name) for at, _, names in os.walk(os.path.join(cut, "objects")) for name in names)
        size = os.path.getsize(whole)
        token = lib.run([LINKCPP, "token", "--home", home, "--address", f"127.0.0.1:{port}"]).strip().splitlines()[0]
        server = subprocess.Popen([LINKCPP, "share", "--index", index, "--model", model, "--home", home, "--listen", f"127.0.0.1:{port}"],
                                  stdout=subprocess.PIPE, text=True)
        try:
            server.stdout.readline()
            with nginx(folder, cut) as (url, _):
                sources = {"a node (TLS)": ["--from", f"lks://127.0.0.1:{port}", "--join", token, "--home", os.path.join(folder, "client")],
                           "nginx (http)": ["--from", url + "/"]}
                copy = os.path.join(folder, "copy")
                seconds = {name: [] for name in sources}
                for turn in range(lib.repetitions(9, 3) + 1):
                    for name, source in sources.items():
                        plain = plain_copy(whole, copy)
                        os.remove(copy)
                        fetched = fetch(folder, index, *source)
                        if turn > 0:  # in the first the machine finds its memory
                            seconds[name].append((plain, fetched))
        finally:
            server.terminate()
            server.wait(10)
    for name, pairs in seconds.items():
        plain, fetched = zip(*pairs)
        ratios = [p / f for p, f in pairs]
        table.add(f"{size / 1e9:.3f} GB", name, lib.spread(plain, "{:.2f}"), lib.spread(fetched, "{:.2f}"), lib.spread(ratios, "{:.2f}"), f"{min(plain) / min(fetched):.2f}")
        table.claim(lib.median(ratios) >= 0.7, f"fetching from {name} reaches {lib.median(ratios):.2f} of the plain copy's speed, the goal is 0.7")
    return table


if __name__ == "__main__":
    lib.finish(measure())
