#!/usr/bin/env python3
"""`linkcpp demo`: the whole swarm in one command, its comparison with the local run, and that it cleans up behind itself."""
import json
import os
import signal
import subprocess
import tempfile
import time

from swarm import ENV, LINKCPP, run_tests

N_EMBD, TOP_K, FRAME_HEADERS = 256, 4, 400


def demo(*arguments, timeout=240):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([LINKCPP, "demo", "--json", *arguments], capture_output=True, text=True, timeout=timeout,
                              env=dict(ENV, TMPDIR=folder), stdin=subprocess.DEVNULL)
        assert os.listdir(folder) == [], f"left behind: {os.listdir(folder)}"
    return done


def result_of(done):
    assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout}{done.stderr}"
    return json.loads(done.stdout)


def test_raw_f32_is_identical_and_accounted_for():
    result = result_of(demo("--workers", "3", "--tokens", "48"))
    assert result["identical"] is True and result["text"] and result["text"] == result["text_local"], result
    assert result["tokens"] == 48 and result["tokens_per_s"] > 0 and result["tokens_per_s_local"] > 0, result
    assert [layer["layer"] for layer in result["layers"]] == ["0", "1", "2", "3"], result["layers"]
    generated, tokens = result["tokens"], result["prompt_tokens"] + result["tokens"] - 1
    for layer in result["layers"]:
        # Of the prompt, the last layer computes the last token only: nobody asked for the other logits.
        assert layer["tokens"] == (generated if layer["layer"] == "3" else tokens), (layer, tokens)
        # Out: the token's row once to each touched worker. Back: a row for each selected expert.
        assert N_EMBD * 4 <= layer["bytes_out_per_token"] <= 3 * (N_EMBD * 4 + FRAME_HEADERS), layer
        assert TOP_K * N_EMBD * 4 <= layer["bytes_back_per_token"] <= TOP_K * N_EMBD * 4 + 3 * FRAME_HEADERS, layer
    assert sorted(worker["name"] for worker in result["workers"]) == ["worker-1", "worker-2", "worker-3"]
    for worker in result["workers"]:
        assert worker["pairs"] > 0 and worker["experts"] and worker["device"], worker
    assert sum(worker["pairs"] for worker in result["workers"]) == (3 * tokens + generated) * TOP_K
    assert set(result["bytes"]["layers"]) == {"0", "1", "2", "3"} and set(result["bytes"]["workers"]) == {"worker-1", "worker-2", "worker-3"}


def test_fewer_bytes_in_other_modes():
    raw = result_of(demo("--workers", "2", "--tokens", "12"))
    half = result_of(demo("--workers", "2", "--tokens", "12", "--wire", "f16"))
    summed = result_of(demo("--workers", "2", "--tokens", "12", "--mode", "sum"))
    assert raw["identical"] is True
    ratio = half["bytes"]["back_per_token"] / raw["bytes"]["back_per_token"]
    assert 0.45 < ratio < 0.6, ratio
    assert summed["bytes"]["back_per_token"] < 0.75 * raw["bytes"]["back_per_token"], (summed["bytes"], raw["bytes"])
    assert half["text"] and summed["text"]


def test_one_worker_and_no_repack():
    assert result_of(demo("--workers", "1", "--tokens", "16", "--no-repack"))["identical"] is True


def descendants(pid):
    children = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
        children.setdefault(parent, []).append(int(entry))
    found, queue = [], [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            found.append(child)
            queue.append(child)
    return found


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return ") Z" not in file.read()
    except OSError:
        return False


def test_interrupted_it_stops_everything():
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen([LINKCPP, "demo", "--tokens", "900"], env=dict(ENV, TMPDIR=folder), stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in child.stderr:
            if "asking the swarm" in line:
                break
        time.sleep(0.3)
        started = descendants(child.pid)
        assert len(started) >= 5, started  # serve, llama-server, three workers
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 3
        assert [pid for pid in started if alive(pid)] == []
        assert os.listdir(folder) == [], os.listdir(folder)


def test_a_failing_part_is_named():
    done = demo("--model", os.devnull)
    assert done.returncode != 0 and os.devnull in done.stderr, done.stderr
    with tempfile.NamedTemporaryFile(suffix=".so") as broken:
        done = demo("--plugin", broken.name)
        assert done.returncode == 3 and "before it was ready" in done.stderr, (done.returncode, done.stderr)


if __name__ == "__main__":
    run_tests(globals())
