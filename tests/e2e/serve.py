#!/usr/bin/env python3
"""`linkcpp serve` with a real engine, real workers: coverage, the admin endpoint, crashes of the engine, stopping, bench."""
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

from swarm import LINKCPP, Swarm, engines, run_tests

PROMPT = "It was a truth which she could not deny, that Mr. "


def wait_until(what, condition, timeout=30):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"waited {timeout} s for {what}")


def test_waits_for_experts_and_names_the_missing_ones():
    with Swarm() as swarm:
        server = swarm.serve()
        server.process.wait_for("waiting for experts: .*experts 0-23", 30)
        command = server.process.wait_for("linkcpp worker --join lkc1", 5)
        assert swarm.status()["coverage"]["complete"] is False
        swarm.worker("low", "1/2")
        server.process.wait_for("worker low joined", 30)
        server.process.wait_for("waiting for experts: .*experts 12-23", 10)
        # The rest joins by the very command that serve told people to use.
        token = re.search(r"--join (\S+)", command).group(1)
        swarm.worker("high", "2/2", token=token)
        server.process.wait_for("ready: http", 30)
        assert server.complete(PROMPT, 8)[0] == 200
        state = swarm.status()
        assert state["coverage"]["complete"] is True and state["ready"] is True, state
        assert {w["name"]: w["state"] for w in state["workers"]} == {"low": "joined", "high": "joined"}, state
        assert state["mode"] == "raw" and state["wire"] == "f32" and state["http"] == server.url, state


def test_admin_endpoint_shows_the_account_and_nothing_else():
    with Swarm() as swarm:
        swarm.worker("one")
        server = swarm.serve().wait_ready()
        server.complete(PROMPT, 16)
        wait_until("the account", lambda: swarm.status()["account"].get("passes", 0) >= 16)
        account = swarm.status()["account"]
        assert set(account["layers"]) == {"0", "1", "2", "3"}, account
        assert account["workers"]["one"]["bytes_out"] > 0 and account["total"]["failed_steps"] == 0, account
        for path, method, status in (("/", "GET", 404), ("/v1/swarm", "POST", 405), ("/v1/swarm", "DELETE", 405)):
            request = urllib.request.Request(f"http://127.0.0.1:{swarm.admin}{path}", method=method)
            try:
                urllib.request.urlopen(request, timeout=5)
                raise AssertionError(f"{method} {path} was answered")
            except urllib.error.HTTPError as error:
                assert error.code == status, (method, path, error.code)


def test_a_crashed_engine_is_started_again_and_serves_again():
    with Swarm() as swarm:
        swarm.worker("one")
        server = swarm.serve().wait_ready()
        server.process.wait_for("ready: http", 10)
        expected = server.complete(PROMPT, 16)
        assert expected[0] == 200
        engine = engines(swarm.http)
        assert len(engine) == 1, engine
        seen = len(server.process.lines)
        os.kill(engine[0], signal.SIGKILL)
        server.process.wait_for(r"was ended by signal 9 .*started again", 10, start=seen)
        server.process.wait_for("ready: http", 60, start=seen)
        assert server.complete(PROMPT, 16) == expected
        assert engines(swarm.http) != engine
        assert swarm.status()["restarts"] == 1


def test_stops_on_signals_and_leaves_nothing():
    for number in (signal.SIGTERM, signal.SIGINT):
        with Swarm() as swarm:
            swarm.worker("one")
            server = swarm.serve().wait_ready()
            assert server.process.stop(number) == 0, server.process.output()[-2000:]
            assert engines(swarm.http) == []
    with Swarm() as swarm:  # while it waits for experts, too
        server = swarm.serve()
        server.process.wait_for("waiting for experts", 30)
        assert server.process.stop() == 0
        assert engines(swarm.http) == []


def test_the_engine_dies_with_a_killed_serve():
    with Swarm() as swarm:
        server = swarm.serve()
        server.process.wait_for("waiting for experts", 30)
        assert len(engines(swarm.http)) == 1
        server.process.child.kill()
        wait_until("the engine to die", lambda: not engines(swarm.http), 10)


def test_bench_measures_it():
    with Swarm() as swarm:
        swarm.worker("a", "1/2")
        swarm.worker("b", "2/2")
        swarm.serve(llama=["-np", "2"]).wait_ready()
        done = subprocess.run([LINKCPP, "bench", "--http", f"http://127.0.0.1:{swarm.http}", "--admin", f"http://127.0.0.1:{swarm.admin}",
                               "--clients", "2", "--requests", "2", "--tokens", "24", "--prompt-tokens", "33", "--json"],
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert [(p["clients"], p["requests"], p["failed"]) for p in result["phases"]] == [(1, 2, 0), (2, 4, 0)], result["phases"]
        for phase in result["phases"]:
            assert 0 < phase["ttft_ms"]["p50"] <= phase["ttft_ms"]["p95"], phase
            assert phase["aggregate_tokens_per_s"] > 0 and phase["tokens_per_s"]["p50"] > 0, phase
        # Every request computes its prompt's tokens and its answer's but the last; nothing else runs in between.
        # Of a prompt, the last layer computes the last token only.
        assert [layer["tokens"] for layer in result["swarm"]["layers"]] == [6 * (33 + 23)] * 3 + [6 * 24], result["swarm"]["layers"]
        assert {w["name"] for w in result["swarm"]["workers"]} == {"a", "b"}
        assert 0 < result["swarm"]["wait_share"] < 1, result["swarm"]


if __name__ == "__main__":
    run_tests(globals())
