"""Over settled operations with one intent each, `recover` walks 80,000 operations a second and asks nobody."""

import msgspec

from benchmarks._measure import Bench, Contestant, Result, compared, interleave
from benchmarks._workload import append_charges, intents_each, open_journal, settle_charges


def run(bench: Bench) -> list[Result]:
    """A walk from 0 against a `read` of the same operations, which looks nothing up."""
    count = bench.pick(200, 20_000)
    with open_journal(bench.path("journal")) as j:
        append_charges(j, count)
        settle_charges(j, 1)

        def walk() -> int:
            settled = j.recover(0, intents=intents_each(1))
            assert settled.reused == count
            return count

        def read() -> int:
            return sum(1 for _ in j.read())

        rates = interleave({"read": Contestant(read), "recover": Contestant(walk)}, rounds=bench.pick(2, 15))
    what = "recover over settled operations"
    result = compared(rates, "recover", "read", what=what, unit="ops/s", target=80_000)
    return [msgspec.structs.replace(result, target_on="figure")]
