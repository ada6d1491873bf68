#!/usr/bin/env python3
"""Runs measurements by name and prints their tables; see docs/measurements.md."""
import argparse
import importlib
import json
import sys
import traceback

import lib

NAMES = ["identity", "accuracy", "bytes", "star", "overlap", "overhead", "planning", "rpc", "archs", "devices", "memory", "slicing", "provisioning", "lab",
         "wan-exchange", "wan-first", "wan-star", "wan-decode", "wan-peers", "wan-pipe", "wan-moves", "nat-matrix", "transport-cost"]


def main():
    parser = argparse.ArgumentParser(prog="scripts/measure", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", choices=[*NAMES, "all"], help="all, or some of: " + ", ".join(NAMES))
    parser.add_argument("--json", action="store_true", help="print a JSON array instead of markdown")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and less text: minutes instead of half an hour for all")
    parser.add_argument("--full", action="store_true", help="everything of the large grids: hours")
    arguments = parser.parse_args()
    lib.quick, lib.full = arguments.quick, arguments.full
    names = NAMES if "all" in arguments.names else arguments.names
    tables, failed = [], False
    for name in names:
        try:
            made = importlib.import_module(name.replace("-", "_")).measure()  # a table, or several
        except Exception:  # one measurement that breaks must not take the others along
            traceback.print_exc()
            failed = True
            continue
        for table in made if isinstance(made, list) else [made]:
            tables.append(table)
            failed = failed or bool(table.failures) or not table.rows
            if not arguments.json:
                print(table.markdown() + "\n", flush=True)
    if arguments.json:
        print(json.dumps([table.json() for table in tables], indent=2))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
