#!/usr/bin/env python3
"""Other kinds of devices: Vulkan as base and as worker, an arm64 worker, each with each and all of them in one swarm.

Vulkan is mesa's llvmpipe, which computes on the CPU but has device memory and asynchronous execution, as a graphics card has. The arm64
worker is a cross-built linkcpp under qemu-user (`scripts/build arm64`). Both are slow; one token is computed at a time, as in decoding,
since llvmpipe needs minutes to compile the programs for long prompts.
"""
import json
import os
import re
import subprocess
import sys

import lib
from lib import PROJECT, LINKCPP, Rig, Table
from swarm import free_port

# What the same model reaches between kinds of devices (docs/accuracy.md).
MIN_COSINE, MAX_KLD, MIN_SAME_TOKEN = 0.998, 0.01, 0.9
MODEL = os.path.join(PROJECT, "models", "tinymoe-a-q4_k_s.gguf")
TEXT = os.path.join(PROJECT, "models", "held-out-austen.txt")
# The first request waits until llvmpipe has compiled its programs; it keeps them for the next time.
FIRST_REQUEST_MS = 300_000
VULKAN = dict(lib.BASE_ENV, GGML_VK_VISIBLE_DEVICES="0", VK_LOADER_DRIVERS_SELECT="*lvp*",
              MESA_SHADER_CACHE_DIR=os.path.join(os.environ.get("LINKCPP_CACHE", "/tmp"), "mesa"))


def of_script(*command):
    return subprocess.run([os.path.join(PROJECT, "scripts", command[0]), *command[1:]], capture_output=True, text=True, check=True).stdout.strip()


def arm64():
    """The command that runs the arm64 program, or None and the reason."""
    binary, sysroot = os.path.join(of_script("build", "--dir", "arm64"), "src", "linkcpp"), of_script("sysroot-arm64", "--path")
    if not os.path.exists(binary) or not os.path.isdir(sysroot):
        return None, f"{binary} is missing: run scripts/build arm64"
    # A phone's processor. qemu's widest one claims SME, on which a probe of the engine's ends with an illegal instruction.
    return ["qemu-aarch64", "-cpu", "cortex-a76", "-L", sysroot, binary], ""


def vulkan_present():
    listed = subprocess.run([LINKCPP, "worker", "--list-devices"], env=VULKAN, capture_output=True, text=True, timeout=120).stdout
    return "Vulkan0" in listed, listed


class Devices(Rig):
    """Workers on each kind of device, and the model's logits over any of them."""

    def __init__(self, model, program_of_arm64, context):
        super().__init__(model)
        self.arm64, self.recordings = program_of_arm64, 0
        self.shape = ["--text", TEXT, "--chunks", 1, "--context", context, "--ubatch", 1, "--no-repack"]

    def worker(self, kind, experts):
        """Starts a worker that the backbone dials; returns its address."""
        name, port = f"{kind}-{experts.replace('/', '-')}", free_port()
        program = self.arm64 if kind == "arm64" else [LINKCPP]
        child = self.start(name, [*program, "worker", "--model", self.model, "--experts", experts, "--name", name, "--threads", "1",
                                  "--device", "Vulkan0" if kind == "Vulkan0" else "CPU", "--home", os.path.join(self.folder, name),
                                  "--join", self.token("127.0.0.1:1"), "--listen", f"127.0.0.1:{port}"],
                           VULKAN if kind == "Vulkan0" else lib.BASE_ENV)
        child.wait_for("listen", 120)
        return f"127.0.0.1:{port}"

    def record(self, device, env, wrap=lambda command: command, more=()):
        """Records the logits of a device; returns the recording and what the engine logged."""
        self.recordings += 1
        path = os.path.join(self.folder, f"logits-{self.recordings}")
        command = wrap(lib.logits("eval", self.model, *self.shape, *more, "--out", path, device=device))
        done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", timeout=600, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            workers = "\n".join(f"{c.name}: " + "\n".join(c.output().splitlines()[-6:]) for c in self.children)
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}\n{workers}")
        return path, done.stderr

    def linked(self, base, addresses):
        """Logits over workers; returns the recording, the engine's log and the plugin's events."""
        self.addresses = addresses
        env, status = self.plugin_env(base=base, deadline_ms=FIRST_REQUEST_MS)
        if base == "Vulkan0":
            env = VULKAN | {name: env[name] for name in ("GGML_BACKEND_PATH", "LINKCPP_CONFIG")}
        path, log = self.record("LINKCPP0", env, lambda command: lib.with_status(command, status), ["-v"])
        with open(status, errors="replace") as file:
            events = [json.loads(line) for line in file if line.startswith("{")]
        return path, log, events

    def compare(self, reference, judged):
        return lib.last_json(lib.run([lib.tool("logits"), "compare", reference, judged], ok=(0, 3)))


