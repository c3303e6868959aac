"""Reading a journal into Structs, each checksum checked, keeps 0.7 of a bare LMDB scan that decodes the same records.

The bare scan decodes into Structs of the same fields that `read` gives. A second line compares with a scan that holds
and decodes nothing but the operations, and so does less than any log could.
"""

import msgspec

from benchmarks._baselines import ENCODER, Bare
from benchmarks._measure import Bench, Contestant, Result, compared, interleave
from benchmarks._workload import Charge, append_charges, open_journal


class Row(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a `Committed` as a bare log would hold them."""

    stream: str
    sequence: int
    position: int
    op_id: str
    actor: str
    at: int
    operation: Charge
    repeated: bool


def run(bench: Bench) -> list[Result]:
    """`read` of everything against two bare scans."""
    rows, operations = Bare(bench.path("rows")), Bare(bench.path("operations"))
    row_decoder, operation_decoder = msgspec.msgpack.Decoder(Row), msgspec.msgpack.Decoder(Charge)
    with open_journal(bench.path("journal")) as j:
        append_charges(j, bench.pick(200, 50_000))
        facts = list(j.read())
        rows.commit_all(
            ENCODER.encode(
                Row(c.stream, c.sequence, c.position, c.op_id, c.actor, c.at, c.operation, repeated=c.repeated)
            )
            for c in facts
        )
        operations.commit_all(ENCODER.encode(c.operation) for c in facts)

        def read() -> int:
            return sum(1 for _ in j.read())

        rates = interleave(
            {
                "a bare scan": Contestant(lambda: rows.scan(row_decoder.decode)),
                "a scan of operations alone": Contestant(lambda: operations.scan(operation_decoder.decode)),
                "read": Contestant(read),
            },
            rounds=bench.pick(2, 15),
        )
    rows.close()
    operations.close()
    return [
        compared(rates, "read", "a bare scan", what="read", unit="ops/s", target=0.7),
        compared(rates, "read", "a scan of operations alone", what="read", unit="ops/s"),
    ]
