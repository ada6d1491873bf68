#!/usr/bin/env python3
"""`linkcpp gate` over real workers: figures, the signed record, and what `serve --wire auto` makes of it."""
import json
import os
import signal
import subprocess
import tempfile
import time

from swarm import ENV, LINKCPP, MODEL, free_port, run_tests

QUICK = ["--chunk", "128", "--chunks", "2", "--threads", "1"]


def run(*arguments, home, timeout=240):
    return subprocess.run([LINKCPP, *arguments], capture_output=True, text=True, env=dict(ENV, LINKCPP_HOME=home), stdin=subprocess.DEVNULL, timeout=timeout)


def expect(done, code, *texts):
    assert done.returncode == code, f"exit code {done.returncode}, expected {code}:\n{done.stdout}{done.stderr}"
    for text in texts:
        assert text in done.stdout + done.stderr, f"no {text!r} in:\n{done.stdout}{done.stderr}"


def first_notes(home, *options):
    """What serve says about the wire type before its engine starts."""
    serving = subprocess.Popen([LINKCPP, "serve", "--model", MODEL, "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--admin", "none", "--json", *options],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=dict(ENV, LINKCPP_HOME=home))
    try:
        event = json.loads(serving.stdout.readline())
        assert event["event"] == "starting", event
        return event["wire"], " ".join(event["notes"])
    finally:
        serving.send_signal(signal.SIGTERM)
        serving.wait(30)


def test_figures_record_and_choice():
    with tempfile.TemporaryDirectory() as home:
        assert first_notes(home, "--wire", "auto")[0] == "f32"
        assert "no gate record" in first_notes(home, "--mode", "sum", "--wire", "f16")[1]
        done = run("gate", MODEL, *QUICK, "--mode", "raw,sum", "--wire", "f32,f16,int8", "--min-argmax", "0.9", "--json", home=home)
        expect(done, 0)
        report = json.loads(done.stdout)
        rows = {(row["mode"], row["wire"]): row for row in report["rows"]}
        assert len(rows) == 6 and report["devices"] == ["CPU"], report
        assert rows["raw", "f32"]["identical"] and rows["raw", "f32"]["figures"]["max_abs_diff"] == 0, rows["raw", "f32"]
        for setting in (("sum", "f16"), ("sum", "int8")):
            figures = rows[setting]["figures"]
            assert not rows[setting]["identical"] and 0.9 < figures["mean_cosine"] < 1 and figures["rows"] == 126, figures
        # Eight bits lose more than sixteen.
        assert rows["sum", "int8"]["figures"]["mean_kld"] > rows["sum", "f16"]["figures"]["mean_kld"] > 0
        assert os.path.exists(report["record"])
        wire, notes = first_notes(home, "--mode", "sum", "--wire", "auto")
        passed = [row["wire"] for row in report["rows"] if row["mode"] == "sum" and row["passed"]]
        assert wire == ("int8" if "int8" in passed else "f16" if "f16" in passed else "f32"), (wire, notes)
        assert "smallest that passed" in notes, notes
        # What was changed after signing counts for nothing.
        with open(report["record"]) as file:
            text = file.read()
        with open(report["record"], "w") as file:
            file.write(text.replace("0.9", "0.8", 1))
        wire, notes = first_notes(home, "--mode", "sum", "--wire", "auto")
        assert wire == "f32" and "changed after it was signed" in notes, (wire, notes)


def test_workers_of_others_that_join_and_that_are_dialled():
    with tempfile.TemporaryDirectory() as home:
        listen, dialled = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        token = run("token", "--address", listen, home=home).stdout.split()[0]
        shared = [LINKCPP, "worker", "--join", token, "--model", MODEL, "--threads", "1", "--home"]
        workers = [subprocess.Popen([*shared, os.path.join(home, str(i)), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                   for i, options in enumerate((["--experts", "1/2"], ["--experts", "2/2", "--listen", dialled]))]
        try:
            done = run("gate", MODEL, *QUICK, "--mode", "raw,sum", "--wire", "f32", "--workers", "0", "--listen", listen, "--worker", dialled, "--json", home=home)
            expect(done, 0)
            report = json.loads(done.stdout)
            rows = {row["mode"]: row for row in report["rows"]}
            assert report["devices"] == ["CPU"] and rows["raw"]["identical"], report
            assert not rows["sum"]["identical"], "two workers that sum cannot give the same bits: was only one used?"
            assert os.path.exists(report["record"])
            assert all(worker.poll() is None for worker in workers), "a worker ended"
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait(20)


def test_limits_fail_settings_and_strict_fails_the_command():
    with tempfile.TemporaryDirectory() as home:
        done = run("gate", MODEL, *QUICK, "--mode", "sum", "--wire", "f16", "--max-kld", "1e-12", "--strict", home=home)
        expect(done, 5, "sum f16 fails: ", "mean KLD")
        assert first_notes(home, "--mode", "sum", "--wire", "auto")[0] == "f32"
        assert "did not pass the gate" in first_notes(home, "--mode", "sum", "--wire", "f16")[1]


def test_bad_input_is_named():
    with tempfile.TemporaryDirectory() as home:
        expect(run("gate", "nowhere.gguf", home=home), 3, "nowhere.gguf")
        expect(run("gate", MODEL, "--wire", "f64", home=home), 2, "f64")
        expect(run("gate", MODEL, "--mode", "quick", home=home), 2, "quick")
        expect(run("gate", MODEL, "--workers", "0", home=home), 2, "--listen")
        expect(run("gate", MODEL, "--text", "nowhere.txt", home=home), 3, "nowhere.txt")
        short = os.path.join(home, "short.txt")
        with open(short, "w") as file:
            file.write("too short")
        expect(run("gate", MODEL, "--text", short, home=home), 3, "fewer than one chunk")
        expect(run("gate", MODEL, *QUICK, "--workers", "0", "--listen", f"127.0.0.1:{free_port()}", "--wait", "1", home=home), 6, "missing", "layers 0-3")


def test_interrupt_stops_everything_and_writes_nothing():
    with tempfile.TemporaryDirectory() as home:
        gate = subprocess.Popen([LINKCPP, "gate", MODEL, "--chunks", "80", "--threads", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=dict(ENV, LINKCPP_HOME=home))
        time.sleep(2)
        gate.send_signal(signal.SIGINT)
        out, err = gate.communicate(timeout=40)
        assert gate.returncode == 3 and "interrupted" in err, (gate.returncode, err)
        assert not os.path.exists(os.path.join(home, "gates"))


if __name__ == "__main__":
    run_tests(globals())
