#!/usr/bin/env python3
"""Bit identity: with raw F32 rows, logits and texts are those of plain llama.cpp, whatever the number of workers.

    identity.py           every model, 1, 2 and 5 workers, prompts of 1, 7, 64 and 512 tokens; then llama-server's own features
    identity.py --quick   the model of the repository, prompts up to 64 tokens
"""
import os
import sys
import threading

import lib
from lib import Rig, Table

WORKERS = (1, 2, 5)
PROMPTS = ["It is a truth universally acknowledged, that a single man in possession", "def main(argv):\n    parser = argparse.",
           "The SELECT statement retrieves rows from", "static int sqlite3_open(\n  const char *zFilename,"]


# How weights are laid out: (options of plain, of linked, settings of the plugin, options of workers). Both sides must be alike, since
# llama.cpp's own results differ between layouts.
LAYOUTS = {
    "as in the file": (["--no-repack"], ["--no-repack"], {"repack": False}, []),
    "experts as in the file, rest repacked": (["--plain-experts"], [], {"repack": True}, []),
    "repacked": ([], [], {"repack": True}, ["--repack"]),
}


def check_logits(table, name, path, lengths, n_workers, layout="as in the file"):
    plain, linked, settings, worker = LAYOUTS[layout]
    with Rig(path) as rig:
        shape = ["--text", lib.prompt_text(), "--lengths", ",".join(map(str, lengths)), "--n-decode", 16, "--parallel", 4]
        reference = os.path.join(rig.folder, "reference")
        lib.run(lib.logits("record", path, *shape, *plain, "--out", reference))
        for n in n_workers:
            rig.dialling_workers(n, more=worker)
            output, account = rig.run(lib.logits("record", path, *shape, *linked, "--against", reference, device="LINKCPP0"), ok=(0, 3), **settings)
            report, steps = lib.last_json(output), account.get("total", {}).get("steps", 0)
            table.add(name, layout, n, f"{report['rows']} rows", steps, "yes" if report["identical"] else "NO", f"{report['max_abs_diff']:.3g}")
            table.claim(report["identical"], f"{name}, {n} workers, {layout}: {report.get('first_difference')}")
            table.claim(steps > 0, f"{name}, {n} workers: nothing was dispatched, so nothing was shown")
            for child in rig.children:
                child.stop()


# ---- llama-server's features -----------------------------------------------------------------------------------------


def four_slots(server):
    answers = [None] * len(PROMPTS)

    def ask(i):
        answers[i] = lib.complete(server, PROMPTS[i], 48)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def prompt_cache(server):
    """The same long prompt twice, then a longer one with the same beginning: the second and third find it in the cache."""
    with open(lib.prompt_text(), errors="replace") as file:
        text = file.read(1200)
    return [lib.complete(server, prompt, 32, cache_prompt=True) for prompt in (text, text, text + " And then")]


def repetitive(server):
    """What n-gram speculation likes."""
    return [lib.complete(server, prompt, 96) for prompt in ("int value = get_value(first, second);\n" * 6, "one two three four five six seven eight\n" * 5)]


def drafted(server):
    return [lib.complete(server, prompt, 64) for prompt in PROMPTS[:2]]


# Name, options of llama-server, what to ask, and the figure among an answer's timings that shows that the feature was at work.
NGRAMS = ["--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "8", "--spec-ngram-mod-n-match", "8", "--spec-ngram-mod-n-min", "2",
          "--spec-ngram-mod-n-max", "16"]


def features(draft):
    yield "four parallel slots", ["-np", "4"], four_slots, None
    yield "prompt cache", ["-np", "1"], prompt_cache, "cache_n"
    for kind in ("ngram-simple", "ngram-mod"):
        yield f"speculation: {kind}", ["-np", "1", "--spec-type", kind, *NGRAMS], repetitive, "draft_n"
    if draft:
        yield "speculation: draft model", ["-np", "1", "--spec-type", "draft-simple", "-md", draft, "--spec-draft-device", "none"], drafted, "draft_n"


def check_features(table, name, path, draft, n=2):
    for title, options, ask, figure in features(draft):
        common = ["-c", "4096", "-t", "1", "--no-repack", *options]
        with Rig(path) as rig:
            plain = rig.llama_server(*common).wait_ready()
            expected = ask(plain)
            plain.process.stop()
            rig.dialling_workers(n)
            linked = rig.linked_server(*common).wait_ready()
            answers = ask(linked)
            linked.process.stop()
            steps = lib.last_account(linked.status).get("total", {}).get("steps", 0)
        different = [(a["content"], b["content"]) for a, b in zip(answers, expected) if a["content"] != b["content"]]
        shown = sum(answer["timings"].get(figure, 0) for answer in answers) if figure else None
        compared = f"{len(answers)} texts" + (f", {figure} {shown}" if figure else "")
        table.add(name, title, n, compared, steps, "NO" if different else "yes", "")
        table.claim(not different, f"{name}, {title}: {different[:1]}")
        table.claim(steps > 0, f"{name}, {title}: nothing was dispatched")
        table.claim(shown is None or shown > 0, f"{name}, {title}: the feature was not at work ({figure} is 0)")


def new_table():
    return Table("identity", "Bit identity: raw F32 against plain llama.cpp", ["model", "weights or feature", "workers", "compared", "dispatches", "identical", "max. difference"])


def quick():
    table = new_table()
    for name, path in lib.models("tinymoe-a-q4_k_s"):
        check_logits(table, name, path, (1, 7, 64), WORKERS)
    return table


def measure():
    table = new_table()
    for name, path in lib.models("tinymoe-a-f16", "tinymoe-a-q4_k_s", "tinymoe-b-f16", "tinymoe-c-f16"):
        check_logits(table, name, path, (1, 7, 64, 512), WORKERS)
    for name, path in lib.models("tinymoe-a-q4_k_s"):
        for layout in list(LAYOUTS)[1:]:
            check_logits(table, name, path, (1, 7, 64, 512), (2,), layout)
        check_features(table, name, path, lib.find_model("tinymoe-b-f16"))
    table.note("Compared: rows of logits, bit by bit (every token of prompts of 1, 7, 64 and 512 tokens, 16 tokens decoded one at a time, "
               "and four sequences in one batch); or greedy texts of llama-server with the same flags.")
    return table


if __name__ == "__main__":
    lib.finish(quick() if "--quick" in sys.argv else measure())
