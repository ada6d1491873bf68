#!/usr/bin/env python3
"""Fetching slices from static web servers (nginx), other nodes and folders: resumes, never fetches twice, leaves bad sources."""
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from swarm import LINKCPP, free_port, web_server

EXPERTS = 4


def b3sum(data):
    """An implementation that is not ours."""
    return subprocess.run(["b3sum", "--no-names"], input=data, check=True, capture_output=True).stdout.decode().strip()


def make_model(folder, layers=2, up=700_000, down=301_000, files=2):
    """Files of random bytes with a slice index over them, and the folder of its slices. No engine reads these."""
    rng = random.Random(3)
    contents = [rng.randbytes(EXPERTS * layers * (up + down) // files * 2 + 4096) for _ in range(files)]
    names = [f"m-{i + 1:05}-of-{files:05}.gguf" for i in range(files)] if files > 1 else ["m.gguf"]
    web = os.path.join(folder, "web")
    os.makedirs(os.path.join(web, "slices"), exist_ok=True)
    for name, content in zip(names, contents):
        with open(os.path.join(web, name), "wb") as file:
            file.write(content)
    index = {"format": "linkcpp slices 2", "model": "07" * 32, "architecture": "qwen3moe", "name": "m", "n_layer": layers, "n_embd": 64,
             "n_expert": EXPERTS, "top_k": 2, "n_vocab": 100, "shared_expert": False,
             "files": [{"name": n, "bytes": len(c)} for n, c in zip(names, contents)], "layers": []}
    at = [96] * files
    for layer in range(layers):
        parts, objects, end = [], [b""] * EXPERTS, 0
        for tensor, size in ((f"blk.{layer}.ffn_down_exps.weight", down), (f"blk.{layer}.ffn_up_exps.weight", up)):
            file = layer % files
            start = -(-end // 64) * 64
            parts.append({"tensor": tensor, "type": "f32", "n_in": size // 40, "n_out": 10, "bytes": size, "file": file,
                          "file_offset": at[file], "object_offset": start})
            for e in range(EXPERTS):
                objects[e] = objects[e].ljust(start, b"\0") + contents[file][at[file] + e * size:at[file] + (e + 1) * size]
            at[file] += EXPERTS * size
            end = start + size
        digests = [b3sum(o) for o in objects]
        for digest, data in zip(digests, objects):
            os.makedirs(os.path.join(web, "slices", "objects", digest[:2]), exist_ok=True)
            with open(os.path.join(web, "slices", "objects", digest[:2], digest), "wb") as file:
                file.write(data)
        index["layers"].append({"layer": layer, "experts": EXPERTS, "parts": parts, "slices": digests})
    path = os.path.join(web, "slices", "index.json")
    with open(path, "w") as file:
        json.dump(index, file)
    return web, path, names, sum(len(open(os.path.join(d, f), "rb").read()) for d, _, fs in os.walk(os.path.join(web, "slices", "objects")) for f in fs)


@contextlib.contextmanager
def nginx(folder, web, tls=False, rate=""):
    """Serves the files of a folder; its URL and its own folder."""
    with web_server(folder, f"root {web};", tls, f"sendfile on; {rate}") as (port, home):
        yield f"{'https' if tls else 'http'}://{'localhost' if tls else '127.0.0.1'}:{port}", home


def sent_bytes(home):
    time.sleep(0.2)
    return sum(int(m.group(1)) for m in re.finditer(r'"GET [^"]*(?:objects|gguf)[^"]*" 20[06] (\d+)', open(f"{home}/access.log").read()))


def fetch(index, store, *sources, expect=0, env=None, extra=()):
    argv = [LINKCPP, "fetch", "--index", index, "--store", store, "--json", *extra]
    for source in sources:
        argv += ["--from", source]
    done = subprocess.run(argv, capture_output=True, text=True, env=dict(os.environ, **(env or {})), timeout=120)
    assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
    return (json.loads(done.stdout) if done.stdout else None), done.stderr


def check_store(store, slices):
    found = 0
    for folder, _, names in os.walk(os.path.join(store, "objects")):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                assert b3sum(file.read()) == name, name
            found += 1
    assert found == slices, (found, slices)


def test_static(folder, files, tls):
    web, index, names, total = make_model(os.path.join(folder, f"model-{files}-{tls}"), files=files)
    with nginx(folder, web, tls) as (url, home):
        env = {"SSL_CERT_FILE": f"{home}/cert.pem"} if tls else {}
        for kind, source in (("folder", f"{url}/slices"), ("gguf", f"{url}/{names[0]}")):
            store = os.path.join(folder, f"store-{files}-{tls}-{kind}")
            before = sent_bytes(home)
            result, _ = fetch(f"{url}/slices/index.json", store, source, env=env)
            assert result["slices_done"] == 8 and result["bytes_fetched"] == total, result
            check_store(store, 8)
            sent = sent_bytes(home) - before
            assert total - 8 * 128 <= sent <= total + 8 * 128, (sent, total)
            again, _ = fetch(f"{url}/slices/index.json", store, source, env=env)
            assert again["bytes_fetched"] == 0 and sent_bytes(home) - before == sent, again
            print(f"ok: {'https' if tls else 'http'}, {files} file(s), {kind}: {total} bytes of slices, {sent} sent, second start 0")
        if tls:
            fetch(index, os.path.join(folder, "untrusted"), f"{url}/slices", expect=3, extra=["--rounds", "1"])


def stored(store):
    """Bytes of whole and unfinished slices."""
    total = 0
    for kind in ("objects", "partial"):
        for at, _, names in os.walk(os.path.join(store, kind)):
            for name in names:
                with contextlib.suppress(OSError):  # it may be renamed just now
                    total += os.path.getsize(os.path.join(at, name))
    return total


def test_kill(folder):
    web, index, _, total = make_model(os.path.join(folder, "kill"))
    store = os.path.join(folder, "kill-store")
    rng = random.Random(11)
    kills = 0
    # The server sends the first second's share of every answer at once: a slice of a megabyte must need several.
    with nginx(folder, web, rate="limit_rate 200k;") as (url, home):
        for _ in range(8):
            process = subprocess.Popen([LINKCPP, "fetch", "--index", index, "--store", store, "--from", f"{url}/slices", "--quiet"])
            before = stored(store)
            deadline = time.monotonic() + 20
            while stored(store) <= before and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)  # a busy machine starts slowly: the kill must find it at work
            time.sleep(rng.uniform(0, 0.25))
            kills += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait()
        result, _ = fetch(index, store, f"{url}/slices")
        check_store(store, 8)
        assert result["bytes_had"] > 0 and kills >= 3, (result, kills)
        assert result["bytes_had"] + result["bytes_fetched"] == total, result
        print(f"ok: killed {kills} times; {result['bytes_had']} bytes were kept, {result['bytes_fetched']} fetched at the last start, of {total}")


def test_bad_sources(folder):
    web, index, _, total = make_model(os.path.join(folder, "bad"))
    corrupt = os.path.join(folder, "corrupt")
    shutil.copytree(web, corrupt)
    for at, _, names in os.walk(os.path.join(corrupt, "slices", "objects")):
        for name in names:
            with open(os.path.join(at, name), "r+b") as file:
                file.seek(5000)
                file.write(b"corrupt")
    with nginx(folder, corrupt) as (lying, lying_home), nginx(folder, web) as (url, _):
        store = os.path.join(folder, "bad-store")
        result, _ = fetch(index, store, f"{lying}/slices", f"http://127.0.0.1:{free_port()}/", f"{url}/slices")
        check_store(store, 8)
        by_source = [s["bytes"] for s in result["sources"]]
        assert by_source[2] >= total // 2 and by_source[1] == 0, result
        print(f"ok: a corrupt and a dead source: {by_source} bytes by source")
    print("ok: without any source:", fetch(index, os.path.join(folder, "none"), f"http://127.0.0.1:{free_port()}/", expect=3, extra=["--rounds", "2"])[1].strip()[:200])


def test_full_disk(folder):
    _, index, _, _ = make_model(os.path.join(folder, "full"))
    web = os.path.join(folder, "full", "web", "slices")
    _, error = fetch(index, os.path.join(folder, "full-store"), web, expect=3, extra=["--reserve", str(1 << 60), "--rounds", "2"])
    assert "the disk is full" in error, error
    print("ok: full disk:", error.strip()[:200])


def test_nodes(folder):
    web, index, names, total = make_model(os.path.join(folder, "nodes"))
    home, port = os.path.join(folder, "home"), free_port()
    token = subprocess.run([LINKCPP, "token", "--home", home], capture_output=True, text=True, check=True).stdout.strip()
    model = [a for n in names for a in ("--model", os.path.join(web, n))]
    server = subprocess.Popen([LINKCPP, "share", "--index", index, *model, "--home", home, "--listen", f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True)
    try:
        assert "sharing" in server.stdout.readline()
        store = os.path.join(folder, "node-store")
        result, _ = fetch(index, store, f"lks://127.0.0.1:{port}", extra=["--join", token, "--home", os.path.join(folder, "client")])
        assert result["bytes_fetched"] == total, result
        check_store(store, 8)
        print(f"ok: {total} bytes from another node's GGUF files")
    finally:
        server.terminate()
        assert server.wait(10) == 0


def main():
    with tempfile.TemporaryDirectory(prefix="linkcpp-fetch-") as folder:
        for files, tls in ((1, False), (2, False), (2, True)):
            test_static(folder, files, tls)
        test_kill(folder)
        test_bad_sources(folder)
        test_full_disk(folder)
        test_nodes(folder)


if __name__ == "__main__":
    sys.exit(main())
