#!/usr/bin/env python3
"""The architecture gate: every mixture-of-experts architecture of the engine runs on LINKCPP0 with real workers, bit for bit as on the CPU.

    archs.py [NAME...] [--shard I/N] [--json FILE] [--write]

Each architecture gets these runs, over TLS to two worker processes that hold half of the experts each:

upstream   The engine's own test-llama-archs builds its model (2 experts mostly, all used), computes it on the CPU and on LINKCPP0,
           whole, after a round trip through a file, and in a mixed batch. It must say NMSE 0.
speculative  llama-server drafts with the model's own MTP head, or with a draft model that has experts too: same tokens as plain.
selective  A model with more experts (widen_model makes it from the one that upstream saves, or from a template that arch_models.py
           completes), top-k 1, 2, 4 and 8: prompt and decoding, one sequence and four. Logits must be equal to the last bit in raw
           mode, and close in sum mode.

In each, the plugin's account must show that regions were found, that all were dispatched, and that the base computed no matmul with
a stacked expert tensor, except those that are not routed experts. `--write` writes docs/architectures.md and .json.
"""
import argparse
import json
import os
import re
import sys
import threading
import time

import lib
from arch_models import ARCHITECTURES, UNCOVERED
from lib import Rig

UPSTREAM = "/usr/libexec/x86_64-linux-gnu/llama.cpp-tests/test-llama-archs"
SEED = "42"
TOP_K = (1, 2, 4, 8)
# What the base may compute with MUL_MAT_ID: experts of attention are no routed experts, and adapters lie on the base.
BASE_MATMULS = re.compile(r"attn_v_exps\.weight|.*\.lora_[ab]")
SUM_COSINE = 0.99
# No graphics driver is wanted, and looking for one takes longer than most of the models.
ENV = dict(lib.BASE_ENV, VK_DRIVER_FILES="/nonexistent")


class Claims:
    """What did not hold for one architecture."""

    def __init__(self):
        self.failures = []

    def __call__(self, holds, text):
        if not holds:
            self.failures.append(text)
        return holds


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def counts(account, claim, run, allowed=BASE_MATMULS):
    """Checks an account; returns its figures for the table. `allowed`: what the base may compute."""
    matmuls = account.get("matmuls", {"seen": 0, "dispatched": 0, "on_base": {}})
    steps, regions, passes = account.get("total", {}).get("steps", 0), account.get("regions", 0), account.get("passes", 0)
    left = {name: n for name, n in matmuls["on_base"].items() if not allowed.fullmatch(name)}
    claim(regions > 0, f"{run}: no region was found, so nothing was shown")
    claim(steps == regions, f"{run}: {regions} regions, {steps} dispatched")
    claim(account.get("total", {}).get("failed_steps", 0) == 0, f"{run}: some dispatches failed")
    claim(matmuls["seen"] == matmuls["dispatched"] + sum(matmuls["on_base"].values()), f"{run}: {matmuls} does not add up")
    claim(matmuls["dispatched"] > 0, f"{run}: no matmul of experts was dispatched")
    claim(not left, f"{run}: the base computed experts: {left}")
    for name, worker in account.get("workers", {}).items():
        claim(worker.get("pairs", 0) > 0, f"{run}: worker {name} had nothing to do")
    claim(len(account.get("workers", {})) == 2, f"{run}: there were not two workers")
    return {"regions": regions, "regions_per_pass": round(regions / passes, 2) if passes else 0, "dispatched": steps,
            "matmuls": matmuls["dispatched"], "left_on_base": sum(left.values()), "selected": account.get("selected", {})}


def save(name, folder):
    """Upstream's model of an architecture as a file."""
    lib.run([UPSTREAM, "-a", f"^{name}$", "-s", SEED, "-o", folder], ENV)


def run_upstream(name, path, claim):
    """Upstream's own test; `path` is the very model that it builds, saved by itself."""
    for _ in range(4):  # its log has a writer of its own, whose last lines are lost at times when the program ends
        with Rig(path) as rig:
            rig.dialling_workers(2)
            output, account = rig.run([UPSTREAM, "-a", f"^{name}$", "-b", "LINKCPP0", "-s", SEED], timeout=300)
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in plain(output).splitlines() if line.startswith("|")]
        rows = [row for row in rows if len(row) >= 6 and row[0] == name and row[2] == "MoE"]
        if rows:
            break
    if not claim(len(rows) == 1, f"upstream: {len(rows)} rows of results instead of one"):
        return {}
    nmse, round_trip = rows[0][3], rows[0][4]
    claim(nmse == "OK (0.00e+00)", f"upstream: NMSE is {nmse}, not 0")
    claim(round_trip in ("OK", "SKIP"), f"upstream: round trip {round_trip}")
    return {**counts(account, claim, "upstream"), "nmse": nmse, "round_trip": round_trip}


