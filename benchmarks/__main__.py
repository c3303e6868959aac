"""Runs the scripts: `python -m benchmarks [--quick] [--json FILE] [SCRIPT ...]`.

Exits 1 where a target was missed; a quick run has no targets.
"""

import argparse
import importlib
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks._measure import Bench, Result, disk_directory, machine

SCRIPTS = (
    "layouts",
    "effect_single",
    "effect_threads",
    "effect_tasks",
    "effect_reused",
    "append_rates",
    "read_scan",
    "recover_fresh",
    "recover_settled",
    "recover_memory",
    "open_many",
    "care",
    "effect_bytes",
    "logging_cost",
)


class Report(msgspec.Struct, frozen=True):
    """What `--json` writes."""

    machine: str
    is_quick: bool
    scripts: dict[str, list[Result]]


def claim(module: Any) -> str:
    """The claim of a script: the first line of its docstring."""
    return str(module.__doc__).strip().splitlines()[0]


def run_script(name: str, *, is_quick: bool) -> list[Result]:
    """Runs one script in a directory of its own and prints its claim and its results."""
    module = importlib.import_module(f"benchmarks.{name}")
    print(f"\n{name}: {claim(module)}", flush=True)
    began = time.perf_counter()
    with disk_directory() as directory:
        results: list[Result] = module.run(Bench(directory, is_quick))
    for result in results:
        print(result.line(is_judged=not is_quick))
    print(f"  ({time.perf_counter() - began:.1f} s)", flush=True)
    return results


def main(arguments: list[str]) -> int:
    """Runs what was asked for; 1 where a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke test: tiny sizes, no targets")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help=f"some of: {', '.join(SCRIPTS)}")
    options = parser.parse_args(arguments)
    if unknown := set(options.scripts) - set(SCRIPTS):
        parser.error(f"no such script: {', '.join(sorted(unknown))}; there are {', '.join(SCRIPTS)}")
    with disk_directory() as directory:
        where = machine(directory)
    print(f"{where}\nmedian (minimum .. maximum); L and B as in benchmarks/_baselines.py")
    scripts = {name: run_script(name, is_quick=options.quick) for name in options.scripts or SCRIPTS}
    if options.json is not None:
        report = msgspec.json.encode(Report(where, options.quick, scripts))
        options.json.write_bytes(msgspec.json.format(report))
    is_missed = not all(result.is_reached for results in scripts.values() for result in results)
    return 1 if is_missed and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
