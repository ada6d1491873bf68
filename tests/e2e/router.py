"""A home router for tests: miniupnpd in a network namespace of its own, with a node behind it in another.

There is no NAT between them, only what speaks with the router: nothing is sent through.
"""
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time

from swarm import Process

OUTSIDE = "11.22.33.44"  # miniupnpd does not believe in addresses that are reserved for tests
ROUTER, NODE = "192.168.77.1", "192.168.77.2"


def inside_a_network_namespace(script, *arguments):
    """Runs the script again where it may change the network; its exit code."""
    rights = [] if os.geteuid() == 0 else ["-Ur"]
    environment = dict(os.environ, LINKCPP_IN_NAMESPACE="1")
    return subprocess.run(["unshare", *rights, "-n", sys.executable, "-B", script, *arguments], env=environment, timeout=240).returncode


def make_chains(table, chains):
    """A table and chains in nf_tables, by netlink, as miniupnpd expects them: there is no nft here. A chain has a name and, if it is to see
    packets, (type, hook, priority)."""
    def attribute(kind, body):
        return struct.pack("HH", 4 + len(body), kind) + body + b"\0" * (-len(body) % 4)

    def text(kind, value):
        return attribute(kind, value.encode() + b"\0")

    def message(kind, flags, family, body=b"", resource=0):
        return struct.pack("IHHII", 20 + len(body), kind, flags, 1, 0) + struct.pack("!BBH", family, 0, resource) + body

    request, acknowledged, create, inet, nf_tables = 1, 4, 0x400, 1, 10
    changes = [message(nf_tables << 8, request | acknowledged | create, inet, text(1, table))]
    for name, hook in chains:
        body = text(1, table) + text(3, name)
        if hook:
            kind, number, priority = hook
            body += attribute(0x8000 | 4, attribute(1, struct.pack("!I", number)) + attribute(2, struct.pack("!i", priority))) + text(7, kind)
        changes.append(message(nf_tables << 8 | 3, request | acknowledged | create, inet, body))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as netfilter:
        netfilter.bind((0, 0))
        netfilter.settimeout(5)
        netfilter.send(message(0x10, request, 0, resource=nf_tables) + b"".join(changes) + message(0x11, request, 0, resource=nf_tables))
        for _ in changes:
            answer = netfilter.recv(65536)
            error = struct.unpack("i", answer[16:20])[0]
            assert error == 0, f"nf_tables refuses: error {error}"


@contextlib.contextmanager
def home_router(folder, outside=OUTSIDE, allow="1024-65535", protocols="yes"):
    """Yields (router's process, prefix of commands that run on the node behind it). In a network namespace that may be changed."""
    def ip(*words, before=()):
        subprocess.run([*before, "ip", *words], check=True)

    sleeper = subprocess.Popen(["unshare", "-n", "sleep", "600"])
    router = None
    node = ("nsenter", f"--net=/proc/{sleeper.pid}/ns/net", "--")
    own = os.stat("/proc/self/ns/net").st_ino
    try:
        while os.stat(f"/proc/{sleeper.pid}/ns/net").st_ino == own:
            time.sleep(0.01)
        ip("link", "set", "lo", "up")
        ip("link", "add", "lan0", "type", "veth", "peer", "name", "host0")
        ip("link", "add", "wan0", "type", "veth", "peer", "name", "wan1")
        for name, address in (("wan0", outside), ("lan0", ROUTER)):
            ip("addr", "add", f"{address}/24", "dev", name)
            ip("link", "set", name, "up")
        ip("link", "set", "wan1", "up")
        ip("link", "set", "host0", "netns", str(sleeper.pid))
        for words in ("link set lo up", f"addr add {NODE}/24 dev host0", "link set host0 up", f"route add default via {ROUTER}"):
            ip(*words.split(), before=node)
        make_chains("filter", [("miniupnpd", None), ("prerouting_miniupnpd", ("nat", 0, -100)), ("postrouting_miniupnpd", ("nat", 4, 100))])
        config = os.path.join(folder, "miniupnpd.conf")
        with open(config, "w") as file:
            file.write(f"""ext_ifname=wan0
{f'ext_ip={outside}' if outside == OUTSIDE else ''}
listening_ip=lan0
enable_pcp_pmp={protocols}
enable_upnp=yes
secure_mode=yes
uuid=00000000-0000-0000-0000-000000000001
upnp_table_name=filter
upnp_nat_table_name=filter
upnp_forward_chain=miniupnpd
upnp_nat_chain=prerouting_miniupnpd
upnp_nat_postrouting_chain=postrouting_miniupnpd
allow {allow} 192.168.77.0/24 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
""")
        router = Process("miniupnpd", ["miniupnpd", "-d", "-f", config, "-P", os.path.join(folder, "miniupnpd.pid")])
        router.wait_for("HTTP listening on port")
        yield router, node
    finally:
        if router:
            router.stop(signal.SIGKILL)  # it does not always listen to others
        sleeper.kill()
        sleeper.wait()
        for name in ("lan0", "wan0"):
            subprocess.run(["ip", "link", "del", name], stderr=subprocess.DEVNULL)
