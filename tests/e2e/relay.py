#!/usr/bin/env python3
"""Links through `linkcpp relay`: real processes, kills and restarts, refusals, and two nodes behind symmetric NATs in the lab."""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request

from swarm import ENV, LINKCPP, PROJECT, Process, Swarm, free_port, run_tests

BENCH = os.path.join(os.environ.get("LINKCPP_TOOLS", ""), "link_bench")
LAB = os.path.join(PROJECT, "lab")
SCENARIO = """
seed = 1
[[nat]]
name = "here"
kind = "symmetric"
delay_ms = 10
[[nat]]
name = "there"
kind = "symmetric"
delay_ms = 20
[[node]]
name = "far"
delay_ms = 100
[[node]]
name = "near"
delay_ms = 5
[[node]]
name = "backbone"
behind = "here"
[[node]]
name = "worker"
behind = "there"
"""


class Relay(Process):
    def __init__(self, folder, *options, at="127.0.0.1:0", name="relay", before=()):
        super().__init__(name, [*before, LINKCPP, "relay", "--listen", at, "--home", os.path.join(folder, name), "--json", "--status", "0.2", *options])
        self.ready = json.loads(self.wait_for('"event":"ready"'))

    def address(self, key=False):
        return f"relay://{self.ready['key'] + '@' if key else ''}{self.ready['listen']}"

    def counters(self):
        return json.loads([line for line in self.lines if '"event":"counters"' in line][-1])


@contextlib.contextmanager
def worker(home, address, before=()):
    """Answers, and is reachable through a relay; the address at which it is."""
    node = Process("worker", [*before, BENCH, "serve", "--home", home, "--listen", address])
    try:
        yield node, node.wait_for("^ready ").split()[1]
    finally:
        node.stop()


def ask(home, *arguments, before=(), ok=True):
    done = subprocess.run([*before, BENCH, "ask", "--home", home, "--warm-up", "0", *arguments], capture_output=True, text=True, timeout=200, env=ENV)
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return json.loads(done.stdout) if ok else done.stderr


@contextlib.contextmanager
def place():
    with tempfile.TemporaryDirectory(prefix="linkcpp-e2e-") as folder:
        yield folder, os.path.join(folder, "home")


def test_links_pass_and_are_counted():
    with place() as (folder, home):
        admin = f"127.0.0.1:{free_port()}"
        relay = Relay(folder, "--open", "--admin", admin)
        try:
            with worker(home, relay.address(key=True)) as (_, address):
                assert re.fullmatch(r"relay://[a-z2-7]{52}@127\.0\.0\.1:\d+/[a-z2-7]{52}", address), address
                ask(home, address, "--count", "200")
                ask(home, address, "--count", "3", "--out", "8000000", "--back", "8000000")
                ask(home, address, "--count", "1", "--redials", "5")
            text = urllib.request.urlopen(f"http://{admin}/metrics", timeout=10).read().decode()
            passed = int(re.search(r"^linkcpp_relay_bytes_total (\d+)$", text, re.M)[1])
            assert passed > 48_000_000, text
            relay.wait_for('"event":"link_began"')
            relay.wait_for('"event":"link_ended"')
        finally:
            assert relay.stop() == 0


def test_a_killed_relay_comes_back():
    with place() as (folder, home):
        at = f"127.0.0.1:{free_port()}"
        relay = Relay(folder, "--open", at=at)
        try:
            with worker(home, relay.address()) as (_, address):
                ask(home, address, "--count", "5")
                for _ in range(2):
                    relay.stop(signal.SIGKILL)
                    relay = Relay(folder, "--open", at=at)
                    ask(home, address, "--count", "5")
        finally:
            relay.stop()


def test_a_backbone_must_be_allowed_and_is_told_its_key():
    with place() as (folder, home):
        at = f"127.0.0.1:{free_port()}"
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.write("# nobody yet\n" + "a" * 52 + "\n")
        relay = Relay(folder, "--allow-file", keys, at=at)
        try:
            with worker(home, relay.address()) as (_, address):
                words = ask(home, address, "--count", "1", "--deadline-s", "3", ok=False)
                key = re.search(r"linkcpp relay --allow ([a-z2-7]{52})", words)
                assert key, words
                relay.stop()
                relay = Relay(folder, "--allow", key[1], at=at)
                ask(home, address, "--count", "5")
        finally:
            relay.stop()


