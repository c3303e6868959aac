"""With one caller an effect runs at 0.85 of a bare LMDB that commits the same bytes twice.

Measured in a fresh journal and in one that already holds many effects, where the trees are deeper; B is filled alike.
"""

from concurrent.futures import ThreadPoolExecutor

from benchmarks._baselines import Bare, Limit, accepted_record, fresh_key, intent_record, two_records_each
from benchmarks._measure import Bench, Contestant, Result, compared, interleave
from benchmarks._workload import THREAD_COUNT, effects, effects_in_threads, fresh_key as fresh_name, open_journal

FILL_GROUP = 64


def run(bench: Bench) -> list[Result]:
    """Effects of one caller against B and L."""
    filled = bench.pick(128, 20_000)
    return [
        *measure(bench, "fresh", filled=0),
        *measure(bench, f"{filled:,} effects in", filled=filled),
    ]


def measure(bench: Bench, name: str, *, filled: int) -> list[Result]:
    """Both ratios with `filled` effects in the journal and in B beforehand."""
    count = bench.pick(3, 40)
    limit, bare = Limit(bench.path(f"limit-{filled}")), Bare(bench.path(f"bare-{filled}"))
    for _ in range(0, filled, FILL_GROUP):
        keys = [fresh_key() for _ in range(FILL_GROUP)]
        bare.commit_all(make(key) for key in keys for make in (intent_record, accepted_record))
    with open_journal(bench.path(f"journal-{filled}")) as j, ThreadPoolExecutor(THREAD_COUNT) as pool:
        effects_in_threads(j, pool, [fresh_name() for _ in range(filled)])

        def work() -> int:
            effects(j, [fresh_name() for _ in range(count)])
            return count

        rates = interleave(
            {"L": two_records_each(limit, count), "B": two_records_each(bare, count), "effect": Contestant(work)},
            rounds=bench.pick(2, 50),
        )
    limit.close()
    bare.close()
    return [
        compared(rates, "effect", "B", what=f"effect, one caller, {name}", unit="/s", target=0.85),
        compared(rates, "effect", "L", what=f"effect, one caller, {name}", unit="/s"),
        compared(rates, "B", "L", what=f"B itself, {name}", unit="/s"),
    ]
