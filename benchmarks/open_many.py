"""A journal of 1,000,000 effects opens and lists its 100 unfinished ones in 50 ms, memory flat.

Where the disk is too busy to build it in `BUILD_SECONDS_MAX`, it has fewer effects, and the result says how many.
Each opening has a fresh process; the time starts after the imports. Compared with a journal of 1,000 effects of which
as many are unfinished: the cost is in their number and not in all effects.
"""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks._child import Memory, in_child
from benchmarks._measure import Bench, Result, Spread
from benchmarks._workload import THREAD_COUNT, SilentLogger, ask, effects_in_threads, fresh_key, open_journal, refuse
from journal import EffectFailedError, Journal

BUILD_GROUP = 32_000
BUILD_SECONDS_MAX = 240.0
ALLOWANCE = 1.1
"""The noise of an allocator between two runs of the same work."""


def build(path: str, effect_count: int, unfinished_count: int) -> dict[str, float]:
    """Settles effects up to `effect_count`, of which `unfinished_count` stand as failed, spread over the log.

    How many there are at the end.
    """
    deadline = time.monotonic() + BUILD_SECONDS_MAX
    settled_count = effect_count - unfinished_count
    group = min(BUILD_GROUP, settled_count)
    done = refused_count = 0
    with open_journal(Path(path), logger=SilentLogger()) as j, ThreadPoolExecutor(THREAD_COUNT) as pool:
        for start in range(0, settled_count, group):
            done = min(start + group, settled_count)
            effects_in_threads(j, pool, [fresh_key() for _ in range(done - start)])
            due = unfinished_count * done // settled_count
            leave_unfinished(j, due - refused_count)
            refused_count = due
            if time.monotonic() > deadline:
                leave_unfinished(j, unfinished_count - refused_count)
                break
    return {"count": done + unfinished_count}


def leave_unfinished(j: Journal, count: int) -> None:
    """Leaves `count` effects failed, known not performed."""
    for _ in range(count):
        with contextlib.suppress(EffectFailedError):
            j.effect(fresh_key(), run=refuse, reconcile=ask)


def listing(path: str) -> dict[str, float]:
    """Opens the journal and lists what is unfinished: milliseconds, how many, memory."""
    began = time.perf_counter()
    j = open_journal(Path(path))
    opened = time.perf_counter()
    count = len(j.unfinished())
    listed = time.perf_counter()
    memory = Memory.now()
    j.close()
    return {
        "open_ms": (opened - began) * 1e3,
        "list_ms": (listed - opened) * 1e3,
        "ms": (listed - began) * 1e3,
        "count": count,
        "own": memory.own,
        "peak": memory.peak,
    }


def run(bench: Bench) -> list[Result]:
    """Openings of a large and a small journal, one in turn with the other."""
    many, few = bench.pick(2_000, 1_000_000), bench.pick(200, 1_000)
    unfinished_count = bench.pick(10, 100)
    large, small = str(bench.path("large")), str(bench.path("small"))
    many = int(in_child("benchmarks.open_many:build", large, many, unfinished_count)["count"])
    in_child("benchmarks.open_many:build", small, few, unfinished_count)
    pairs = [
        (in_child("benchmarks.open_many:listing", large), in_child("benchmarks.open_many:listing", small))
        for _ in range(bench.pick(1, 9))
    ]
    assert all(figures["count"] == unfinished_count for pair in pairs for figures in pair)

    def result(figure: str, what: str, unit: str, target: float | None, target_on: str = "figure") -> Result:
        return Result(
            what=what,
            unit=unit,
            figure=Spread.of([pair[0][figure] for pair in pairs]),
            base=f"{few:,} effects",
            ratio=Spread.of([pair[0][figure] / pair[1][figure] for pair in pairs]),
            target=target,
            target_on=target_on,
            is_ceiling=True,
        )

    return [
        result("ms", f"open and list, {many:,} effects", "ms", 50.0),
        result("open_ms", "of it, open", "ms", None),
        result("list_ms", f"of it, list {unfinished_count} unfinished", "ms", None),
        result("own", "memory of the process itself", "MiB", ALLOWANCE, "ratio"),
        result("peak", "its peak with mapped pages", "MiB", None),
    ]