def widen(template, recipe, experts, top_k, out):
    options = [x for kind in ("set", "drop", "clone", "add") for line in recipe.get(kind, ()) for x in ("--" + kind, line)]
    options += ["--arch", recipe["arch"]] if "arch" in recipe else []
    lib.run([lib.tool("widen_model"), "--in", template, "--out", out, "--experts", str(experts), "--top-k", str(top_k),
             "--type", recipe.get("type", "q8_0"), *options], ENV)


def make_adapter(template, recipe, experts, out):
    """A LoRA adapter that changes routed experts."""
    widen(template, {"drop": ["."], "add": recipe["lora"], "type": "f16",
                     "set": ["general.type=str:adapter", "adapter.type=str:lora", "adapter.lora.alpha=f32:8"]}, experts, 1, out)


def record(path, recipe, device, *target):
    return lib.logits("record", path, "--random-tokens", 7, "--lengths", "1,24", "--n-decode", 4, "--parallel", 4, "--no-repack",
                      *(["--embeddings"] if recipe.get("embeddings") else []), *target, device=device)


def run_selective(name, template, recipe, top_k, folder, before, claim):
    """One model: plain CPU, then LINKCPP0 in raw mode and in sum mode. Returns the figures and the recording."""
    experts, run = recipe.get("experts", 16), f"top-{top_k}"
    model, reference = os.path.join(folder, f"{name}-{top_k}.gguf"), os.path.join(folder, f"reference-{top_k}")
    widen(template, recipe, experts, top_k, model)
    adapter = []
    if "lora" in recipe:
        adapter = ["--lora", os.path.join(folder, "adapter.gguf")]
        make_adapter(template, recipe, experts, adapter[1])
        lib.run(record(model, recipe, "CPU", "--out", reference + "-plain"), ENV)
    lib.run(record(model, recipe, "CPU", *adapter, "--out", reference), ENV)
    if adapter:
        done = lib.run([lib.tool("logits"), "compare", reference + "-plain", reference], ENV, ok=(0, 3))
        claim(not lib.last_json(done)["identical"], f"{run}: the adapter changes nothing")
    with Rig(model) as rig:
        rig.dialling_workers(2)
        linked = record(model, recipe, "LINKCPP0", *adapter, "--against", reference)
        output, account = rig.run(linked, timeout=300, ok=(0, 3))
        summed, _ = rig.run(linked, timeout=300, ok=(0, 3), mode="sum")
    report, summed = lib.last_json(output), lib.last_json(summed)
    figures = {**counts(account, claim, run), "max_difference": report["max_abs_diff"], "sum_cosine": summed["worst_cosine"]}
    claim(report["identical"] and report["max_abs_diff"] == 0,
          f"{run}: logits differ by {report['max_abs_diff']} at {report.get('first_difference')}")
    claim(report["rows"] > 0, f"{run}: no logits were compared")
    claim(summed["worst_cosine"] >= SUM_COSINE, f"{run}: sum mode: cosine {summed['worst_cosine']}")
    for layer, selected in figures["selected"].items():
        claim(selected > min(experts / 2, 2 * top_k - 1) or selected == experts, f"{run}: layer {layer} chose only {selected} of {experts} experts")
    if before:  # were the experts' part lost among the rest, equal logits would show nothing
        done = lib.run([lib.tool("logits"), "compare", before, reference], ENV, ok=(0, 3))
        claim(not lib.last_json(done)["identical"], f"{run}: the logits do not depend on the number of experts used")
        os.unlink(before)
    os.unlink(model)
    return figures, reference


def drafted_tokens(server):
    answers = [lib.complete(server.wait_ready(120), prompt, 24, return_tokens=True) for prompt in ([3, 5, 7, 9, 11, 20], [90, 4, 61])]
    return [answer["tokens"] for answer in answers], sum(answer["timings"].get("draft_n", 0) for answer in answers)


