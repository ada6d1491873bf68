#!/usr/bin/env python3
"""The commands as people type them: what they print, what they refuse, with which exit code."""
import json
import os
import socket
import stat
import struct
import subprocess
import tempfile

from swarm import ENV, LINKCPP, MODEL, free_port, run_tests

OK, WRONG, MISSING, INCOMPATIBLE = 0, 2, 3, 5


def run(*arguments, env=None, timeout=60):
    return subprocess.run([LINKCPP, *arguments], capture_output=True, text=True, env=dict(ENV, **(env or {})), stdin=subprocess.DEVNULL, timeout=timeout)


def expect(done, code, *texts):
    assert done.returncode == code, f"exit code {done.returncode}, expected {code}:\n{done.stdout}{done.stderr}"
    for text in texts:
        assert text in done.stdout + done.stderr, f"no {text!r} in:\n{done.stdout}{done.stderr}"


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_help_teaches_every_command():
    expect(run("--help"), OK, "linkcpp demo", "Exit codes")
    for command, texts in {"token": ["--address"], "worker": ["--join", "--experts"], "serve": ["--listen", "llama-server"],
                           "demo": ["--workers"], "gate": ["--wire", "signed"], "inspect": ["--json"], "bench": ["--clients"]}.items():
        expect(run(command, "--help"), OK, *texts)


def test_usage_errors():
    expect(run(), WRONG)
    expect(run("nonsense"), WRONG, "no subcommand 'nonsense'")
    expect(run("serve"), WRONG, "--model")
    expect(run("token", "--", "--port", "1"), WRONG, "serve")
    expect(run("demo", "--workers", "0"), WRONG)
    expect(run("demo", "--mode", "quick"), WRONG, "quick")


def test_token_is_made_once_and_kept_private():
    with tempfile.TemporaryDirectory() as folder:
        home = os.path.join(folder, "deep", "home")
        first = run("token", "--home", home, "--address", "192.0.2.1:7101", "--address", "[2001:db8::1]:7101")
        expect(first, OK, "linkcpp worker --join", "192.0.2.1:7101")
        token = first.stdout.strip()
        assert token.startswith("lkc1.") and len(first.stdout.splitlines()) == 1, first.stdout
        assert run("token", "--home", home, "--address", "192.0.2.1:7101", "--address", "[2001:db8::1]:7101").stdout.strip() == token
        assert mode(home) == 0o700
        assert sorted(os.listdir(home)) == ["identity.pem", "swarm.secret"], os.listdir(home)
        for name in os.listdir(home):
            assert mode(os.path.join(home, name)) == 0o600, name
        other = run("token", "--home", os.path.join(folder, "other"), "--address", "192.0.2.1:7101").stdout.strip()
        assert other != token
        by_env = run("token", "--json", env={"LINKCPP_HOME": home})
        expect(by_env, OK)
        answer = json.loads(by_env.stdout)
        assert answer["home"] == home and answer["token"].startswith("lkc1."), answer
        assert answer["addresses"] and all(a.endswith(":7101") for a in answer["addresses"]), answer
        expect(run("token", "--home", home, "--address", "nowhere"), WRONG, "nowhere", "host:port")


def test_token_refuses_a_damaged_or_open_key():
    with tempfile.TemporaryDirectory() as folder:
        run("token", "--home", folder)
        key = os.path.join(folder, "identity.pem")
        os.chmod(key, 0o644)
        expect(run("token", "--home", folder), WRONG, "identity.pem")
        os.chmod(key, 0o600)
        with open(key, "w") as file:
            file.write("not a key")
        expect(run("token", "--home", folder), WRONG, "identity.pem")


