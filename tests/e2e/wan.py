"""What measurements in the WAN lab share: scenarios made on the fly, a script that runs itself inside one, links between its nodes.

A measurement is one file with two halves: measure() outside, which writes scenarios and reads results, and inside(), which in_lab() runs beside the
emulator: there node() enters nodes. Everything that inside() starts dies with the lab.
"""
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile

import lib
from lib import LINKCPP, PROJECT, Rig
from swarm import Process, free_port

LATE_MS = 2.0  # p99 of the emulator's lateness above which a figure is not to be trusted
LAB = os.path.join(PROJECT, "lab")


# ---- outside ---------------------------------------------------------------------------------------------------------


def toml(tables):
    """A scenario from ("node" or "nat" or "path", members) pairs."""
    def value(v):
        return ("true" if v else "false") if isinstance(v, bool) else json.dumps(v)
    return "seed = 1\n" + "".join(f"[[{kind}]]\n" + "".join(f"{key} = {value(v)}\n" for key, v in members.items()) for kind, members in tables)


def in_lab(script, tables, argument, timeout=3600):
    """Runs `SCRIPT inside` in a lab; what it returns, and the lab's report."""
    with tempfile.TemporaryDirectory(prefix="linkcpp-wan-") as folder:
        paths = {name: os.path.join(folder, name) for name in ("scenario.toml", "report.json", "argument.json", "result.json")}
        with open(paths["scenario.toml"], "w") as file:
            file.write(toml(tables))
        with open(paths["argument.json"], "w") as file:
            json.dump(argument, file)
        command = [os.path.join(LAB, "run"), paths["scenario.toml"], "--report", paths["report.json"], sys.executable, "-B", os.path.abspath(script), "inside",
                   paths["argument.json"], paths["result.json"]]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=timeout)
        if done.returncode != 0:
            raise AssertionError(f"{os.path.basename(script)} in the lab ended with {done.returncode}")
        with open(paths["result.json"]) as result, open(paths["report.json"]) as report:
            return json.load(result), json.load(report)


def lateness(report):
    """Of a lab run, for people, and whether it is small enough."""
    late = report["late_ms"]
    return f"p50 {late['p50']:.2f}, p99 {late['p99']:.2f}, worst {late['worst']:.1f} ms", late["p99"] <= LATE_MS


def site(report, name):
    return next(site for site in report["sites"] if site["name"] == name)


def realised_loss(report, *names):
    """Share of packets lost on the lines of these sites, both directions."""
    lines = [site(report, name)[direction] for name in names for direction in ("up", "down")]
    packets = sum(line["packets"] for line in lines)
    return sum(line["lost"] for line in lines) / packets if packets else 0


def load():
    return f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


# ---- inside ----------------------------------------------------------------------------------------------------------


def run_inside(inside):
    """The end of a measurement's file: runs the half that the arguments name."""
    if sys.argv[1:2] == ["inside"]:
        with open(sys.argv[2]) as file:
            result = inside(json.load(file))
        with open(sys.argv[3], "w") as file:
            json.dump(result, file)
        sys.exit(0)


def node(name):
    """The prefix of a command that runs in a node."""
    return [os.path.join(LAB, "in"), name]


def address(name):
    return lib.run([os.path.join(LAB, "in"), "--address", name]).strip()


def change(*arguments):
    return lib.run([os.path.join(LAB, "in"), *arguments])


@contextlib.contextmanager
def within(name):
    """This thread is in a node's network meanwhile: its new sockets and its new children are there."""
    spaces = dict(entry.split("=") for entry in os.environ["LINKCPP_LAB_NODES"].split())
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/proc/{os.environ['LINKCPP_LAB_PID']}/fd/{spaces[name]}", os.O_RDONLY)
    try:
        os.setns(there, os.CLONE_NEWNET)
        yield
    finally:
        os.setns(home, os.CLONE_NEWNET)
        os.close(home)
        os.close(there)


