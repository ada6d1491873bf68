#!/usr/bin/env python3
"""Slicing: cut, verify, damage, resume after SIGKILL; and the backbone without experts against plain llama-server."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import lib
from lib import LINKCPP, Rig

MODEL = lib.find_model("tinymoe-a-q4_k_s")


def slice_(*arguments):
    return subprocess.run([LINKCPP, "slice", *map(str, arguments)], capture_output=True, text=True, timeout=300)


def cut(model, out, *more):
    done = slice_(model, "--out", out, "--json", *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def objects(folder):
    return sorted(os.path.join(path, name) for path, _, names in os.walk(os.path.join(folder, "objects")) for name in names)


def test_cut_verify_damage(folder):
    out = os.path.join(folder, "cut")
    first = cut(MODEL, out)
    assert first["written"] > 0 and len(objects(out)) == first["written"], first
    assert slice_("--verify", out).returncode == 0
    again = cut(MODEL, out)
    assert again["index"] == first["index"] and again["written"] == 0, again
    victim = objects(out)[3]
    with open(victim, "r+b") as file:
        file.seek(100)
        byte = file.read(1)
        file.seek(100)
        file.write(bytes([byte[0] ^ 1]))
    found = slice_("--verify", out)
    assert found.returncode == 2 and os.path.basename(victim) in found.stderr, found.stderr
    assert slice_("--verify", out).returncode == 3, "it was removed"
    assert cut(MODEL, out)["written"] == 1
    assert slice_("--verify", out).returncode == 0
    holes = os.path.join(out, "backbone-00002-of-00002.gguf")
    with open(holes, "rb") as file:
        before = file.read()
    os.remove(holes)
    assert slice_("--restore-holes", out).returncode == 0
    with open(holes, "rb") as file:
        assert file.read() == before
    token = subprocess.run([LINKCPP, "token", "--home", os.path.join(folder, "home"), "--address", "127.0.0.1:1"], capture_output=True, text=True,
                           check=True).stdout.strip()
    worker = subprocess.run([LINKCPP, "worker", "--join", token, "--home", os.path.join(folder, "home"), "--model", os.path.join(out, "backbone-00001-of-00002.gguf")],
                            capture_output=True, text=True, timeout=60)
    assert worker.returncode == 2 and "no experts" in worker.stderr, worker.stderr
    foreign = os.path.join(folder, "foreign")
    os.mkdir(foreign)
    with open(os.path.join(foreign, "letter.txt"), "w"):
        pass
    assert slice_(MODEL, "--out", foreign).returncode == 2


def test_resumes_after_kill(folder):
    model = lib.synthetic_model("slice-f16", n_embd=1024, n_ff=512, experts=64, layers=4)
    out = os.path.join(folder, "killed")
    child = subprocess.Popen([LINKCPP, "slice", model, "--out", out, "--threads", "1"], stderr=subprocess.DEVNULL)
    lib.wait_until(lambda: len(objects(out)) >= 5, 60, "objects")
    child.send_signal(signal.SIGKILL)
    child.wait()
    there = len(objects(out))
    assert 5 <= there < 256, there
    done = cut(model, out)
    assert done["kept"] >= there - 1 and done["written"] + done["kept"] == 256, (there, done)
    assert slice_("--verify", out).returncode == 0


def test_backbone_answers_like_the_whole_model(folder):
    out = os.path.join(folder, "cut")
    cut(MODEL, out)
    options = ["-c", "1024", "-np", "1", "-t", "1", "--no-repack"]
    with Rig(MODEL) as rig:
        plain = rig.llama_server(*options).wait_ready()
        expected = lib.complete(plain, "It is a truth universally", 24, n_probs=5)
        plain.process.stop()
        ports = [lib.free_port() for _ in range(2)]
        rig.listen = f"127.0.0.1:{ports[1]}"
        token = rig.token(rig.listen)
        for i in (1, 2):
            rig._worker(f"w{i}", f"{i}/2", ["--join", token], 1, ())
        serving = rig.start("serve", [LINKCPP, "serve", "--model", os.path.join(out, "backbone-00001-of-00002.gguf"), "--home", rig.home, "--http",
                                      f"127.0.0.1:{ports[0]}", "--listen", rig.listen, "--admin", "none", "--no-repack", "--", *options[:-1]])
        serving.wait_for("ready:", 120)
        answer = lib.complete(lib.Server(serving, ports[0]), "It is a truth universally", 24, n_probs=5)
        serving.stop()
    assert answer["content"] == expected["content"], (answer["content"], expected["content"])
    assert answer["completion_probabilities"] == expected["completion_probabilities"]


if __name__ == "__main__":
    chosen = sys.argv[1:]
    for name, test in list(globals().items()):
        if name.startswith("test_") and (not chosen or name in chosen):
            begin = time.monotonic()
            with tempfile.TemporaryDirectory() as scratch:
                test(scratch)
            print(f"ok: {name} ({time.monotonic() - begin:.1f} s)", flush=True)
