#!/usr/bin/env python3
"""A whole swarm inside the lab, behind NATs, with nothing but a relay in common: it begins there, moves to direct paths where there are any,
survives a change of network and a relay that is killed, and answers every request as plain llama.cpp does."""
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from swarm import LINKCPP, PROJECT, Process, Swarm, run_tests

LAB = os.path.join(PROJECT, "lab")
SCENARIO = """
seed = 1
[[node]]
name = "relay"
delay_ms = 5
[[nat]]
name = "home"
kind = "port-restricted"
delay_ms = 10
[[node]]
name = "backbone"
behind = "home"
[[nat]]
name = "away"
kind = "port-restricted"
delay_ms = 10
[[node]]
name = "phone"
behind = "away"
[[nat]]
name = "strict"
kind = "symmetric"
delay_ms = 10
[[node]]
name = "office"
behind = "strict"
"""
PROMPT = "It was a truth which she could not deny, that Mr. "
N = 24


def lab(*arguments):
    return subprocess.run([os.path.join(LAB, "in"), *arguments], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


class NattedSwarm(Swarm):
    """The backbone runs in this process's namespace; workers and relay in others."""

    def relay(self):
        child = Process("relay", [os.path.join(LAB, "in"), "relay", LINKCPP, "relay", "--listen", f"{lab('--address', 'relay')}:7103", "--home",
                                  os.path.join(self.folder.name, "relay"), "--open", "--json"])
        self.children.append(child)
        ready = json.loads(child.wait_for('"event":"ready"'))
        self.relay_address = f"relay://{ready['key']}@{ready['listen']}"
        return child

    def worker_in(self, node, experts, *more):
        token = self.run("token", "--home", self.home, "--address", f"10.255.0.1:{self.listen}", "--address", self.relay_address).stdout.strip()
        return self.start(node, [os.path.join(LAB, "in"), node, LINKCPP, "worker", "--model", self.model, "--experts", experts, "--join", token,
                                 "--home", os.path.join(self.folder.name, node), "--name", node, "--threads", "1", *more])

    def worker_of(self, name):
        return next(worker for worker in self.status()["workers"] if worker["name"] == name)

    def wait_transport(self, name, transport, limit=20):
        begun = time.monotonic()
        while time.monotonic() - begun < limit:
            worker = self.worker_of(name)
            if worker["transport"] == transport and not worker["out_of_touch"]:
                return time.monotonic() - begun
            time.sleep(0.05)
        raise AssertionError(f"{name} is not reached by {transport} after {limit} s: {json.dumps(worker, indent=1)}")


class Asking:
    """Requests one after the other, until it is left: every one must be answered with the text."""

    def __init__(self, server, expected):
        self.server, self.expected, self.over, self.wrong, self.answered, self.gaps_ms = server, expected, False, [], 0, []
        self.thread = threading.Thread(target=self._ask)

    def _ask(self):
        while not self.over:
            try:
                answer = self._stream()
            except (OSError, ValueError, KeyError) as error:
                answer = f"{type(error).__name__}: {error}"
            self.answered += 1
            if answer != self.expected:
                self.wrong.append(answer)

    def _stream(self):
        """The text; the pauses between tokens go to gaps_ms."""
        body = dict(prompt=PROMPT, n_predict=N, temperature=0, seed=1, cache_prompt=False, ignore_eos=True, stream=True)
        request = urllib.request.Request(self.server.url + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
        text, last = "", None
        with urllib.request.urlopen(request, timeout=60) as answer:
            for line in answer:
                if not line.startswith(b"data: "):
                    continue
                text += json.loads(line[6:])["content"]
                now = time.monotonic()
                if last:
                    self.gaps_ms.append(1000 * (now - last))
                last = now
        return text

    def __enter__(self):
        self.thread.start()
        return self

    def stop(self):
        self.over = True
        self.thread.join()

    def __exit__(self, *_):
        self.stop()
        assert self.answered > 0 and not self.wrong, f"{len(self.wrong)} of {self.answered} answers are wrong: {self.wrong[:3]}"


def in_the_lab(test):
    """Runs a test inside the backbone's namespace: it starts itself there."""

    @functools.wraps(test)
    def run():
        if "LINKCPP_LAB_NODES" in os.environ:
            return test()
        with tempfile.TemporaryDirectory(prefix="linkcpp-e2e-") as folder:
            scenario = os.path.join(folder, "nats.toml")
            with open(scenario, "w") as file:
                file.write(SCENARIO)
            subprocess.run([os.path.join(LAB, "run"), scenario, os.path.join(LAB, "in"), "backbone", sys.executable, "-B", os.path.abspath(__file__),
                            test.__name__], check=True, timeout=300)

    return run


def answers_of_plain(swarm):
    plain = swarm.plain().wait_ready()
    expected = plain.complete(PROMPT, N)
    plain.process.stop()
    assert expected[0] == 200, expected
    return expected[1]


@in_the_lab
def test_from_the_relay_to_direct_paths_and_through_changes_of_network():
    with NattedSwarm() as swarm:
        expected = answers_of_plain(swarm)
        relay = swarm.relay()
        server = swarm.serve("--relay", swarm.relay_address)
        phone, office = swarm.worker_in("phone", "1/2"), swarm.worker_in("office", "2/2")
        server.wait_ready()
        with Asking(server, expected):
            swarm.wait_transport("phone", "quic")
            time.sleep(2)
        office_now = swarm.worker_of("office")
        # The backbone's NAT takes packets only from where it has sent to, and the other's uses a port that nobody can know.
        assert office_now["transport"] == "relay" and "direct" in office_now["why"], office_now
        assert {path["kind"] for path in swarm.worker_of("phone")["paths"]} == {"quic", "relay"}

        with Asking(server, expected):  # the phone gets another network, in the middle of answers
            time.sleep(0.3)
            lab("--move", "away")
            time.sleep(0.5)
            swarm.wait_transport("phone", "quic", 40)
        assert "left" not in swarm.worker_of("phone")["state"]

        with Asking(server, expected):  # the relay dies: who has a direct path does not notice, who has none waits for it
            time.sleep(0.3)
            relay.stop(signal.SIGKILL)
            assert swarm.worker_of("phone")["transport"] == "quic"
            time.sleep(1)
            relay = swarm.relay()
            time.sleep(1)
            swarm.wait_transport("office", "relay")
        moved = [line for line in server.process.lines if re.search("worker phone is reached by quic now", line)]
        assert moved, server.process.output()
        assert not [line for line in server.process.lines if re.search(r"worker \w+ left", line)], server.process.output()


@in_the_lab
def test_no_direct_stays_on_the_relay():
    with NattedSwarm() as swarm:
        expected = answers_of_plain(swarm)
        swarm.relay()
        server = swarm.serve("--relay", swarm.relay_address)
        swarm.worker_in("phone", "all", "--no-direct")
        server.wait_ready()
        with Asking(server, expected):
            time.sleep(4)
        assert [path["kind"] for path in swarm.worker_of("phone")["paths"]] == ["relay"], swarm.worker_of("phone")


if __name__ == "__main__":
    run_tests(globals())