def run_speculative(name, template, recipe, folder, claim):
    """llama-server with speculative decoding, plain and on LINKCPP0, which must answer with the same tokens."""
    model, draft, options = os.path.join(folder, f"{name}.gguf"), os.path.join(folder, "draft.gguf"), recipe["speculative"]
    widen(template, recipe, 16, 4, model)
    if "-md" in options:  # told from the served model by the type of its experts alone
        widen(template, {"type": "f16"}, 16, 4, draft)
        options = [draft if option == "DRAFT" else option for option in options]
    common = [*options, "-t", 1, "-c", 512, "--no-repack", "--no-warmup"]
    with Rig(model) as rig:
        server = rig.llama_server("--device", "none", *(["--device-draft", "none"] if "-md" in options else []), *common)
        expected, _ = drafted_tokens(server)
        server.process.stop()
        rig.dialling_workers(2)
        server = rig.linked_server(*(["--device-draft", "LINKCPP0"] if "-md" in options else []), *common)
        tokens, drafted = drafted_tokens(server)
        lib.wait_until(lambda: lib.last_account(server.status).get("passes"), 30, "the account")
        time.sleep(1.5)  # the account comes once a second
        account = lib.last_account(server.status)
    allowed = re.compile(r"ffn_(gate|up|down)_exps\.weight") if "-md" in options else BASE_MATMULS
    figures = {**counts(account, claim, "speculative", allowed), "max_difference": 0.0, "sum_cosine": 1.0}
    claim(tokens == expected, f"speculative: tokens {tokens} instead of {expected}")
    claim(drafted > 0, "speculative: nothing was drafted")
    if "-md" in options:
        claim(figures["left_on_base"] == 0 and account["matmuls"]["on_base"], "speculative: the draft's experts were not the base's")
    else:
        claim(recipe["head"] in figures["selected"], f"speculative: the head's layer {recipe['head']} dispatched nothing")
    return figures


def check(name):
    """One architecture: returns its row of results."""
    started, recipe, claim = time.monotonic(), ARCHITECTURES[name], Claims()
    result = {"architecture": name, "source": [], "experts": 0, "top_k": [], "upstream": None, "selective": {}}
    try:
        with Rig("none") as rig:
            template = recipe.get("template", f"{name}-moe")
            save(re.sub("-(moe|dense)$", "", template), rig.folder)
            template = os.path.join(rig.folder, template + ".gguf")
            if recipe.get("upstream", True):
                result["source"].append("upstream")
                result["upstream"] = run_upstream(name, template, claim)
            if "speculative" in recipe:
                result["source"].append("speculative")
                result["experts"], result["top_k"] = 16, [4]
                result["selective"]["4"] = run_speculative(name, template, recipe, rig.folder, claim)
                return result
            before = None
            for top_k in recipe.get("top_k", TOP_K):
                result["selective"][str(top_k)], before = run_selective(name, template, recipe, top_k, rig.folder, before, claim)
                result["top_k"].append(top_k)
            if result["top_k"]:
                result["source"].append("selective")
                result["experts"] = recipe.get("experts", 16)
    except Exception as error:  # all architectures are reported
        claim(False, f"{type(error).__name__}: {error}")
    finally:
        result["seconds"], result["failures"] = round(time.monotonic() - started, 1), claim.failures
    return result


# ---- tables ----------------------------------------------------------------------------------------------------------

COLUMNS = ["architecture", "source", "experts", "top-k", "regions a pass", "regions found", "dispatched", "left on base", "raw: largest difference",
           "sum: worst cosine"]


def runs_of(result):
    return [run for run in [result["upstream"], *result["selective"].values()] if run]


def cells(result):
    runs = runs_of(result)
    per_pass = sorted({run["regions_per_pass"] for run in runs})
    selective = result["selective"].values()
    return [result["architecture"], " + ".join(result["source"]), result["experts"] or "2", ", ".join(map(str, result["top_k"])) or "all",
            ", ".join(f"{x:g}" for x in per_pass), sum(run["regions"] for run in runs), sum(run["dispatched"] for run in runs),
            sum(run["left_on_base"] for run in runs), max([run["max_difference"] for run in selective] or [0.0]),
            f"{min([run['sum_cosine'] for run in selective] or [1.0]):.6f}"]


def line(values):
    return "| " + " | ".join(map(str, values)) + " |"


def print_row(result, lock=threading.Lock()):
    with lock:
        state = "ok  " if not result["failures"] else "FAIL"
        print(f"{state} {line(cells(result))} {result['seconds']} s", flush=True)
        for failure in result["failures"]:
            print(f"     {result['architecture']}: {failure}", flush=True)


def summary(results):
    """For other generators: architecture -> state."""
    architectures = {}
    for result in results:
        runs = runs_of(result)
        architectures[result["architecture"]] = {
            "state": "failed" if result["failures"] else "passed", "source": " + ".join(result["source"]), "experts": result["experts"],
            "top_k": result["top_k"], "regions": sum(run["regions"] for run in runs), "dispatched": sum(run["dispatched"] for run in runs),
            "left_on_base": sum(run["left_on_base"] for run in runs),
            "max_difference": max([run["max_difference"] for run in result["selective"].values()] or [0.0])}
    for name, reason in UNCOVERED.items():
        architectures.setdefault(name, {"state": "uncovered", "reason": reason})
    return {"engine": engine(), "architectures": architectures}


def engine():
    return lib.run([lib.LINKCPP, "--version"]).strip()


