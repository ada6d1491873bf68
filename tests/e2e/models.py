#!/usr/bin/env python3
"""`linkcpp inspect` on a model's dimensions: the same account, to the byte, as on a GGUF of these dimensions; and the table of models."""
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

from swarm import LINKCPP, PROJECT, run_tests

SYNTH = os.path.join(os.environ.get("LINKCPP_TOOLS", ""), "synth_model")
HEAD, N_HEAD, N_KV = 64, 4, 2  # of synth_model's attention
ONLY_IN_A_GGUF = {"files", "digest", "context_length", "name"}


def inspect(path, *more):
    done = subprocess.run([LINKCPP, "inspect", path, "--json", "--workers", "5", *more], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refusal(path):
    done = subprocess.run([LINKCPP, "inspect", path], capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout, done
    return done.stderr


def f32(what, shape, count=1):
    return {"what": what, "shape": shape, "count": count, "type": "f32"}


def dimensions(architecture, n_embd, n_ff, experts, top_k, layers, vocab, quantisation):
    """What synth_model writes with these options, in the terms of a file of dimensions."""
    backbone = [{"what": "embedding and output", "shape": [n_embd, vocab], "count": 2}, f32("norms", [n_embd], 2 * layers + 1),
                f32("router", [n_embd, experts], layers), {"what": "query", "shape": [n_embd, N_HEAD * HEAD], "count": layers},
                {"what": "key and value", "shape": [n_embd, N_KV * HEAD], "count": 2 * layers},
                {"what": "attention output", "shape": [N_HEAD * HEAD, n_embd], "count": layers}]
    if architecture == "qwen2moe":
        backbone += [f32("biases", [(N_HEAD + 2 * N_KV) * HEAD], layers), f32("gate of the shared expert", [n_embd], layers),
                     {"what": "shared expert, gate and up", "shape": [n_embd, n_ff], "count": 2 * layers},
                     {"what": "shared expert, down", "shape": [n_ff, n_embd], "count": layers}]
    if architecture == "qwen3moe":
        backbone.append(f32("norms of query and key", [HEAD], 2 * layers))
    facts = {"n_layer": layers, "n_embd": n_embd, "n_vocab": vocab, "n_expert": experts, "top_k": top_k, "n_ff_expert": n_ff,
             "n_ff_shared": n_ff if architecture == "qwen2moe" else 0, "backbone": backbone}
    return dict(facts, name="synthetic", architecture=architecture, expert_type=quantisation, backbone_type=quantisation,
                sources=[{"of": list(facts), "where": "synth_model"}])


def test_the_account_is_that_of_a_gguf():
    with tempfile.TemporaryDirectory() as folder:
        for architecture, n_embd, n_ff, experts, top_k, layers, quantisation in (
                ("qwen3moe", 256, 96, 12, 3, 3, "q4_0"), ("qwen2moe", 128, 64, 10, 8, 2, "q8_0"), ("qwen3moe", 64, 32, 4, 1, 1, "f16")):
            model, described = os.path.join(folder, "m.gguf"), os.path.join(folder, "m.json")
            options = {"arch": architecture, "type": quantisation, "n-embd": n_embd, "n-ff": n_ff, "experts": experts, "top-k": top_k,
                       "layers": layers, "vocab": 512}
            subprocess.run([SYNTH, *(text for key, value in options.items() for text in (f"--{key}", str(value))), "--out", model], check=True,
                           stdout=subprocess.DEVNULL)
            with open(described, "w", encoding="utf-8") as file:
                json.dump(dimensions(architecture, n_embd, n_ff, experts, top_k, layers, 512, quantisation), file)
            of_gguf, of_dimensions = inspect(model), inspect(described)
            for layer in of_gguf["expert_layers"] + of_dimensions["expert_layers"]:
                for tensor in layer["tensors"]:
                    del tensor["offset"], tensor["file"]
            assert of_dimensions.pop("parameters")["computed"] > 0
            assert of_dimensions["digest"] is None and of_dimensions["files"] == []
            for key in of_gguf.keys() - ONLY_IN_A_GGUF:
                assert of_gguf[key] == of_dimensions[key], f"{architecture}, {key}:\n{of_gguf[key]}\n{of_dimensions[key]}"
            assert of_gguf.keys() == of_dimensions.keys()


def test_the_page_of_dimensions_says_what_it_is():
    path = os.path.join(PROJECT, "models", "dimensions", "kimi-k3.json")
    done = subprocess.run([LINKCPP, "inspect", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for text in ("Kimi K3", "no weights", "896 a layer, top 16", "93: 92 with experts", "backbone       not known", "2800.0 billion published"):
        assert text in done.stdout, f"no {text!r} in:\n{done.stdout}"
    assert "digest" not in done.stdout, done.stdout


def test_wrong_dimensions_are_refused_with_their_place():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "wrong.json")
        good = dimensions("qwen3moe", 64, 32, 4, 2, 1, 512, "q4_0")
        for change, text in (({"n_expert": 0}, '"n_expert" = 0, outside'), ({"expert_typ": "q4_0"}, 'unknown key "expert_typ"'),
                             ({"sources": []}, "no source for")):
            with open(path, "w", encoding="utf-8") as file:
                json.dump(dict(good, **change), file)
            answer = refusal(path)
            assert path in answer and text in answer, answer
        with open(path, "w", encoding="utf-8") as file:
            file.write("GGUF")
        assert "is no JSON" in refusal(path)


def make_table():
    loader = importlib.machinery.SourceFileLoader("make_table", os.path.join(PROJECT, "models", "make-table"))
    sys.dont_write_bytecode = True
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("make_table", loader))
    loader.exec_module(module)
    return module


def test_dimensions_that_contradict_the_published_size_are_found():
    table = make_table()
    model = table.Model("qwen3-235b-a22b")
    assert model.problem() is None
    model.account["parameters"]["published"] *= 1.04
    assert "billion parameters" in model.problem(), model.problem()
    bare = table.Model("kimi-k3")  # lists no backbone
    assert bare.problem() is None
    bare.account["parameters"]["published"] *= 2
    assert "routed experts" in bare.problem(), bare.problem()


def test_gate_states_come_into_the_table():
    table = make_table()
    gates = {"qwen3moe": {"state": "passed", "source": "accuracy.md", "experts": 8, "top_k": [1, 2], "regions": 22, "max_difference": 0.0}}
    assert table.gate_state("qwen3moe", gates) == "[passed](accuracy.md) (small model: 8 experts, top 1, 2, largest difference 0)"
    assert table.gate_state("llama4", gates) == "not run here"


if __name__ == "__main__":
    run_tests(globals())
