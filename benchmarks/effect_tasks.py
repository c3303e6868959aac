"""With 512 asyncio tasks effects run at 8 times the physical limit of a lone caller, because they share commits."""

import asyncio

import journal
from benchmarks._baselines import Limit, two_records_each
from benchmarks._measure import Bench, Contestant, Result, compared, interleave
from benchmarks._workload import TASK_COUNT, Charge, effects_in_tasks, fresh_key, group_size


def run(bench: Bench) -> list[Result]:
    """Effects of 512 tasks against L."""
    count = TASK_COUNT * bench.pick(1, 8)
    limit = Limit(bench.path("limit"))
    with asyncio.Runner() as runner:
        a = runner.run(_open(bench))

        def work() -> int:
            runner.run(effects_in_tasks(a, [fresh_key() for _ in range(count)]))
            return count

        rates = interleave(
            {"L": two_records_each(limit, bench.pick(3, 200)), "tasks": Contestant(work)}, rounds=bench.pick(2, 30)
        )
        note = group_size(runner.run(a.stats()))
        runner.run(a.close())
    limit.close()
    return [compared(rates, "tasks", "L", what=f"effect, 512 tasks ({note})", unit="/s", target=8)]


async def _open(bench: Bench) -> journal.AsyncJournal:
    return await journal.open_async(bench.path("journal"), operation=Charge)