class FarRig(Rig):
    """A rig whose backbone is in the node "backbone" and whose workers are in nodes of their own."""

    def far_worker(self, where, experts, scheme="", more=()):
        """A worker that the backbone dials."""
        with within(where):
            port = free_port()
            worker = self._worker(f"at-{where}", experts, ["--join", self.token("127.0.0.1:1"), "--listen", f"0.0.0.0:{port}"], 1, more)
            worker.wait_for("listen", 30)
        self.addresses.append(f"{scheme}{address(where)}:{port}")
        return worker

    def relayed_worker(self, where, experts, relay):
        """A worker that the backbone dials at a relay."""
        with within(where):
            worker = self._worker(f"at-{where}", experts, ["--join", self.token("127.0.0.1:1"), "--listen", relay, "--no-direct"], 1, ())
            self.addresses.append(re.search(r"relay://\S+/[a-z2-7]{52}", worker.wait_for("relay://[^ ]*/[a-z2-7]{52}", 30))[0])
        return worker

    def server(self, *options, linked=True, **settings):
        with within("backbone"):
            return (self.linked_server(*options, **settings) if linked else self.llama_server(*options)).wait_ready(120)


def complete(server, prompt, n):
    """lib.complete(), asked inside the backbone's node."""
    with within("backbone"):
        return lib.complete(server, prompt, n)


# ---- transports ------------------------------------------------------------------------------------------------------

PORT = 7000
QUIC_KINDS = {"quic": (), "quic, no copies": ("--quic-echo", "off"), "quic, always copies": ("--quic-echo", "always"),
              "quic cubic": ("--quic-congestion-control", "cubic"), "quic cubic, no copies": ("--quic-congestion-control", "cubic", "--quic-echo", "off")}


RELAY_PORT = 7103


class Transport:
    """How a server is listened to and dialled: `{host}` is the server's address, `{relay}` the relay's. `behind`: a kind of NAT around both."""

    def __init__(self, name, listen, dial, missing=None, options=(), relayed=False, behind=None):
        self.name, self.listen, self.dial, self.missing, self.options, self.relayed, self.behind = name, listen, dial, missing, list(options), relayed, behind


def transports():
    """All that are measured. What cannot be is said."""
    plain = [Transport("plain socket", f"0.0.0.0:{PORT}", f"{{host}}:{PORT}"), Transport("tcp", f"0.0.0.0:{PORT}", f"tcp://{{host}}:{PORT}")]
    quic = [Transport(name, f"0.0.0.0:{PORT}", f"quic://{{host}}:{PORT}", options=options) for name, options in QUIC_KINDS.items()]
    relay = Transport("relay", f"relay://{{relay}}:{RELAY_PORT}", "", relayed=True)
    punched = Transport("punched", relay.listen, "", options=("--punch", f"{{relay}}:{RELAY_PORT}"), relayed=True, behind="port-restricted")
    return plain + [Transport("ws", f"0.0.0.0:{PORT}", f"ws://{{host}}:{PORT}")] + quic + [relay, punched, Transport("wss", "", "", "needs a web server in front")]


def start_relay(name, home):
    """`linkcpp relay` in a node, which answers STUN as well."""
    relay = Process("relay", node(name) + [LINKCPP, "relay", "--listen", f"0.0.0.0:{RELAY_PORT}", "--open", "--home", home, "--json"])
    relay.wait_for('"event":"ready"', 30)
    return relay


def options_of(transport, relay):
    return [option.format(relay=relay) for option in transport["options"]]


def serve(transport, name, home, relay=""):
    """Starts the answering side in a node; `transport` has the members of a Transport, `relay` is the address of the relay's node."""
    listen = transport["listen"].format(relay=relay)
    if transport["name"] == "plain socket":
        return Process("socket_bench", node(name) + [lib.tool("socket_bench"), "serve", listen])
    return Process("link_bench", node(name) + [lib.tool("link_bench"), "serve", "--home", home, "--listen", listen, *options_of(transport, relay)])


def address_of(transport, server, name):
    """What to dial for a server that runs in a node."""
    ready = server.wait_for("^ready", 30)
    return ready.split()[1] if transport["relayed"] else transport["dial"].format(host=address(name))


def ask(transport, name, home, addresses, options, hedges=(), relay=""):
    """Starts the asking side in a node."""
    options = [str(x) for key, value in options.items() for x in ("--" + key.replace("_", "-"), value)]
    if transport["name"] == "plain socket":
        command = [lib.tool("socket_bench"), "ask", *addresses, *options]
    else:
        options += [x for hedge in hedges for x in ("--hedge", hedge)]
        command = [lib.tool("link_bench"), "ask", "--home", home, *addresses, *options, *options_of(transport, relay)]
    return subprocess.Popen(node(name) + command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answer_of(process, timeout):
    """The JSON that an asking side printed, or {"error": ...}."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"error": f"not done within {timeout} s"}
    if process.returncode != 0 or not out.strip():
        return {"error": (err.strip().splitlines() or [f"ended with {process.returncode}"])[-1]}
    return json.loads(out)