def test_a_whole_swarm_answers_as_without_it():
    """Workers that listen at the relay, which is killed while tokens are made; the text is the one that plain llama.cpp makes."""
    prompt = "It was a truth which she could not deny, that Mr. "
    with Swarm() as swarm:
        plain = swarm.plain().wait_ready()
        expected = plain.complete(prompt, 32)
        plain.process.stop()
        at = f"127.0.0.1:{free_port()}"
        relay = Relay(swarm.folder.name, "--open", at=at)
        swarm.children.append(relay)
        addresses = []
        for i in (1, 2):
            worker = swarm.worker(f"w{i}", f"{i}/2", "--listen", relay.address(key=True))
            addresses.append(re.search(r"relay://\S+/[a-z2-7]{52}", worker.wait_for("relay://[^ ]*/[a-z2-7]{52}"))[0])
        server = swarm.serve("--worker", addresses[0], "--worker", addresses[1], "--no-direct").wait_ready()
        assert {worker["transport"] for worker in swarm.status()["workers"]} == {"relay"}
        assert server.complete(prompt, 32) == expected
        relay.stop(signal.SIGKILL)
        relay = Relay(swarm.folder.name, "--open", at=at)
        swarm.children.append(relay)
        assert server.complete(prompt, 32) == expected
        assert {worker["transport"] for worker in swarm.status()["workers"]} == {"relay"}
        lines = [line for line in server.process.lines if line.startswith("linkcpp: worker w")]
        assert sum(" joined " in line for line in lines) == 2 and not any(" left" in line for line in lines), "their sessions were to go on: " + "\n".join(lines)


def test_nodes_behind_symmetric_nats_meet():
    """Everything inside the lab; this test starts itself there."""
    if "LINKCPP_LAB_NODES" not in os.environ:
        with tempfile.TemporaryDirectory(prefix="linkcpp-e2e-") as folder:
            scenario = os.path.join(folder, "nats.toml")
            with open(scenario, "w") as file:
                file.write(SCENARIO)
            subprocess.run([os.path.join(LAB, "run"), scenario, sys.executable, "-B", os.path.abspath(__file__), "test_nodes_behind_symmetric_nats_meet"],
                           check=True, timeout=240)
        return

    def inside(node):
        return (os.path.join(LAB, "in"), node)

    def address_of(node):
        return subprocess.run([os.path.join(LAB, "in"), "--address", node], check=True, capture_output=True, text=True).stdout.strip()

    with place() as (folder, home):
        relays = {name: Relay(folder, "--open", at=f"{address_of(name)}:7103", name=name, before=inside(name)) for name in ("far", "near")}
        bench = {"backbone": (*inside("backbone"), BENCH), "worker": (*inside("worker"), BENCH)}
        started = [Process("worker", [*bench["worker"], "serve", "--home", home, "--listen", relays["near"].address()])]
        try:
            near = started[0].wait_for("^ready ").split()[1]
            one = ask(home, near, "--count", "20", "--out", "12288", "--back", "12288", before=inside("backbone"))
            # There and back: 2 x (10 + 5 + 5 + 20) ms.
            assert 79 < one["ms"]["p50"] < 130, one
            ask(home, near, "--count", "2", "--out", "8000000", "--back", "8000000", before=inside("backbone"))
            assert relays["far"].counters()["nodes_now"] == 0
            started[0].stop()
            # A backbone that is reachable through both, in two processes; the worker knows both addresses and takes the nearer one.
            for name in relays:
                started.append(Process("at " + name, [*bench["backbone"], "ask", "--home", home, "--listen", relays[name].address(), "--links", "1",
                                                      "--count", "5", "--warm-up", "0"]))
            started.append(Process("worker", [*bench["worker"], "serve", "--home", home, "--dial", relays["far"].address(), relays["near"].address()]))
            started[2].wait_for('"exchanges_ms"', 60)
            assert '"exchanges_ms"' not in started[1].output() and relays["far"].counters()["links"] == 0
        finally:
            for process in (*started, *relays.values()):
                process.stop(signal.SIGKILL)


if __name__ == "__main__":
    run_tests(globals())
