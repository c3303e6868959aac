"""Recovery from 0 over 100,000 operations of 3 effects each needs no more memory than over 1,000.

Each walk has a process of its own. What counts is the memory of the process itself; pages of the data file that
happen to be mapped are told apart, the kernel takes them back when it likes.
"""

from pathlib import Path

import journal
from benchmarks._child import Memory, in_child
from benchmarks._measure import Bench, Result, Spread
from benchmarks._workload import append_charges, intents_each, open_journal, settle_charges

EFFECTS_EACH = 3
ALLOWANCE = 1.1
"""The noise of an allocator between two runs of the same work."""


def build(path: str, operation_count: int) -> dict[str, float]:
    """Appends the operations and settles all their effects."""
    with open_journal(Path(path)) as j:
        append_charges(j, operation_count)
        settle_charges(j, EFFECTS_EACH)
    return {}


def build_and_walk(path: str, operation_count: int) -> dict[str, float]:
    """Appends the operations; the walk is the first to run their effects."""
    with open_journal(Path(path)) as j:
        append_charges(j, operation_count)
    return walk(path)


def walk(path: str) -> dict[str, float]:
    """Recovers from 0, watching the memory of this process."""
    most = Memory.now()

    def watch(_cursor: int, _head: int) -> None:
        nonlocal most
        now = Memory.now()
        most = Memory(max(most.own, now.own), max(most.peak, now.peak))

    with open_journal(Path(path)) as j:
        settled = j.recover(0, intents=intents_each(EFFECTS_EACH), progress=watch)
        assert settled.stopped is None, settled.stopped
    assert isinstance(settled, journal.Settled)
    return {"own": most.own, "peak": most.peak}


def run(bench: Bench) -> list[Result]:
    """Walks over settled effects, and shorter ones over effects that they run, each at two sizes."""
    few, many, many_fresh = bench.pick(10, 1_000), bench.pick(100, 100_000), bench.pick(100, 10_000)
    settled = {}
    for count in (few, many):
        path = str(bench.path(f"settled-{count}"))
        in_child("benchmarks.recover_memory:build", path, count)
        settled[count] = in_child("benchmarks.recover_memory:walk", path)
    fresh = {
        count: in_child("benchmarks.recover_memory:build_and_walk", str(bench.path(f"fresh-{count}")), count)
        for count in (few, many_fresh)
    }
    return [
        *compared_memory(f"{many:,} settled operations", settled[many], f"{few:,}", settled[few]),
        *compared_memory(f"{many_fresh:,} new operations", fresh[many_fresh], f"{few:,}", fresh[few]),
    ]


def compared_memory(what: str, large: dict[str, float], base: str, small: dict[str, float]) -> list[Result]:
    """The process's own memory, with the target, and its peak with mapped pages, without."""
    return [
        Result(
            what=what + suffix,
            unit="MiB",
            figure=Spread.of([large[kind]]),
            base=base,
            ratio=Spread.of([large[kind] / small[kind]]),
            target=target,
            is_ceiling=True,
        )
        for kind, suffix, target in (("own", "", ALLOWANCE), ("peak", ", mapped pages too", None))
    ]
