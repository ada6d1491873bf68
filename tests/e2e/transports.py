#!/usr/bin/env python3
"""A whole swarm over each transport: the text is the one that plain llama.cpp makes, whatever carries the experts' answers."""
import signal

from swarm import Swarm, run_tests

PROMPT = "It was a truth which she could not deny, that Mr. "


def over(scheme):
    with Swarm() as swarm:
        plain = swarm.plain().wait_ready()
        expected = plain.complete(PROMPT, 32)
        plain.process.stop()
        server = swarm.serve()
        address = f"{scheme}://127.0.0.1:{swarm.listen}"
        first = swarm.worker("first", "1/2", "--address", address)
        swarm.worker("second", "2/2", "--address", address)
        server.wait_ready()
        assert {worker["transport"] for worker in swarm.status()["workers"]} == {scheme}
        assert server.complete(PROMPT, 32) == expected
        # A worker that is killed and started again joins again.
        first.stop(signal.SIGKILL)
        seen = len(server.process.lines)
        swarm.worker("first", "1/2", "--address", address)
        server.process.wait_for("worker first joined", 30, seen)
        assert server.complete(PROMPT, 32) == expected


def test_by_tcp():
    over("tcp")


def test_by_quic():
    over("quic")


def test_by_websocket():
    over("ws")


if __name__ == "__main__":
    run_tests(globals())
