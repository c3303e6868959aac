"""With 64 threads effects run at 2.5 times the physical limit of a lone caller, because they share commits."""

from concurrent.futures import ThreadPoolExecutor

from benchmarks._baselines import Limit, two_records_each
from benchmarks._measure import Bench, Contestant, Result, compared, interleave
from benchmarks._workload import THREAD_COUNT, effects_in_threads, fresh_key, group_size, open_journal


def run(bench: Bench) -> list[Result]:
    """Effects of 64 threads against L."""
    count = THREAD_COUNT * bench.pick(1, 20)
    limit = Limit(bench.path("limit"))
    with open_journal(bench.path("journal")) as j, ThreadPoolExecutor(THREAD_COUNT) as pool:

        def work() -> int:
            effects_in_threads(j, pool, [fresh_key() for _ in range(count)])
            return count

        rates = interleave(
            {"L": two_records_each(limit, bench.pick(3, 200)), "threads": Contestant(work)}, rounds=bench.pick(2, 30)
        )
        note = group_size(j.stats())
    limit.close()
    return [compared(rates, "threads", "L", what=f"effect, 64 threads ({note})", unit="/s", target=2.5)]
