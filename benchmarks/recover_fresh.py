"""One after the other, `recover` runs never-started effects at 1.5 times a bare LMDB with two commits for each.

It can, because the outcome of one effect and the intent of the next share a commit.
"""

from benchmarks._baselines import Bare, Limit, two_records_each
from benchmarks._measure import Bench, Contestant, Result, compared, interleave
from benchmarks._workload import append_charges, intents_each, open_journal


def run(bench: Bench) -> list[Result]:
    """Walks over operations of one effect each, and of three, against B and L."""
    return [*measure(bench, effects_each=1), *measure(bench, effects_each=3)]


def measure(bench: Bench, *, effects_each: int) -> list[Result]:
    """One walk a slice; its operations are appended outside the time."""
    operation_count = bench.pick(4, 120 // effects_each)
    count = operation_count * effects_each
    limit, bare = Limit(bench.path(f"limit-{effects_each}")), Bare(bench.path(f"bare-{effects_each}"))
    cursor = appended = 0
    with open_journal(bench.path(f"journal-{effects_each}")) as j:

        def append() -> None:
            nonlocal appended
            append_charges(j, operation_count, first=appended)
            appended += operation_count

        def walk() -> int:
            nonlocal cursor
            settled = j.recover(cursor, intents=intents_each(effects_each))
            assert settled.ran == count
            cursor = int(settled)
            return count

        rates = interleave(
            {
                "L": two_records_each(limit, bench.pick(4, 100)),
                "B": two_records_each(bare, bench.pick(4, 100)),
                "recover": Contestant(walk, append),
            },
            rounds=bench.pick(2, 30),
        )
    limit.close()
    bare.close()
    what = f"recover, {effects_each} new effects an operation"
    return [
        compared(rates, "recover", "B", what=what, unit="effects/s", target=1.5),
        compared(rates, "recover", "L", what=what, unit="effects/s"),
    ]
