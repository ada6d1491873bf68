"""What measurements share: a swarm of worker processes, programs run with and without the plugin, accounts, tables.

Where the built programs are comes from the environment: LINKCPP_BINARY, LINKCPP_PLUGIN, LINKCPP_TOOLS (folder of the tools).
"""
import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from swarm import LINKCPP, PROJECT, Process, Server, free_port

PLUGIN = os.environ.get("LINKCPP_PLUGIN", "libggml-linkcpp.so")
TOOLS = os.environ.get("LINKCPP_TOOLS", "")
SHARED_MODELS = os.environ.get("LINKCPP_SHARED_MODELS", os.path.join(os.path.dirname(PROJECT), "shared", "models"))
BUNDLED_MODELS = os.path.join(PROJECT, "models")
# Two teams of OpenMP threads that spin would fight for the cores and drown what is measured.
BASE_ENV = dict(os.environ, OMP_WAIT_POLICY="passive")
for name in ("GGML_BACKEND_PATH", "LINKCPP_CONFIG", "OMP_NUM_THREADS"):
    BASE_ENV.pop(name, None)


# Set by measure.py --quick: fewer repetitions and less text, to see whether something has changed.
quick = False
# Set by measure.py --full: everything, where the default leaves most of a large grid out.
full = False


def repetitions(full, short):
    return short if quick else full


def say(text):
    print(f"... {text}", file=sys.stderr, flush=True)


def tool(name):
    return os.path.join(TOOLS, name) if TOOLS else name


def find_model(name):
    """Path of NAME.gguf in the repository or in the shared folder, or None."""
    for folder in (BUNDLED_MODELS, SHARED_MODELS):
        path = os.path.join(folder, name + ".gguf")
        if os.path.exists(path):
            return path
    return None


def models(*names):
    """The (name, path) pairs of those that exist; says which do not."""
    found = [(name, find_model(name)) for name in names]
    for name, path in found:
        if path is None:
            say(f"skipped: {name}.gguf is neither in {BUNDLED_MODELS} nor in {SHARED_MODELS}")
    return [(name, path) for name, path in found if path]


def prompt_text():
    """A long text of the kind that the models were trained on; the repository's own prose if the held-out text is absent."""
    for path in (os.path.join(SHARED_MODELS, "eval", "all.txt"), os.path.join(PROJECT, "docs", "architecture.md")):
        if os.path.exists(path):
            return path
    raise FileNotFoundError("no text for prompts")


def run(command, env=None, timeout=900, ok=(0,)):
    """Runs a program to its end; returns its standard output. Its words are quoted if it fails."""
    done = subprocess.run(command, env=env or BASE_ENV, capture_output=True, text=True, errors="replace", timeout=timeout,
                          stdin=subprocess.DEVNULL)
    if done.returncode not in ok:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def last_json(output):
    return json.loads(output.strip().splitlines()[-1])


STATUS_FD = 9


def with_status(command, path):
    """The command with a descriptor for the plugin's events that leads into a file."""
    return ["sh", "-c", f'exec {STATUS_FD}>>"$0" && exec "$@"', path, *command]


def last_account(path):
    """The last account among the events in a file; empty if there is none."""
    account = {}
    if os.path.exists(path):
        with open(path, errors="replace") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    account = event if event.get("event") == "account" else account
    return account


