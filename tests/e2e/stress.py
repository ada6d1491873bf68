#!/usr/bin/env python3
"""Workers join, drain and are killed at random while eight clients generate: every completed answer equals the local one.

Plain llama.cpp itself gives other bits for a token that is computed in a larger batch (its matmul kernels differ by shape), so which
requests happen to share a batch would show in the text. One token a micro-batch (-ub 1) takes that away on both sides and leaves only
what is tested here. `--control` runs the clients against plain llama-server instead, to check exactly that.

  stress.py [--seconds 60] [--seed N] [--clients 8]
"""
import argparse
import random
import signal
import sys
import threading
import time

from swarm import Swarm

PROMPTS = ["It is a truth universally acknowledged", "In the beginning God created", "def main(argv):\n    ", "The SELECT statement", "static int sqlite3",
           "A hacker is a person who", "Returns a new list", "And it came to pass"]
TOKENS = 24


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--ubatch", type=int, default=1, help="tokens a micro-batch")
    parser.add_argument("--control", action="store_true", help="no swarm: the clients ask plain llama-server")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    print(f"seed {options.seed}", flush=True)
    shape = ["-np", str(options.clients), "-ub", str(options.ubatch)]
    with Swarm() as swarm:
        plain = swarm.plain(*shape)
        plain.wait_ready()
        expected = {p: plain.complete(p, TOKENS)[1] for p in PROMPTS}
        if not options.control:
            plain.process.stop()

        # One worker of each half stays, so that there is always coverage; the others come and go.
        halves = ["0-11", "12-23"]
        if options.control:
            server = plain
        else:
            for i, half in enumerate(halves):
                swarm.worker(f"steady{i}", half)
            server = swarm.serve("--no-repack", "--deadline", "10s", llama=shape)
        server.wait_ready()

        end, counts, wrong, lock = time.monotonic() + options.seconds, {"answers": 0, "errors": 0}, [], threading.Lock()

        def client(number):
            mine = random.Random(options.seed * 100 + number)
            while time.monotonic() < end:
                prompt = mine.choice(PROMPTS)
                status, text = server.complete(prompt, TOKENS)
                with lock:
                    if status != 200:
                        counts["errors"] += 1
                        print(f"client {number}: HTTP {status}: {text[:200]}", flush=True)
                    else:
                        counts["answers"] += 1
                        if text != expected[prompt]:
                            wrong.append((prompt, text))

        clients = [threading.Thread(target=client, args=(i,)) for i in range(options.clients)]
        for thread in clients:
            thread.start()
        guests, events = [], {"joined": 0, "killed": 0, "drained": 0}
        while time.monotonic() < end:
            time.sleep(dice.uniform(0.2, 1.0))
            if options.control:
                continue
            if len(guests) < 3 and (not guests or dice.random() < 0.6):
                guests.append(swarm.worker(f"guest{events['joined']}", dice.choice(halves + ["all", "0-5,18-23"])))
                events["joined"] += 1
            elif dice.random() < 0.5:
                guests.pop(dice.randrange(len(guests))).stop(signal.SIGKILL)
                events["killed"] += 1
            else:
                guests.pop(dice.randrange(len(guests))).stop(signal.SIGTERM)
                events["drained"] += 1
        for thread in clients:
            thread.join(60)
        assert server.process.child.poll() is None, "the server died"
        print(f"{events['joined']} joined, {events['drained']} drained, {events['killed']} killed; {counts['answers']} answers, {counts['errors']} errors, "
              f"{len(wrong)} different from local", flush=True)
        for prompt, text in wrong[:3]:
            print(f"  {prompt!r}: got {text!r}\n  expected {expected[prompt]!r}")
        sys.exit(1 if wrong or counts["errors"] or counts["answers"] == 0 else 0)


if __name__ == "__main__":
    main()
