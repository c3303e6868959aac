"""A journal of 1,000,000 effects is verified, backed up, compacted, pruned and vacuumed with memory flat.

Where the disk is too busy to build it in `BUILD_SECONDS_MAX`, it has fewer effects, and the result says how many. Each
work has a fresh process, and the same is done with a tenth as many effects: its seconds tell how it grows, the memory of the
process itself must not. A tenth of the records are operations; the older half of the effects is pruned.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks._child import Memory, in_child
from benchmarks._measure import Bench, Result, Spread
from benchmarks._workload import (
    STREAM,
    THREAD_COUNT,
    SilentLogger,
    append_charges,
    effects_in_threads,
    fresh_key,
    open_journal,
)
from benchmarks.open_many import BUILD_GROUP, BUILD_SECONDS_MAX
from journal import Journal

ALLOWANCE = 1.25
"""The noise of an allocator between two runs of the same work, whose pages are full at one size and not at the other."""

WATCH_SECONDS = 0.05
"""How often the memory is looked at."""


def build(path: str, effect_count: int) -> dict[str, float]:
    """Settles effects, a tenth as many operations between them; how many effects there are at the end."""
    deadline = time.monotonic() + BUILD_SECONDS_MAX
    group = min(BUILD_GROUP, effect_count)
    done = 0
    with open_journal(Path(path), logger=SilentLogger()) as j, ThreadPoolExecutor(THREAD_COUNT) as pool:
        while done < effect_count and time.monotonic() < deadline:
            count = min(group, effect_count - done)
            effects_in_threads(j, pool, [fresh_key() for _ in range(count)])
            append_charges(j, count // 10, first=done // 10)
            done += count
    return {"count": done}


@contextmanager
def measured(path: str, figures: dict[str, float]) -> Iterator[Journal]:
    """A journal open for one work: its seconds, the most memory of the process in it, the bytes in use and of the file."""
    has_ended = threading.Event()
    own: list[float] = []

    def watch() -> None:
        while not has_ended.wait(WATCH_SECONDS):
            own.append(Memory.now().own)

    with open_journal(Path(path), logger=SilentLogger()) as j, ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        began = time.perf_counter()
        try:
            yield j
        finally:
            has_ended.set()
        figures["seconds"] = time.perf_counter() - began
        watching.result()
        figures["own"] = max([*own, Memory.now().own])
        stats = j.stats()
        figures["used"], figures["file"] = stats.used_bytes, stats.file_bytes


def verify(path: str) -> dict[str, float]:
    """Verifies everything."""
    figures: dict[str, float] = {}
    with measured(path, figures) as j:
        assert list(j.verify()) == []
    return figures


def backup(path: str) -> dict[str, float]:
    """Makes a backup beside it."""
    figures: dict[str, float] = {}
    with measured(path, figures) as j:
        j.backup(f"{path}-backup-{os.getpid()}")
    return figures


def compact(path: str) -> dict[str, float]:
    """Drops the contents of all operations."""
    figures: dict[str, float] = {}
    with measured(path, figures) as j:
        j.compact(STREAM, j.head())
    return figures


def prune(path: str) -> dict[str, float]:
    """Forgets the older half of the effects, by the time in the middle of the log."""
    figures: dict[str, float] = {}
    with measured(path, figures) as j:
        first, last = (next(j.effects(limit=1)).last_at, time.time_ns())
        count = j.prune_effects(settled_before=(first + last) // 2)
        figures["pruned"] = count
    return figures


def vacuum(path: str) -> dict[str, float]:
    """Makes the file as small as what it holds."""
    figures: dict[str, float] = {}
    with measured(path, figures) as j:
        j.vacuum()
    return figures


WORKS: tuple[Callable[[str], dict[str, float]], ...] = (verify, backup, compact, prune, vacuum)
"""In this order, each on what the one before left."""

FIGURES = (
    ("seconds", "", "s", 1, None),
    ("own", "memory of the process itself", "MiB", 1, ALLOWANCE),
    ("used", "bytes in use afterwards", "MiB", 2**20, None),
    ("file", "bytes of the file afterwards", "MiB", 2**20, None),
)
"""What each work is judged by: figure, what it is, unit, divisor, and the ceiling of large over small."""


def run(bench: Bench) -> list[Result]:
    """Every work on a large journal and on one of a tenth."""
    many = bench.pick(2_000, 1_000_000)
    large, small = str(bench.path("large")), str(bench.path("small"))
    many = int(in_child("benchmarks.care:build", large, many)["count"])
    few = int(in_child("benchmarks.care:build", small, many // 10)["count"])
    results = []
    for work in WORKS:
        of_large, of_small = (in_child(f"benchmarks.care:{work.__name__}", path) for path in (large, small))
        for figure, what, unit, divisor, target in FIGURES:
            results.append(
                Result(
                    what=f"{work.__name__}, {what or f'{many:,} effects'}",
                    unit=unit,
                    figure=Spread.of([of_large[figure] / divisor]),
                    base=f"{few:,} effects",
                    ratio=Spread.of([of_large[figure] / of_small[figure]]),
                    target=target,
                    target_on="ratio",
                    is_ceiling=True,
                )
            )
    return results