def markdown(results):
    lines = ["# Architectures", "", "Made by `scripts/measure archs`; do not edit. " + engine() + ".", "",
             "Every mixture-of-experts architecture of the engine that can be built, on `LINKCPP0` with two worker processes over TLS, against",
             "plain llama.cpp on the same CPU. *upstream*: the engine's own test and model. *selective*: a model with more experts, random",
             "weights, Q8_0 experts; prompts of 1 and 24 tokens, decoding, four sequences in one batch. `tests/e2e/archs.py` says what must",
             "hold; these runs are part of `make test`.", "", line(COLUMNS), "|" + "---|" * len(COLUMNS)]
    lines += [line(cells(result)) for result in results]
    lines += ["", "Sums over all runs of an architecture. Left on base: matmuls with routed experts that the base computed. Experts of attention",
              "(`attn_v_exps` of k2-horizon) are no routed experts and stay there, as do LoRA adapters and the experts of a draft model. In upstream's",
              "own test NMSE was 0 for each. Speculative runs compare tokens.", "", "## Not covered", ""]
    lines += [f"* **{name}**: {reason}" for name, reason in UNCOVERED.items()]
    failed = [failure for result in results for failure in result["failures"]]
    lines += [f"\nNOT MET: {text}" for text in failed]
    return "\n".join(lines) + "\n"


def write(results):
    for ending, text in (("md", markdown(results)), ("json", json.dumps(summary(results), indent=1) + "\n")):
        with open(os.path.join(lib.PROJECT, "docs", "architectures." + ending), "w") as file:
            file.write(text)


def merged(files):
    """The results of several runs, which together must be complete."""
    by_name = {}
    for path in files:
        with open(path) as file:
            by_name.update({result["architecture"]: result for result in json.load(file)})
    missing = [name for name in ARCHITECTURES if name not in by_name]
    if missing:
        raise SystemExit(f"no results of {' '.join(missing)}")
    return [by_name[name] for name in ARCHITECTURES]


def run_all(names, jobs):
    """Rows of all the names, `jobs` at a time."""
    results, left, lock = {}, list(reversed(names)), threading.Lock()

    def work():
        while True:
            with lock:
                if not left:
                    return
                name = left.pop()
            results[name] = check(name)
            print_row(results[name])

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[name] for name in names]


def check_list():
    """Whether the table has every mixture-of-experts model that this version of upstream's test can save."""
    with Rig("none") as rig:
        lib.run([UPSTREAM, "-s", SEED, "-o", rig.folder], ENV, ok=(0, 1))
        found = []
        for file in sorted(os.listdir(rig.folder)):
            if file.endswith("-moe.gguf") and '"layers"' in lib.run([lib.LINKCPP, "inspect", "--json", os.path.join(rig.folder, file)], ENV, ok=range(256)):
                found.append(file[:-len("-moe.gguf")])
    missing = [name for name in found if name not in {*ARCHITECTURES, *UNCOVERED}]
    print(f"{len(found)} mixture-of-experts models saved by upstream's test, {len(missing)} of them not in arch_models.py: {' '.join(missing)}")
    return bool(missing) or len(found) < 50


def measure():
    """For scripts/measure: all architectures, and the files in docs/."""
    results = run_all(list(ARCHITECTURES), os.cpu_count() or 1)
    write(results)
    table = lib.Table("archs", "Architectures", COLUMNS)
    for result in results:
        table.add(*cells(result))
        for failure in result["failures"]:
            table.claim(False, f"{result['architecture']}: {failure}")
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="architectures; default: all")
    parser.add_argument("--shard", default="1/1", help="I/N: every Nth architecture, from the Ith on")
    parser.add_argument("--jobs", type=int, default=1, help="architectures side by side")
    parser.add_argument("--json", metavar="FILE", help="writes all results")
    parser.add_argument("--merge", metavar="FILE", nargs="+", help="runs nothing, takes the results of earlier runs, the last of each name")
    parser.add_argument("--write", action="store_true", help="writes docs/architectures.md and .json")
    parser.add_argument("--check-list", action="store_true", help="only checks that no architecture of the engine's test is missing")
    arguments = parser.parse_args()
    if arguments.check_list:
        sys.exit(check_list())
    unknown = [name for name in arguments.names if name not in ARCHITECTURES]
    if unknown:
        parser.error(f"unknown architecture {' '.join(unknown)}; known: {' '.join(ARCHITECTURES)}")
    first, step = map(int, arguments.shard.split("/"))
    names = (arguments.names or list(ARCHITECTURES))[first - 1::step]
    results = merged(arguments.merge) if arguments.merge else run_all(names, arguments.jobs)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)
    if arguments.write:
        write(results)
    failed = [result["architecture"] for result in results if result["failures"]]
    print(f"{len(results) - len(failed)} of {len(results)} architectures passed" + (f"; failed: {' '.join(failed)}" if failed else ""))
    sys.exit(1 if failed or not results else 0)


if __name__ == "__main__":
    main()
