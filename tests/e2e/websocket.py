#!/usr/bin/env python3
"""Links by WebSocket through a real reverse proxy (nginx), in the clear and under the web's TLS."""
import contextlib
import json
import os
import subprocess
import tempfile
import urllib.error
import urllib.request

from swarm import ENV, Process, run_tests, web_server

BENCH = os.path.join(os.environ.get("LINKCPP_TOOLS", ""), "link_bench")


@contextlib.contextmanager
def proxy(folder, target, tls=False):
    """nginx that passes /swarm/ on to a node, with its defaults: buffers, 60 s of patience, HTTP/1.0 elsewhere."""
    locations = (f"location /swarm/ {{ proxy_pass http://{target}; proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; "
                 f"proxy_set_header Connection upgrade; }} location /old/ {{ proxy_pass http://{target}; }}")
    with web_server(folder, locations, tls) as (port, home):
        yield f"{'wss://localhost' if tls else 'ws://127.0.0.1'}:{port}", os.path.join(home, "cert.pem")


@contextlib.contextmanager
def answering(folder):
    """A node that listens and answers; its address."""
    node = Process("node", [BENCH, "serve", "--home", os.path.join(folder, "home"), "--listen", "127.0.0.1:0"])
    try:
        yield node.wait_for("^ready ").split()[1], os.path.join(folder, "home")
    finally:
        node.stop()


def ask(home, address, *more, cert="", ok=True):
    done = subprocess.run([BENCH, "ask", "--home", home, address, "--warm-up", "0", *more], capture_output=True, text=True, timeout=120,
                          env=dict(ENV, SSL_CERT_FILE=cert) if cert else ENV)
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return json.loads(done.stdout) if ok else done.stderr


@contextlib.contextmanager
def everything(tls=False):
    with tempfile.TemporaryDirectory(prefix="linkcpp-e2e-") as folder, answering(folder) as (node, home), proxy(folder, node, tls) as (url, cert):
        yield node, home, url, cert


def test_links_pass_through_a_proxy():
    with everything() as (_, home, url, _cert):
        ask(home, url + "/swarm/a?b", "--count", "200")
        ask(home, url + "/swarm/", "--count", "3", "--out", "8000000", "--back", "8000000")
        ask(home, url + "/swarm/", "--count", "5", "--redials", "20")


def test_links_pass_through_a_proxy_with_tls():
    with everything(tls=True) as (_, home, url, cert):
        ask(home, url + "/swarm/", "--count", "200", cert=cert)
        ask(home, url + "/swarm/", "--count", "3", "--out", "8000000", "--back", "8000000", cert=cert)
        ask(home, url + "/swarm/", "--count", "5", "--redials", "20", cert=cert)


def test_a_proxy_that_is_not_trusted_is_refused():
    with everything(tls=True) as (_, home, url, _cert):
        words = ask(home, url + "/swarm/", "--count", "1", "--deadline-s", "3", ok=False)
        assert "is not trusted" in words and "SSL_CERT_FILE" in words, words


def test_a_proxy_that_passes_no_upgrades_is_named():
    with everything() as (_, home, url, _cert):
        words = ask(home, url + "/old/", "--count", "1", "--deadline-s", "3", ok=False)
        assert "answered 426" in words and "does the proxy pass upgrades on" in words, words
        words = ask(home, url + "/nowhere/", "--count", "1", "--deadline-s", "3", ok=False)
        assert "answered 404" in words, words


def test_browsers_are_told_what_this_is():
    with everything() as (node, home, _url, _cert):
        try:
            urllib.request.urlopen(f"http://{node}/", timeout=10)
            raise AssertionError("there is nothing to get")
        except urllib.error.HTTPError as answer:
            assert answer.code == 426 and b"node of a linkcpp swarm" in answer.read()
        ask(home, node, "--count", "10")  # and TLS on the same port


if __name__ == "__main__":
    run_tests(globals())
