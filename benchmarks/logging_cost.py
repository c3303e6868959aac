"""Logging at its default, with nothing configured, costs under 5 % of each figure.

Compared with a journal whose logger has four empty methods: the least that any logger can do. What the default adds to
that is its cost; a figure below zero says that it is cheaper still.
"""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from benchmarks._measure import Bench, Contestant, Result, Spread, interleave
from benchmarks._workload import (
    THREAD_COUNT,
    SilentLogger,
    append_charges,
    effects,
    effects_in_threads,
    fresh_key,
    intents_each,
    open_journal,
    settle_charges,
)
from journal import Journal

PERCENT_AT_MOST = 5.0


Work = Callable[[], int]


class Figures:
    """The work behind each figure, on one journal. Each method prepares and gives what is timed."""

    def __init__(self, j: Journal, pool: ThreadPoolExecutor, bench: Bench) -> None:
        self._j = j
        self._pool = pool
        self._bench = bench

    def one_caller(self) -> Work:
        """New effects, one after the other."""
        count = self._bench.pick(3, 60)

        def work() -> int:
            effects(self._j, [fresh_key() for _ in range(count)])
            return count

        return work

    def many_threads(self) -> Work:
        """New effects of 64 threads."""
        count = THREAD_COUNT * self._bench.pick(1, 10)

        def work() -> int:
            effects_in_threads(self._j, self._pool, [fresh_key() for _ in range(count)])
            return count

        return work

    def reused(self) -> Work:
        """Settled effects."""
        keys = [fresh_key() for _ in range(self._bench.pick(64, 5_000))]
        effects_in_threads(self._j, self._pool, keys)

        def work() -> int:
            effects(self._j, keys)
            return len(keys)

        return work

    def appended(self) -> Work:
        """Operations, a hundred in a transaction."""
        count = self._bench.pick(200, 5_000)
        firsts = itertools.count(0, count)

        def work() -> int:
            append_charges(self._j, count, first=next(firsts))
            return count

        return work

    def recovered(self) -> Work:
        """Operations whose effects are settled."""
        count = self._bench.pick(100, 5_000)
        append_charges(self._j, count)
        settle_charges(self._j, 1)

        def work() -> int:
            settled = self._j.recover(0, intents=intents_each(1))
            assert settled.reused == count
            return count

        return work


FIGURES: dict[str, Callable[[Figures], Work]] = {
    "effect, one caller": Figures.one_caller,
    "effect, 64 threads": Figures.many_threads,
    "settled effects reused": Figures.reused,
    "append_all": Figures.appended,
    "recover over settled operations": Figures.recovered,
}


def run(bench: Bench) -> list[Result]:
    """Every figure twice, with the default and with the silent logger."""
    with ThreadPoolExecutor(THREAD_COUNT) as pool:
        return [cost(bench, pool, name) for name in FIGURES]


def cost(bench: Bench, pool: ThreadPoolExecutor, name: str) -> Result:
    """How many percent longer the default takes."""
    paths = [bench.path(f"{name} {kind}") for kind in ("default", "silent")]
    with open_journal(paths[0]) as default, open_journal(paths[1], logger=SilentLogger()) as silent:
        contestants = {
            kind: Contestant(FIGURES[name](Figures(j, pool, bench)))
            for kind, j in (("default", default), ("silent", silent))
        }
        rates = interleave(contestants, rounds=bench.pick(2, 40))
    slower = rates.ratio("silent", "default")
    percents = [(value - 1) * 100 for value in (slower.minimum, slower.median, slower.maximum)]
    return Result(what=name, unit="%", figure=Spread(*percents), target=PERCENT_AT_MOST, is_ceiling=True)
