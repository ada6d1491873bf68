#!/usr/bin/env python3
"""Ports kept open by a real router program (miniupnpd), by NAT-PMP and by UPnP. Everything in network namespaces of its own."""
import json
import os
import signal
import sys
import tempfile
import time

from router import OUTSIDE, home_router, inside_a_network_namespace
from swarm import Process, run_tests

TOOL = os.path.join(os.environ.get("LINKCPP_TOOLS", ""), "port_map")


def mapper(node, *options):
    return Process("port_map", [*node, TOOL, *options])


def event(process, name, timeout=30, start=0):
    return json.loads(process.wait_for(f'"event":"{name}"', timeout, start))


def kept_open_and_taken_back(protocol, by, **router_options):
    with tempfile.TemporaryDirectory(prefix="linkcpp-e2e-") as folder, home_router(folder, **router_options) as (router, node):
        one = mapper(node, "--port", "7101", "--protocol", protocol, "--lease", "4")
        mapped = event(one, "mapped")
        assert mapped["at"] == f"{OUTSIDE}:7101" and mapped["tcp_port"] == 7101 and mapped["by"].startswith(by), mapped
        one.stop()
        event(one, "ended")
        return router.output()


def test_by_natpmp():
    said = kept_open_and_taken_back("natpmp", "NAT-PMP 192.168.77.1")
    assert "lifetime=0s" in said, said


def test_by_upnp():
    said = kept_open_and_taken_back("upnp", "UPnP http://192.168.77.1", protocols="no")
    assert "DeletePortMapping" in said, said


def test_by_upnp_where_the_router_knows_no_natpmp():
    kept_open_and_taken_back("any", "UPnP http://192.168.77.1", protocols="no")


def test_renewed():
    with tempfile.TemporaryDirectory(prefix="linkcpp-e2e-") as folder, home_router(folder) as (router, node):
        one = mapper(node, "--protocol", "natpmp", "--lease", "4")
        event(one, "mapped")
        deadline = time.monotonic() + 20
        while router.output().count("port mapping request : 7101->") < 6:  # UDP and TCP, three times
            assert time.monotonic() < deadline, router.output()
            time.sleep(0.1)
        one.stop()


def test_a_router_that_refuses_says_so():
    """By UPnP: asked by NAT-PMP, miniupnpd tries all ports one after the other, which takes it longer than anybody waits."""
    with tempfile.TemporaryDirectory(prefix="linkcpp-e2e-") as folder, home_router(folder, allow="2000-2100", protocols="no") as (_, node):
        one = mapper(node, "--port", "7101", "--protocol", "upnp")
        assert "refuses" in event(one, "trouble")["why"], one.output()
        one.stop()


def test_no_router():
    with tempfile.TemporaryDirectory(prefix="linkcpp-e2e-") as folder, home_router(folder) as (router, node):
        router.stop(signal.SIGKILL)
        one = mapper(node)
        why = event(one, "trouble")["why"]
        assert "192.168.77.1" in why and "UPnP" in why, why
        one.stop()


if __name__ == "__main__":
    if "LINKCPP_IN_NAMESPACE" not in os.environ:
        sys.exit(inside_a_network_namespace(os.path.abspath(__file__), *sys.argv[1:]))
    run_tests(globals())
