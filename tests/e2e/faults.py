#!/usr/bin/env python3
"""What goes wrong in real life: workers die, files are wrong, strangers knock. The server lives and says what is the matter."""
import json
import os
import shutil
import signal
import socket
import struct
import threading
import time

from swarm import Swarm, run_tests

PROMPT = "It is a truth universally acknowledged, that a single man in possession"


def generate_in_background(server, n):
    result = {}

    def work():
        started = time.monotonic()
        result["status"], result["text"] = server.complete(PROMPT, n)
        result["seconds"] = time.monotonic() - started

    thread = threading.Thread(target=work)
    thread.start()
    return thread, result


def wait_until_generating(server, timeout=30):
    """Returns when a slot is at work. A pause of fixed length would come too late on a fast machine and too early on a busy one."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        status, slots = server.get("/slots")
        assert status == 200, slots
        if any(slot["is_processing"] for slot in json.loads(slots)):
            return
        time.sleep(0.01)
    raise AssertionError("nothing is generated")


def local_text(swarm, n):
    plain = swarm.plain()
    plain.wait_ready()
    status, text = plain.complete(PROMPT, n)
    assert status == 200, text
    plain.process.stop()
    return text


def test_killed_worker_with_replica_changes_no_token():
    with Swarm() as swarm:
        expected = local_text(swarm, 1500)
        first, _ = swarm.worker("first"), swarm.worker("second")
        server = swarm.serve("--no-repack")
        server.process.wait_for("second", 30)
        server.wait_ready()
        thread, result = generate_in_background(server, 1500)
        wait_until_generating(server)
        first.stop(signal.SIGKILL)
        thread.join()
        assert result["status"] == 200, result
        assert result["text"] == expected, "tokens changed after the loss of a worker"
        server.process.wait_for("worker first left", 30)


def test_killed_worker_without_replica_is_an_error_and_then_heals():
    with Swarm() as swarm:
        expected = local_text(swarm, 64)
        low, high = swarm.worker("low", "0-11"), swarm.worker("high", "12-23")
        server = swarm.serve("--no-repack", "--deadline", "2s")
        server.wait_ready()
        thread, result = generate_in_background(server, 3000)
        wait_until_generating(server)
        high.stop(signal.SIGKILL)
        killed = time.monotonic()
        thread.join(30)
        assert not thread.is_alive(), "the client still waits"
        assert time.monotonic() - killed < 2 + 3, "the error came late"
        assert result["status"] == 500, result
        assert "12-23" in server.process.output(), "the log does not name the missing experts"
        assert server.get("/health")[0] == 200, "llama-server does not live"
        swarm.worker("high", "12-23")
        server.process.wait_for("worker high joined", 30, start=len(server.process.lines) - 5)
        status, text = server.complete(PROMPT, 64)
        assert status == 200 and text == expected, (status, text[:200])
        assert low.child.poll() is None


def test_serve_says_which_experts_are_missing():
    with Swarm() as swarm:
        swarm.worker("low", "0-11")
        server = swarm.serve()
        server.process.wait_for("12-23", 30)
        swarm.worker("rest", "12-23")
        server.wait_ready()


def test_drained_worker_leaves_without_an_error():
    with Swarm() as swarm:
        expected = local_text(swarm, 1500)
        first, _ = swarm.worker("first"), swarm.worker("second")
        server = swarm.serve("--no-repack")
        server.process.wait_for("second", 30)
        server.wait_ready()
        thread, result = generate_in_background(server, 1500)
        wait_until_generating(server)
        assert first.stop(signal.SIGTERM) == 0, first.output()
        thread.join()
        assert (result["status"], result["text"]) == (200, expected)


def refused_worker(swarm, message, code, **arguments):
    worker = swarm.worker("odd", **arguments)
    assert worker.child.wait(30) == code, worker.output()
    assert message in worker.output(), worker.output()


def test_wrong_files_are_named():
    with Swarm() as swarm:
        cut = os.path.join(swarm.folder.name, "cut.gguf")
        with open(swarm.model, "rb") as source, open(cut, "wb") as target:
            target.write(source.read(os.path.getsize(swarm.model) * 2 // 3))
        text = os.path.join(swarm.folder.name, "text.gguf")
        with open(text, "w") as target:
            target.write("this is not a model\n" * 100)
        refused_worker(swarm, "cut.gguf", 2, model=cut)
        refused_worker(swarm, "text.gguf", 2, model=text)
        refused_worker(swarm, "absent.gguf", 3, model=os.path.join(swarm.folder.name, "absent.gguf"))


def test_worker_with_another_model_is_told_so():
    with Swarm() as swarm:
        other = os.path.join(swarm.folder.name, "other.gguf")
        shutil.copyfile(swarm.model, other)
        with open(other, "r+b") as target:  # one bit of the last tensors: the output norm and routers are part of the digest
            data = target.read()
            at = len(data) // 2
            changed = bytes(b ^ 0x55 for b in data[at:at + (1 << 20)])
            target.seek(at)
            target.write(changed)
        swarm.worker("good")
        server = swarm.serve()
        server.wait_ready()
        odd = swarm.worker("odd", model=other)
        odd.wait_for("another model", 20)
        assert server.complete(PROMPT, 4)[0] == 200


def test_wrong_token_is_refused_on_both_sides():
    with Swarm() as swarm, Swarm() as stranger:
        swarm.worker("good")
        server = swarm.serve()
        server.wait_ready()
        # The stranger's token names another backbone's key; point it at our address.
        foreign = stranger.run("token", "--home", stranger.home, "--address", f"127.0.0.1:{swarm.listen}").stdout.strip()
        odd = swarm.worker("odd", token=foreign)
        odd.wait_for("key|token", 20)
        mistyped = swarm.worker("mistyped", token=swarm.token[:-6] + "AAAAAA")
        assert mistyped.child.wait(20) == 2, mistyped.output()
        assert "token" in mistyped.output()
        assert server.complete(PROMPT, 4)[0] == 200


def test_strangers_on_the_port_do_no_harm():
    with Swarm() as swarm:
        swarm.worker("good")
        server = swarm.serve("--no-repack")
        server.wait_ready()
        knocks = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", os.urandom(4096), b"", struct.pack("<IBBHIQ", 0x31434B4C, 1, 6, 0, 0xFFFFFFFF, 1) * 8,
                  b"\x16\x03\x01\xff\xff" + os.urandom(2000)]
        held = []
        for _ in range(30):
            for knock in knocks:
                s = socket.create_connection(("127.0.0.1", swarm.listen), 5)
                try:
                    s.sendall(knock)
                except OSError:
                    pass
                held.append(s)
        status, text = server.complete(PROMPT, 32)
        assert status == 200, text
        for s in held:
            s.close()
        assert server.complete(PROMPT, 32) == (200, text)


def test_busy_port_is_a_clear_error():
    with Swarm() as swarm, socket.socket() as taken:
        taken.bind(("127.0.0.1", swarm.listen))
        taken.listen()
        server = swarm.serve()
        assert server.process.child.wait(30) != 0
        assert str(swarm.listen) in server.process.output(), server.process.output()


def test_serve_stops_cleanly_and_leaves_no_children():
    with Swarm() as swarm:
        swarm.worker("good")
        server = swarm.serve()
        server.wait_ready()
        assert server.process.stop(signal.SIGTERM) == 0, server.process.output()[-2000:]
        with socket.socket() as s:
            assert s.connect_ex(("127.0.0.1", swarm.http)) != 0, "llama-server still listens"


if __name__ == "__main__":
    run_tests(globals())
