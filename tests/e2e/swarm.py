"""Starts real swarms for end-to-end tests: token, workers, serve, and plain llama-server for comparison."""
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
PROJECT = os.path.dirname(os.path.dirname(HERE))
LINKCPP = os.environ.get("LINKCPP_BINARY", "linkcpp")
MODEL = os.environ.get("LINKCPP_TEST_MODEL", os.path.join(PROJECT, "models", "tinymoe-a-q4_k_s.gguf"))
ENV = dict(os.environ, OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="1")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Process:
    """A child whose output is kept line by line and can be waited for."""

    def __init__(self, name, command, env=None):
        self.name, self.lines, self.changed, self.said_all = name, [], threading.Condition(), False
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                      env=env or ENV, text=True, errors="replace")
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.child.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.said_all = True
            self.changed.notify_all()

    def output(self):
        with self.changed:
            return "\n".join(self.lines)

    def wait_for(self, pattern, timeout=30, start=0):
        """Waits for a line that matches; returns it."""
        deadline, seen = time.monotonic() + timeout, start
        while True:
            with self.changed:
                while seen < len(self.lines):
                    if re.search(pattern, self.lines[seen]):
                        return self.lines[seen]
                    seen += 1
                left = deadline - time.monotonic()
                if left <= 0 or self.said_all:  # one that has ended may still have lines under way
                    raise AssertionError(f"{self.name}: no line matched {pattern!r} in {timeout} s; its output:\n" + "\n".join(self.lines[-40:]))
                self.changed.wait(min(left, 0.2))

    def stop(self, sig=signal.SIGTERM, timeout=15):
        if self.child.poll() is None:
            self.child.send_signal(sig)
            try:
                self.child.wait(timeout)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
                raise AssertionError(f"{self.name} did not stop within {timeout} s of signal {sig}")
        return self.child.wait()


@contextlib.contextmanager
def web_server(folder, server, tls=False, http=""):
    """nginx on loopback; `server` and `http` are directives of these blocks. Its port and its folder, in which are access.log and, with TLS,
    the certificate cert.pem for localhost."""
    port, home = free_port(), tempfile.mkdtemp(dir=folder)
    listen, secure = str(port), ""
    if tls:
        key, cert = os.path.join(home, "key.pem"), os.path.join(home, "cert.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                        "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert], check=True, capture_output=True)
        listen, secure = f"{port} ssl", f"ssl_certificate {cert}; ssl_certificate_key {key};"
    with open(os.path.join(home, "nginx.conf"), "w") as file:
        file.write(f"""{"user root; " if os.geteuid() == 0 else ""}daemon off; pid {home}/pid; error_log {home}/error.log; worker_processes 1;
events {{}}
http {{ access_log {home}/access.log combined; client_body_temp_path {home}/a; proxy_temp_path {home}/b; fastcgi_temp_path {home}/c;
uwsgi_temp_path {home}/d; scgi_temp_path {home}/e; {http}
server {{ listen 127.0.0.1:{listen}; {secure} {server} }} }}""")
    process = subprocess.Popen(["/usr/sbin/nginx", "-e", f"{home}/error.log", "-c", f"{home}/nginx.conf"])
    try:
        for _ in range(100):
            if os.path.exists(f"{home}/pid") and open(f"{home}/pid").read().strip():
                break
            time.sleep(0.05)
        yield port, home
    finally:
        process.terminate()
        process.wait()


def engines(port):
    """Process ids of the llama-servers that were told to serve on a port."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read().split(b"\0")
        except OSError:
            continue
        if command[0].endswith(b"llama-server") and str(port).encode() in command:
            found.append(int(pid))
    return found


class Server:
    """What answers HTTP: plain llama-server, or llama-server under `linkcpp serve`."""

    def __init__(self, process, port):
        self.process, self.port, self.url = process, port, f"http://127.0.0.1:{port}"

    def wait_ready(self, timeout=60):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.child.poll() is not None:
                raise AssertionError(f"{self.process.name} ended with {self.process.child.returncode}:\n" + self.process.output()[-4000:])
            try:
                if self.get("/health", timeout=2)[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"{self.process.name} was not ready within {timeout} s:\n" + self.process.output()[-4000:])

    def get(self, path, timeout=10):
        with urllib.request.urlopen(self.url + path, timeout=timeout) as answer:
            return answer.status, answer.read()

    def complete(self, prompt, n=48, timeout=120, **more):
        """Greedy completion. Returns (HTTP status, text or error body)."""
        body = dict(prompt=prompt, n_predict=n, temperature=0, seed=1, cache_prompt=False, ignore_eos=True)
        body.update(more)
        request = urllib.request.Request(self.url + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, json.loads(answer.read())["content"]
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")


class Swarm:
    """One swarm in a temporary folder. Use as a context manager: everything is ended and removed."""

    def __init__(self, model=MODEL):
        self.model, self.folder, self.children = model, tempfile.TemporaryDirectory(prefix="linkcpp-e2e-"), []
        self.listen, self.http, self.admin = free_port(), free_port(), free_port()
        self.home = os.path.join(self.folder.name, "backbone")
        self.token = self.run("token", "--home", self.home, "--address", f"127.0.0.1:{self.listen}").stdout.strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in reversed(self.children):
            if child.child.poll() is None:
                child.child.kill()
                child.child.wait()
        self.folder.cleanup()

    def run(self, *arguments, check=True, timeout=60):
        done = subprocess.run([LINKCPP, *arguments], capture_output=True, text=True, env=ENV, timeout=timeout, stdin=subprocess.DEVNULL)
        if check and done.returncode != 0:
            raise AssertionError(f"linkcpp {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def start(self, name, command):
        child = Process(name, command)
        self.children.append(child)
        return child

    def worker(self, name, experts="all", *more, model=None, token=None):
        return self.start(name, [LINKCPP, "worker", "--model", model or self.model, "--experts", experts, "--join", token or self.token,
                                 "--home", os.path.join(self.folder.name, name), "--name", name, "--threads", "1", *more])

    def serve(self, *more, llama=()):
        process = self.start("serve", [LINKCPP, "serve", "--model", self.model, "--home", self.home, "--listen", f"127.0.0.1:{self.listen}",
                                       "--http", f"127.0.0.1:{self.http}", "--admin", f"127.0.0.1:{self.admin}", "-v", *more, "--",
                                       "-t", "1", "-c", "4096", *llama])
        return Server(process, self.http)

    def plain(self, *llama, repack=False):
        port = free_port()
        command = ["llama-server", "-m", self.model, "--host", "127.0.0.1", "--port", str(port), "-t", "1", "-c", "4096", *llama]
        return Server(self.start("llama-server", command + ([] if repack else ["--no-repack"])), port)

    def status(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/v1/swarm", timeout=5) as answer:
            return json.loads(answer.read())


def run_tests(module_globals):
    """Runs every function named test_* (or those named on the command line) and prints a summary that test runners understand."""
    wanted = [a for a in sys.argv[1:] if not a.startswith("-")]
    names = [n for n in module_globals if n.startswith("test_") and (not wanted or n in wanted)]
    failed = []
    for name in names:
        started = time.monotonic()
        try:
            module_globals[name]()
            print(f"ok   {name} ({time.monotonic() - started:.1f} s)", flush=True)
        except Exception as error:  # a test may fail in any way; all are reported
            failed.append(name)
            print(f"FAIL {name} ({time.monotonic() - started:.1f} s): {type(error).__name__}: {error}", flush=True)
    print(f"{len(names) - len(failed)} passed, {len(failed)} failed")
    sys.exit(1 if failed or not names else 0)