class Rig:
    """Workers on this machine, each optionally behind a delay, and programs that use them. A context manager."""

    def __init__(self, model):
        self.model, self.folder, self.children, self.addresses, self.proxies = model, tempfile.mkdtemp(prefix="linkcpp-measure-"), [], [], {}
        self.home, self.listen, self.runs = os.path.join(self.folder, "backbone"), "", 0
        self.prefix = []  # put before every command, such as taskset

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in reversed(self.children):
            if child.child.poll() is None:
                child.child.kill()
                child.child.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name, command, env=None):
        child = Process(name, self.prefix + command, env or BASE_ENV)
        self.children.append(child)
        return child

    def token(self, address):
        return run([LINKCPP, "token", "--home", self.home, "--address", address]).strip()

    def _worker(self, name, experts, where, threads, more):
        return self.start(name, [LINKCPP, "worker", "--model", self.model, "--experts", experts, "--name", name, "--threads", str(threads),
                                 "--home", os.path.join(self.folder, name), *where, *more])

    def dialling_workers(self, n, threads=1, more=()):
        """n workers that dial the backbone and share the experts."""
        self.listen = f"127.0.0.1:{free_port()}"
        token = self.token(self.listen)
        for i in range(1, n + 1):
            self._worker(f"w{i}", f"{i}/{n}", ["--join", token], threads, more)

    def listening_worker(self, name, experts, one_way_ms=None, threads=1, more=()):
        """A worker that the backbone dials, through a relay that delays if a delay (0 also) is given."""
        port = free_port()
        worker = self._worker(name, experts, ["--join", self.token("127.0.0.1:1"), "--listen", f"127.0.0.1:{port}"], threads, more)
        worker.wait_for("listen", 30)
        self.addresses.append(self.relay(name, f"127.0.0.1:{port}", one_way_ms) if one_way_ms is not None else f"127.0.0.1:{port}")
        return worker

    def relay(self, name, target, one_way_ms):
        proxy = self.start("proxy of " + name, [tool("delay_proxy"), "127.0.0.1:0", target, "--one-way-ms", str(one_way_ms)])
        self.proxies[name] = proxy
        return proxy.wait_for("listening on", 10).rsplit(" ", 1)[1]

    def relayed(self, name):
        """What a worker's relay has counted up to now."""
        proxy = self.proxies[name]
        seen = len(proxy.lines)
        proxy.child.send_signal(signal.SIGUSR1)
        return json.loads(proxy.wait_for("bytes_out", 10, start=seen))

    def plugin_env(self, **settings):
        """The environment in which a llama program loads the plugin, and the file that gets its events."""
        self.runs += 1
        status, path = (os.path.join(self.folder, f"{kind}-{self.runs}.json") for kind in ("status", "config"))
        config = {"model": self.model, "home": self.home, "listen": self.listen, "workers": self.addresses, "status_fd": STATUS_FD,
                  "repack": False, **settings}
        with open(path, "w") as file:
            json.dump(config, file)
        return dict(BASE_ENV, GGML_BACKEND_PATH=PLUGIN, LINKCPP_CONFIG=path), status

    def run(self, command, timeout=900, ok=(0,), **settings):
        """Runs a program with the plugin; returns (its output, the account)."""
        env, status = self.plugin_env(**settings)
        output = run(with_status(self.prefix + command, status), env, timeout, ok)
        return output, last_account(status)

    def llama_server(self, *options, model=None):
        """A plain llama-server."""
        return self._server([], options, None, model)

    def linked_server(self, *options, **settings):
        """llama-server with the plugin; its attribute `status` names the file of events."""
        env, status = self.plugin_env(**settings)
        server = self._server(["--device", "LINKCPP0", "-ngl", "all"], options, env, None, lambda command: with_status(command, status))
        server.status = status
        return server

    def _server(self, first, options, env, model, wrap=lambda command: command):
        port = free_port()
        command = ["llama-server", "-m", model or self.model, "--host", "127.0.0.1", "--port", str(port), "--fit", "off", *first, *map(str, options)]
        return Server(self.start("llama-server", wrap(command), env), port)


def complete(server, prompt, n, **more):
    """A greedy completion as llama-server answers it: content, timings and so on."""
    body = dict(prompt=prompt, n_predict=n, temperature=0, seed=1, cache_prompt=False, ignore_eos=True) | more
    request = urllib.request.Request(server.url + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.loads(answer.read())


def logits(what, model, *options, device="CPU"):
    return [tool("logits"), what, "--model", model, "--device", device, *map(str, options)]


def cpu_seconds(pid):
    """Processor time of a process so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def synthetic_model(name, **shape):
    """A model of random weights, made once and kept beside the build."""
    folder = os.path.join(os.environ.get("LINKCPP_CACHE", tempfile.gettempdir()), "models")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name + ".gguf")
    if not os.path.exists(path):
        say(f"making {path}")
        part = f"{path}.{os.getpid()}.part"
        run([tool("synth_model"), "--out", part, *(str(x) for key, value in shape.items() for x in ("--" + key.replace("_", "-"), value))])
        os.replace(part, path)
    return path


# ---- figures ---------------------------------------------------------------------------------------------------------


def median(values):
    ordered, n = sorted(values), len(values)
    return ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2


def spread(values, form="{:.3f}"):
    """"median (lowest-highest)"."""
    return f"{form.format(median(values))} ({form.format(min(values))}-{form.format(max(values))})"


def batch_times(report, tokens=None, skip=1):
    """Microseconds of a report's batches, of those with this many tokens; the first ones warm up."""
    times = [batch["us"] for batch in report["batches"] if tokens is None or batch["tokens"] == tokens]
    return times[skip:]


class Table:
    """One result: what was measured, its rows, and whether every claim held."""

    def __init__(self, name, title, columns):
        self.name, self.title, self.columns, self.rows, self.notes, self.failures = name, title, columns, [], [], []

    def add(self, *cells):
        self.rows.append([str(cell) for cell in cells])
        say(f"{self.name}: " + " | ".join(self.rows[-1]))

    def note(self, text):
        self.notes.append(text)

    def claim(self, holds, text):
        """Records a claim that did not hold."""
        if not holds:
            self.failures.append(text)
            say(f"{self.name}: FAILED: {text}")
        return holds

    def markdown(self):
        lines = [f"### {self.title}", "", f"`{self.command()}`", "", "| " + " | ".join(self.columns) + " |", "|" + "---|" * len(self.columns)]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        if self.notes:
            lines += [""] + self.notes
        lines += [f"\nNOT MET: {text}" for text in self.failures]
        return "\n".join(lines)

    def command(self):
        return f"scripts/measure {self.name}" + (" --quick" if quick else "") + (" --full" if full else "")

    def json(self):
        return {"name": self.name, "title": self.title, "command": self.command(), "columns": self.columns, "rows": self.rows, "notes": self.notes,
                "not_met": self.failures}


def finish(*tables):
    """Ends a script that made these tables."""
    print("\n\n".join(table.markdown() for table in tables))
    sys.exit(1 if any(table.failures or not table.rows for table in tables) else 0)


def kilobytes(n):
    return f"{n / 1000:.2f}"


def wait_until(condition, timeout, what):
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout} s in vain for {what}")
        time.sleep(0.05)


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))
