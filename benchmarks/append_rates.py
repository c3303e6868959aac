"""One `append` costs little more than the bare commit, and `append_all` writes 60,000 operations a second."""

import itertools

import msgspec

from benchmarks._baselines import ENCODER, Bare
from benchmarks._measure import Bench, Contestant, Result, compared, interleave
from benchmarks._workload import APPEND_GROUP, STREAM, append_charges, charge, open_journal


class Row(msgspec.Struct, array_like=True):
    """What a bare log of operations would hold."""

    stream: str
    sequence: int
    op_id: str
    actor: str
    at: int
    operation: object


def row(number: int) -> bytes:
    """The bytes that a bare log would commit for this operation."""
    return ENCODER.encode(Row(STREAM, number, f"op-{number:010}", "", 0, charge(number)))


def run(bench: Bench) -> list[Result]:
    """Appends one by one and by the hundred, each against the bare commit of the same operations."""
    return [one_by_one(bench), by_the_hundred(bench)]


def one_by_one(bench: Bench) -> Result:
    """A commit for every operation."""
    count = bench.pick(3, 80)
    mine, theirs = itertools.count(1), itertools.count(1)
    bare = Bare(bench.path("bare-single"))
    with open_journal(bench.path("single")) as j:

        def append() -> int:
            for number in itertools.islice(mine, count):
                j.append(STREAM, charge(number), op_id=f"op-{number:010}")
            return count

        def commit() -> int:
            for number in itertools.islice(theirs, count):
                bare.commit(row(number))
            return count

        rates = interleave(
            {"a bare commit": Contestant(commit), "append": Contestant(append)}, rounds=bench.pick(2, 50)
        )
    bare.close()
    return compared(rates, "append", "a bare commit", what="append, one by one", unit="ops/s", target=0.8)


def by_the_hundred(bench: Bench) -> Result:
    """A commit for every hundred operations."""
    count = APPEND_GROUP * bench.pick(2, 50)
    mine, theirs = itertools.count(1, count), itertools.count(1, count)
    bare = Bare(bench.path("bare-group"))
    with open_journal(bench.path("group")) as j:

        def append() -> int:
            append_charges(j, count, first=next(mine))
            return count

        def commit() -> int:
            first = next(theirs)
            for start in range(first, first + count, APPEND_GROUP):
                bare.commit_all([row(number) for number in range(start, start + APPEND_GROUP)])
            return count

        rates = interleave({"bare commits": Contestant(commit), "append": Contestant(append)}, rounds=bench.pick(2, 20))
    bare.close()
    what = f"append_all, {APPEND_GROUP} each"
    result = compared(rates, "append", "bare commits", what=what, unit="ops/s", target=60_000)
    return msgspec.structs.replace(result, target_on="figure")