def add_row(table, base, workers, report, bound=True, note=""):
    table.add(base, workers, report["rows"], f"{report['mean_cosine']:.6f}", f"{report['worst_cosine']:.6f}",
              f"{100 * report['argmax_agreement']:.1f} %", f"{report['mean_kld']:.2e}", note)
    if bound:
        good = report["mean_cosine"] >= MIN_COSINE and report["mean_kld"] <= MAX_KLD and report["argmax_agreement"] >= MIN_SAME_TOKEN
        table.claim(good, f"base {base}, workers {workers}: beyond the limits: {report}")


def megabytes(log, buffer):
    """Size of the model's weights in a kind of buffer, as the engine logs it."""
    return sum(float(size) for size in re.findall(rf"{buffer}\S* model buffer size = +([0-9.]+) MiB", log))


def check_placement(table, log, anatomy):
    """Experts stay in the mapped file: the device's memory holds the rest only."""
    on_device, mapped = megabytes(log, "Vulkan0"), megabytes(log, "CPU_Mapped")
    experts = anatomy["bytes"]["experts"] / 2**20
    rest = os.path.getsize(MODEL) / 2**20 - experts
    table.note(f"Weights with base Vulkan0: {on_device:.1f} MiB in device memory, {mapped:.1f} MiB stay mapped, of which {experts:.1f} MiB are experts.")
    table.claim(0 < on_device <= rest * 1.5, f"{on_device} MiB of weights in device memory, where all but the experts are {rest:.1f} MiB:\n{log[-3000:]}")
    table.claim(mapped >= experts, f"only {mapped} MiB of weights stay mapped, experts alone are {experts:.1f} MiB")


def check_events(table, base, workers, kinds, events):
    devices = {e.get("name", ""): e.get("device", "") for e in events if e.get("event") == "worker_joined"}
    steps = max([e.get("total", {}).get("steps", 0) for e in events if e.get("event") == "account"] or [0])
    table.claim(steps > 0, f"base {base}, workers {workers}: nothing was dispatched, so nothing was shown")
    for kind in kinds:
        announced = {"CPU": "CPU (", "Vulkan0": "Vulkan0 (", "arm64": "CPU arm64 ("}[kind]
        table.claim(any(d.startswith(announced) for d in devices.values()), f"no worker announced itself as {announced}...): {devices}")


def measure():
    table = Table("devices", "Kinds of devices, against plain llama.cpp on the CPU",
                  ["base", "workers", "positions", "mean cosine", "worst cosine", "same top token", "mean KLD", "against plain llama.cpp on the base"])
    program, reason = arm64()
    kinds = ["CPU", "Vulkan0", "arm64"] if program else ["CPU", "Vulkan0"]
    present, listed = vulkan_present()
    if not present:
        raise AssertionError(f"there is no Vulkan device (libggml0-backend-vulkan, mesa-vulkan-drivers); there are:\n{listed}")
    if not program:
        table.note(f"SKIPPED: arm64 workers: {reason}")
        lib.say(table.notes[-1])
    with Devices(MODEL, program, 48 if lib.quick else 128) as rig:
        plain = {"CPU": rig.record("CPU", lib.BASE_ENV)[0], "Vulkan0": rig.record("Vulkan0", VULKAN)[0]}
        add_row(table, "plain Vulkan0", "none", rig.compare(plain["CPU"], plain["Vulkan0"]))
        swarms = [(kind, [kind], [rig.worker(kind, "all")]) for kind in kinds]
        n = len(kinds)
        swarms.append((f"{n} kinds in one swarm", kinds, [rig.worker(kind, f"{i}/{n}") for i, kind in enumerate(kinds, 1)]))
        anatomy = json.loads(lib.run([LINKCPP, "inspect", "--json", MODEL]))
        for base in ("CPU", "Vulkan0"):
            for name, of, addresses in swarms:
                path, log, events = rig.linked(base, addresses)
                same = rig.compare(plain[base], path)
                add_row(table, base, name, rig.compare(plain["CPU"], path), note="identical" if same["identical"] else f"cosine {same['mean_cosine']:.6f}")
                check_events(table, base, name, of, events)
                if base == name:
                    table.claim(same["identical"], f"base and worker are both {base}: not identical to plain llama.cpp there: {same}")
            if base == "Vulkan0":
                check_placement(table, log, anatomy)
    return table


if __name__ == "__main__":
    lib.quick = "--quick" in sys.argv[1:]
    lib.finish(measure())
