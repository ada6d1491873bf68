#!/usr/bin/env python3
"""`linkcpp doctor` behind each kind of NAT and other obstacles, in the lab; and with what is wrong on one machine."""
import json
import os
import re
import subprocess
import sys
import tempfile

from router import home_router, inside_a_network_namespace
from swarm import ENV, LINKCPP, PROJECT, Process, Swarm, free_port, run_tests

TOOLS = os.environ.get("LINKCPP_TOOLS", "")
BENCH = os.path.join(TOOLS, "link_bench")
LAB = os.path.join(PROJECT, "lab")
KINDS = {"full": "full-cone", "address": "address-restricted", "port": "port-restricted", "sym": "symmetric"}
SCENARIO = "seed = 1\n" + "".join(f"""
[[nat]]
name = "nat-{name}"
kind = "{kind}"
delay_ms = 10
[[node]]
name = "{name}"
behind = "nat-{name}"
""" for name, kind in KINDS.items()) + """
[[node]]
name = "one"
delay_ms = 10
[[node]]
name = "two"
delay_ms = 20
[[node]]
name = "public"
delay_ms = 5
[[node]]
name = "mute"
delay_ms = 5
blocks_udp = true
"""


class Relay(Process):
    def __init__(self, folder, at, name, before=()):
        super().__init__(name, [*before, LINKCPP, "relay", "--listen", at, "--home", os.path.join(folder, name), "--json", "--open"])
        ready = json.loads(self.wait_for('"event":"ready"'))
        self.address, self.key = f"relay://{ready['listen']}", ready["key"]


def doctor(*options, before=(), code=0, timeout="2", router=False):
    """What it says as JSON; it is asked about nobody's admin endpoint unless told."""
    options = [*options] + ([] if "--backbone" in options else ["--backbone", "none"]) + ([] if router else ["--no-router"])
    command = [*before, LINKCPP, "doctor", "--timeout", timeout, *options]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60, env=ENV)
    assert done.returncode == code, f"{done.returncode}, not {code}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout) if done.stdout else done.stderr


def words(said, level=None):
    return "\n".join(one["text"] for one in said["advice"] if level in (None, one["level"]))


def in_lab(name, test):
    """Runs a test inside the lab, by starting this file there again."""
    if "LINKCPP_LAB_NODES" in os.environ:
        with tempfile.TemporaryDirectory(prefix="linkcpp-e2e-") as folder:
            return test(folder)
    with tempfile.TemporaryDirectory(prefix="linkcpp-e2e-") as folder:
        scenario = os.path.join(folder, "nats.toml")
        with open(scenario, "w") as file:
            file.write(SCENARIO)
        return subprocess.run([os.path.join(LAB, "run"), scenario, sys.executable, "-B", os.path.abspath(__file__), name], check=True, timeout=240)


def inside(node):
    return (os.path.join(LAB, "in"), node)


def address_of(node):
    return subprocess.run([os.path.join(LAB, "in"), "--address", node], check=True, capture_output=True, text=True).stdout.strip()


def token_of(home, *addresses):
    more = [word for address in addresses for word in ("--address", address)]
    return subprocess.run([LINKCPP, "token", "--home", home, *more], check=True, capture_output=True, text=True, env=ENV).stdout.strip()


def backbone_at(home, address, before=()):
    """One that accepts workers and waits for more of them."""
    backbone = Process("backbone", [*before, BENCH, "ask", "--home", home, "--listen", address, "--links", "99"])
    backbone.wait_for("^listening on ")
    return backbone


def test_names_the_nat():
    def test(folder):
        relays = [Relay(folder, f"{address_of(name)}:7103", name, inside(name)) for name in ("one", "two")]
        try:
            both = [word for relay in relays for word in ("--relay", relay.address)]
            for node in KINDS:
                nat = doctor(*both, before=inside(node))["nat"][0]
                assert nat["kind"] == ("symmetric" if node == "sym" else "cone"), nat
                assert nat["answered"] == 2 and not nat["carrier_grade"], nat
            said = doctor(*both, before=inside("sym"))
            assert "another port (symmetric)" in words(said, "hint") and said["ok"], said
            assert any("symmetric NAT: not directly" in line for line in said["expect"]), said
            assert doctor(*both, before=inside("public"))["nat"][0]["kind"] == "open"
            alone = doctor(*both[:2], before=inside("port"))["nat"][0]
            assert alone["kind"] == "unknown" and "second server" in " ".join(alone["not_known"]), alone
            by_stun = doctor("--stun", f"{address_of('one')}:7103", "--stun", f"{address_of('two')}:7103", before=inside("sym"))
            assert by_stun["nat"][0]["kind"] == "symmetric", by_stun
            text = subprocess.run([*inside("sym"), LINKCPP, "doctor", "--no-router", *both], capture_output=True, text=True, env=ENV, check=True).stdout
            assert "a symmetric NAT: 2 servers see 2 different addresses" in text, text
        finally:
            for relay in relays:
                relay.stop()
    in_lab("test_names_the_nat", test)


