#!/usr/bin/env python3
"""Fetching one slice of a gigabyte over loopback, from another node over TLS, against a plain socket copied into a file by cat.

The plain copy is a Python process that sendfile()s the same bytes into a socket, and bash's /dev/tcp read by cat: nc without nc.
"""
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time

import lib
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


def measure():
    table = Table("provisioning", "One slice of a gigabyte over loopback", ["bytes", "plain socket and cat, s", "linkcpp fetch (TLS, verified), s",
                                                                          "speed of fetch / plain, median (lowest-highest)"])
    # One expert of one layer: 3 matrices of 8192 x 20480 in f16 are 1.007 GB. Random weights would take minutes to write; zeros travel as well.
    with tempfile.TemporaryDirectory(prefix="linkcpp-provisioning-", dir=os.environ.get("LINKCPP_CACHE") or None) as folder:
        model = os.path.join(folder, "big.gguf")
        lib.run([lib.tool("synth_model"), "--out", model, "--sparse-experts", "--experts", "1", "--top-k", "1", "--layers", "1", "--n-embd", "8192",
                 "--n-ff", "20480"])
        index, home, port = os.path.join(folder, "index.json"), os.path.join(folder, "home"), free_port()
        lib.run([LINKCPP, "slice", model, "--index-only", index])
        size = lib.last_json(lib.run([LINKCPP, "inspect", model, "--json"]).replace("\n", ""))["bytes"]["experts"]
        whole = os.path.join(folder, "whole")
        with open(model, "rb") as source, open(whole, "wb") as target:  # the same bytes, not sparse
            source.seek(-size, os.SEEK_END)
            shutil.copyfileobj(source, target, 1 << 20)
        token = lib.run([LINKCPP, "token", "--home", home, "--address", f"127.0.0.1:{port}"]).strip().splitlines()[0]
        server = subprocess.Popen([LINKCPP, "share", "--index", index, "--model", model, "--home", home, "--listen", f"127.0.0.1:{port}"],
                                  stdout=subprocess.PIPE, text=True)
        threading.Thread(target=server.stdout.read, daemon=True)
        try:
            server.stdout.readline()
            plain, fetched = [], []
            for _ in range(lib.repetitions(5, 3)):
                copy, store = os.path.join(folder, "copy"), os.path.join(folder, "store")
                plain.append(plain_copy(whole, copy))
                os.remove(copy)
                begin = time.monotonic()
                lib.run([LINKCPP, "fetch", "--index", index, "--store", store, "--from", f"lks://127.0.0.1:{port}", "--join", token, "--home",
                         os.path.join(folder, "client"), "--quiet"])
                fetched.append(time.monotonic() - begin)
                shutil.rmtree(store)
        finally:
            server.terminate()
            server.wait(10)
    ratios = [p / f for p, f in zip(plain, fetched)]
    table.add(f"{size / 1e9:.3f} GB", lib.spread(plain, "{:.2f}"), lib.spread(fetched, "{:.2f}"), lib.spread(ratios, "{:.2f}"))
    table.claim(lib.median(ratios) >= 0.7, f"fetching reaches {lib.median(ratios):.2f} of the plain copy's speed, the goal is 0.7")
    return table


if __name__ == "__main__":
    lib.finish(measure())
