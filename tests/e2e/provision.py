#!/usr/bin/env python3
"""Workers that join with nothing but room: they are told what to hold, fetch it, keep it, and never fetch it twice."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

from swarm import ENV, LINKCPP, MODEL, Swarm, free_port, run_tests

PROMPT = "It was a truth which she could not deny, that Mr. "
TOOLS = os.environ.get("LINKCPP_TOOLS", "")


class Provisioned(Swarm):
    """A swarm over a copy of the model, since the slice index is kept beside it."""

    def __init__(self, model=MODEL):
        super().__init__(model)
        self.model = os.path.join(self.folder.name, "model.gguf")
        shutil.copy(model, self.model)

    def volunteer(self, name, budget, *more):
        return self.start(name, [LINKCPP, "worker", "--join", self.token, "--budget", budget, "--store", self.store(name), "--home",
                                 os.path.join(self.folder.name, name), "--name", name, "--threads", "1", "--share", "127.0.0.1:0", *more])

    def store(self, name):
        return os.path.join(self.folder.name, "store-" + name)

    def serve(self, *more, llama=()):
        if "--slices" not in more:
            more = ("--slices", f"127.0.0.1:{free_port()}", *more)
        return super().serve(*more, llama=llama)

    def given(self):
        return self.status()["slices"]["bytes_given"]

    def expert_bytes(self):
        return json.loads(self.run("inspect", self.model, "--json").stdout)["bytes"]["experts"]


def objects(store):
    return sum(os.path.getsize(os.path.join(folder, file)) for folder, _, files in os.walk(os.path.join(store, "objects")) for file in files)


def test_a_token_and_room_are_enough():
    with Provisioned() as swarm:
        server = swarm.serve("--no-repack")
        one = swarm.volunteer("one", "6M")
        server.process.wait_for("worker one has its experts", 30)
        server.process.wait_for("waiting for experts: .*experts", 10)
        two = swarm.volunteer("two", "64M")
        server.wait_ready()
        answer = server.complete(PROMPT, 24)
        plain = swarm.plain().wait_ready()
        assert answer == plain.complete(PROMPT, 24), answer
        # Each byte left the backbone once: what both hold went from worker to worker.
        total = swarm.expert_bytes()
        two.wait_for("all there", 20)
        assert swarm.given() == total, (swarm.given(), total)
        assert objects(swarm.store("two")) == total
        assert one.stop() == 0 and two.stop() == 0


def test_a_second_start_fetches_nothing():
    with Provisioned() as swarm:
        server = swarm.serve()
        first = {name: swarm.volunteer(name, budget) for name, budget in (("one", "6M"), ("two", "6M"))}
        server.wait_ready()
        before = swarm.given()
        for child in first.values():
            child.stop()
        again = {name: swarm.volunteer(name, "6M") for name in ("two", "one")}  # in the other order
        for child in again.values():
            child.wait_for("all there; 0.0 MB were fetched", 30)
        assert server.complete(PROMPT, 4)[0] == 200
        assert swarm.given() == before, (swarm.given(), before)


def test_a_killed_worker_goes_on_where_it_was():
    with tempfile.TemporaryDirectory(prefix="linkcpp-e2e-") as folder:
        model = os.path.join(folder, "big.gguf")
        subprocess.run([os.path.join(TOOLS, "synth_model"), "--out", model, "--n-embd", "1024", "--n-ff", "512", "--experts", "16", "--layers", "4"],
                       check=True, env=ENV, stdout=subprocess.DEVNULL)
        with Provisioned(model) as swarm:
            server = swarm.serve()
            server.process.wait_for("waiting for experts", 30)
            total, kills = swarm.expert_bytes(), 0
            for pause in (0.02, 0.1, 0.25):
                worker = swarm.volunteer("one", "4G", "--transfers", "2")
                worker.wait_for("assigned", 60)
                time.sleep(pause)
                kills += worker.child.poll() is None
                worker.stop(signal.SIGKILL)
            worker = swarm.volunteer("one", "4G")
            worker.wait_for("all there", 60)
            server.wait_ready()
            # What was under way in sockets when the process died may have been given and not kept: some buffers a kill, never a slice twice.
            assert total <= swarm.given() <= total + kills * (32 << 20), (swarm.given(), total)
            assert objects(swarm.store("one")) == total


def test_slices_come_from_a_file_on_this_machine():
    with Provisioned() as swarm:
        server = swarm.serve()
        worker = swarm.volunteer("one", "64M", "--model", swarm.model)
        worker.wait_for("all there", 30)
        server.wait_ready()
        assert swarm.given() == 0
        # A file of another model is no source, says so, and does no harm.
        other = os.path.join(swarm.folder.name, "other.gguf")
        subprocess.run([os.path.join(TOOLS, "synth_model"), "--out", other], check=True, env=ENV, stdout=subprocess.DEVNULL)
        foreign = swarm.volunteer("two", "64M", "--model", other)
        foreign.wait_for("is no source of slices: it is another model", 30)
        foreign.wait_for("all there", 30)


def test_a_damaged_slice_is_fetched_anew():
    with Provisioned() as swarm:
        server = swarm.serve()
        worker = swarm.volunteer("one", "64M")
        worker.wait_for("all there", 30)
        server.wait_ready()
        worker.stop()
        total = objects(swarm.store("one"))
        folder, file = next((folder, files[0]) for folder, _, files in os.walk(os.path.join(swarm.store("one"), "objects")) if files)
        path = os.path.join(folder, file)
        size = os.path.getsize(path)
        os.truncate(path, size // 2)
        before = swarm.given()
        swarm.volunteer("one", "64M").wait_for("all there", 30)
        assert swarm.given() == before + size and objects(swarm.store("one")) == total


def test_room_that_is_too_small_is_refused_with_what_it_takes():
    with Provisioned() as swarm:
        server = swarm.serve()
        worker = swarm.volunteer("one", "1000")
        worker.wait_for("refused this worker: its budget of 1000 bytes does not suffice .* give it 1105.. or more", 30)
        server.process.wait_for("refused .*budget of 1000 bytes", 10)


def test_a_backbone_that_gives_none_says_so():
    with Provisioned() as swarm:
        server = swarm.serve("--slices", "none")
        worker = swarm.volunteer("one", "64M")
        worker.wait_for("assigns no experts: start the worker with --model FILE", 30)
        server.process.wait_for("linkcpp worker --join lkc1.* --model FILE.gguf", 10)
        refused = swarm.run("serve", "--model", swarm.model, "--slices", "none", "--source", "http://127.0.0.1:1/model.gguf", check=False)
        assert refused.returncode != 0 and "end in /" in refused.stderr, refused.stderr


if __name__ == "__main__":
    run_tests(globals())