def test_udp_that_is_blocked():
    def test(folder):
        relay = Relay(folder, f"{address_of('one')}:7103", "one", inside("one"))
        home = os.path.join(folder, "backbone")
        token = token_of(home, f"{address_of('public')}:7101")
        backbone = backbone_at(home, f"{address_of('public')}:7101", inside("public"))
        try:
            said = doctor("--token", token, before=inside("mute"))
            assert said["nat"][0]["kind"] == "no-udp" and said["choice"]["transport"] == "tcp", said
            assert "UDP does not get out" in words(said, "hint"), said
            said = doctor("--token", token, before=inside("port"))
            assert said["choice"]["transport"] == "quic" and "UDP passes" in said["choice"]["why"], said
            ways = {way["transport"]: way for way in said["token"][0]["ways"]}
            assert ways["tcp"]["works"] and ways["quic"]["works"] and 25 < ways["quic"]["rtt_ms"] < 90, said
        finally:
            backbone.stop()
            relay.stop()
    in_lab("test_udp_that_is_blocked", test)


def test_a_relay_that_is_not_there():
    with tempfile.TemporaryDirectory(prefix="linkcpp-e2e-") as folder:
        relay = Relay(folder, f"127.0.0.1:{free_port()}", "relay")
        gone, backbone = f"relay://127.0.0.1:{free_port()}", None
        try:
            said = doctor("--relay", relay.address, "--relay", gone, code=1)
            assert f"the relay {gone} is not reachable" in words(said, "broken"), said
            assert "not known without --token" in words(said, "hint"), said
            home = os.path.join(folder, "backbone")
            backbone = backbone_at(home, relay.address)
            said = doctor("--token", token_of(home, relay.address))
            assert said["relays"][0]["rtt_ms"] > 0 and said["choice"]["transport"] == "relay", said
            # As somebody else's swarm.
            said = doctor("--token", token_of(os.path.join(folder, "other"), relay.address), code=1)
            assert "does not let this node in" in words(said, "broken"), said
            wrong = f"relay://{'a' * 51}q@{relay.address.removeprefix('relay://')}"
            said = doctor("--relay", wrong, "--token", token_of(home, relay.address), code=1)
            assert "its key is" in words(said, "broken"), said
        finally:
            if backbone:
                backbone.stop()
            relay.stop()


def test_a_wrong_key():
    with tempfile.TemporaryDirectory(prefix="linkcpp-e2e-") as folder:
        at = f"127.0.0.1:{free_port()}"
        home, other = os.path.join(folder, "backbone"), os.path.join(folder, "other")
        backbone = backbone_at(home, at)
        try:
            assert doctor("--token", token_of(home, at))["choice"]["transport"] == "tcp"
            said = doctor("--token", token_of(other, at), code=1)
            assert "not whom it should be" in words(said, "broken") and said["choice"] is None, said
            # One address of two is enough, unless the other is somebody else's.
            gone = f"127.0.0.1:{free_port()}"
            said = doctor("--token", token_of(home, gone, at))
            assert said["choice"]["address"] == at and "before it" in said["choice"]["why"] and gone in words(said, "hint"), said
            said = doctor("--token", token_of(home, gone), code=1)
            assert "does not work" in words(said, "broken") and "private" in words(said, "broken"), said
        finally:
            backbone.stop()


def test_how_workers_are_connected():
    with Swarm() as swarm:
        relay = Relay(swarm.folder.name, f"127.0.0.1:{free_port()}", "relay")
        swarm.children.append(relay)
        through = swarm.worker("through", "1/2", "--listen", relay.address)
        address = re.search(r"relay://\S+/[a-z2-7]{52}", through.wait_for("relay://[^ ]*/[a-z2-7]{52}"))[0]
        swarm.worker("direct", "2/2", "--address", f"tcp://127.0.0.1:{swarm.listen}")
        swarm.serve("--worker", address).wait_ready()
        said = doctor("--backbone", f"http://127.0.0.1:{swarm.admin}", "--home", swarm.home, "--worker", address)
        assert {worker["name"]: worker["transport"] for worker in said["swarm"]["workers"]} == {"through": "relay", "direct": "tcp"}, said
        assert "worker through is connected through a relay" in words(said, "hint"), said
        assert said["workers"][0]["ways"][0]["works"], said
        said = doctor("--token", swarm.token, "--backbone", f"http://127.0.0.1:{swarm.admin}")
        assert {worker["state"] for worker in said["swarm"]["workers"]} == {"joined"}, "looking has thrown nobody out"
        said = doctor("--backbone", f"http://127.0.0.1:{free_port()}", code=1)
        assert "cannot be read" in words(said, "broken"), said


def test_a_router_that_opens_ports():
    """In network namespaces of their own."""
    if "LINKCPP_IN_NAMESPACE" not in os.environ:
        assert inside_a_network_namespace(os.path.abspath(__file__), "test_a_router_that_opens_ports") == 0
        return
    with tempfile.TemporaryDirectory(prefix="linkcpp-e2e-") as folder, home_router(folder) as (_, node):
        said = doctor(before=node, router=True)
        assert said["router"]["protocol"] == "NAT-PMP" and said["router"]["outside"] == "11.22.33.44", said
        assert "opens ports when asked" in words(said, "good"), said


def test_wrong_usage():
    assert "no relay's address" in doctor("--relay", "127.0.0.1:7103", code=2)
    assert "none in" in doctor("--worker", "127.0.0.1:7103", "--home", "/nowhere", code=2)
    assert "join token" in doctor("--token", "nonsense", code=2)


if __name__ == "__main__":
    run_tests(globals())