def serve(*arguments, model=MODEL, **more):
    with tempfile.TemporaryDirectory() as home:
        return run("serve", "--model", model, "--home", home, "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *arguments, **more)


def test_serve_checks_before_it_starts():
    expect(serve(model="/no/such.gguf"), MISSING, "/no/such.gguf")
    expect(serve("--mode", "fast"), WRONG, "fast")
    expect(serve("--wire", "f8"), WRONG, "f8")
    expect(serve("--deadline", "soon"), WRONG)
    expect(serve("--plugin", "/no/plugin.so"), MISSING, "/no/plugin.so")
    expect(serve("--llama-server", "no-such-server"), MISSING, "no-such-server", "install llama.cpp")
    expect(serve("--llama-server", "/bin/true"), INCOMPATIBLE, "/bin/true")
    expect(serve("--", "--port", "9"), WRONG, "--http")
    expect(serve("--", "--device=CPU"), WRONG, "--base")
    expect(serve("--worker", "nowhere"), WRONG, "nowhere")
    expect(run("serve", "--model", MODEL, "--listen", "none"), WRONG, "--worker")
    for more in (["--no-mmap"], ["-lm", "none"]):  # experts would be loaded into memory and computed by llama.cpp itself
        expect(run("serve", "--model", MODEL, "--base", "Vulkan0", "--", *more), WRONG, " ".join(more), "mapped file")


def test_serve_names_an_engine_of_another_version():
    with tempfile.TemporaryDirectory() as folder:
        other = os.path.join(folder, "llama-server")
        with open(other, "w") as file:
            file.write("#!/bin/sh\necho 'version: 0.9.1 (build 1, commit x)' >&2\n")
        os.chmod(other, 0o755)
        expect(serve("--llama-server", other), INCOMPATIBLE, "0.9.1", "0.7")


def test_serve_names_a_busy_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        for option in ("--http", "--listen", "--admin"):
            arguments = {"--http": "127.0.0.1:0", "--listen": "127.0.0.1:0", "--admin": "127.0.0.1:0"}
            arguments[option] = address
            with tempfile.TemporaryDirectory() as home:
                done = run("serve", "--model", MODEL, "--home", home, *[x for pair in arguments.items() for x in pair])
            expect(done, MISSING, address, "Address already in use")


def test_serve_refuses_files_that_are_no_moe_model():
    with tempfile.TemporaryDirectory() as folder:
        text, cut = os.path.join(folder, "text.gguf"), os.path.join(folder, "cut.gguf")
        with open(text, "w") as file:
            file.write("hello " * 1000)
        expect(serve(model=text), WRONG, "text.gguf")
        with open(MODEL, "rb") as whole, open(cut, "wb") as file:
            file.write(whole.read(5_000_000))
        expect(serve(model=cut), WRONG, "cut.gguf")


def write_dense_model(path):
    """A whole, valid GGUF of a model without experts: one F32 tensor of 32 x 4."""
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()
    pairs = [text("general.architecture") + struct.pack("<I", 8) + text("llama"), text("general.name") + struct.pack("<I", 8) + text("dense")]
    for key, value in (("block_count", 1), ("embedding_length", 32), ("context_length", 64)):
        pairs.append(text("llama." + key) + struct.pack("<II", 4, value))
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs)) + b"".join(pairs) + text("token_embd.weight") + struct.pack("<IQQIQ", 2, 32, 4, 0, 0)
    with open(path, "wb") as file:
        file.write(head + b"\0" * (-len(head) % 32) + b"\0" * (32 * 4 * 4))


def test_dense_models_are_refused():
    with tempfile.TemporaryDirectory() as folder:
        dense = os.path.join(folder, "dense.gguf")
        write_dense_model(dense)
        expect(serve(model=dense), WRONG, "dense.gguf", "experts")
        expect(run("demo", "--model", dense), WRONG, "dense.gguf", "experts")


def test_an_engine_that_refuses_to_start_is_quoted():
    expect(serve("--", "--no-such-option"), MISSING, "--no-such-option", "exited with code 1 before it was ready")


def test_options_from_a_file():
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "linkcpp.toml")
        with open(file, "w") as config:
            config.write('[serve]\nmodel = "/from/the/file.gguf"\n[token]\nhome = "%s/home"\n' % folder)
        expect(run("--config", file, "serve"), MISSING, "/from/the/file.gguf")
        expect(run("--config", file, "serve", "--model", "/from/the/line.gguf"), MISSING, "/from/the/line.gguf")
        expect(run("--config", file, "token"), OK)
        assert os.path.exists(os.path.join(folder, "home", "identity.pem"))
        expect(run("serve", env={"LINKCPP_MODEL": "/from/the/environment.gguf"}), MISSING, "/from/the/environment.gguf")
        expect(run("--config", os.path.join(folder, "absent.toml"), "token"), WRONG, "absent.toml")


def test_bench_says_where_nothing_is_served():
    expect(run("bench", "--http", f"http://127.0.0.1:{free_port()}"), MISSING, "linkcpp serve")
    expect(run("bench", "--http", "https://127.0.0.1:1"), WRONG, "http://")


if __name__ == "__main__":
    run_tests(globals())
