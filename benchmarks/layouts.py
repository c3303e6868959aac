"""One unnamed table with an index of positions, written once an effect, is the cheapest durable layout.

That is: of the layouts below it writes the fewest pages for each commit of an effect, takes the least of the disk for
each accepted effect, and loses nothing that matters when a settled effect is read. Everything here is bare LMDB with
the commit pattern of one effect; the journal itself is not used.

    commit 1: intent record appended to the log, index row written, `unfinished` row written
    commit 2: accepted record appended, index row overwritten, `unfinished` row deleted

Compared in one run, slices interleaved:

    tables       log, effects and unfinished as named tables (apart) | one named table, one-byte prefixes, the log
                 last (one) | the same rows in the environment's own unnamed table (main)
    index value  position and crc (12 bytes) | the whole state (about 100 bytes)
    index row    written by both commits (twice) | only by commit 2, an open effect being found by its `unfinished`
                 row, which then holds what the index row would (once)
    file         growing | allocated ahead by posix_fallocate | allocated ahead by writing zeros

L is the same records appended to a zero-written file with one fdatasync each, B the same records put into one bare
table with one commit each. `python -m benchmarks.layouts [--quick]` prints the whole table.
"""

import os
import sys
import time
import zlib
from pathlib import Path
from typing import Literal

import lmdb
import msgspec

from benchmarks._baselines import (
    AT,
    ENCODER,
    MAP_BYTES,
    OWNER,
    PROOF,
    Allocation,
    Bare,
    Limit,
    Record,
    accepted_record,
    allocate,
    fresh_key,
    intent_record,
    two_records_each,
)
from benchmarks._measure import Bench, Contestant, Rates, Result, Spread, compared, disk_directory, interleave, machine

Tables = Literal["apart", "one", "main"]
Value = Literal["position", "state"]
Writes = Literal["twice", "once"]
TABLES: tuple[Tables, ...] = ("apart", "one")
VALUES: tuple[Value, ...] = ("position", "state")
ALLOCATIONS: tuple[Allocation, ...] = ("growing", "fallocate", "zeros")
Variant = tuple[Tables, Value, Allocation, Writes]
VARIANTS: list[Variant] = [
    *((tables, value, allocation, "twice") for tables in TABLES for value in VALUES for allocation in ALLOCATIONS),
    ("main", "position", "growing", "twice"),
    ("main", "position", "zeros", "twice"),
    ("apart", "position", "growing", "once"),
    ("one", "position", "growing", "once"),
    ("main", "position", "growing", "once"),
    ("main", "position", "zeros", "once"),
    ("main", "state", "growing", "once"),
]
"""All combinations of the first three questions, and the fourth where it can win."""
CHOSEN: Variant = ("main", "position", "growing", "once")
NAIVE: Variant = ("apart", "state", "growing", "twice")

GROUP = 64


class State(msgspec.Struct, array_like=True):
    """The whole state of an effect as an index row: about 100 bytes, the key being the row's own."""

    phase: int
    guarantee: int
    attempts: int
    first_at: int
    last_at: int
    owner: bytes
    position: int
    proof: str | None = None
    fingerprint: bytes = b""


STATE = msgspec.msgpack.Decoder(State)
RECORD = msgspec.msgpack.Decoder(Record)


def name_of(variant: Variant) -> str:
    """The variant as the table names it."""
    return ", ".join(variant)


class Layout:
    """One layout in an environment of its own."""

    def __init__(self, directory: Path, variant: Variant) -> None:
        self.name = name_of(variant)
        tables, value, allocation, writes = variant
        self._is_once = writes == "once"
        self._whole = value == "state"
        self._env = lmdb.open(
            os.fspath(directory), map_size=MAP_BYTES, max_dbs=3, mode=0o600, lib_version=0, max_readers=16
        )
        allocate(directory / "data.mdb", allocation)
        if tables == "apart":
            self._log, self._index, self._unfinished = (self._env.open_db(name) for name in (b"l", b"e", b"u"))
            self._prefixes = (b"", b"", b"")
        else:
            self._log = self._index = self._unfinished = self._env.open_db(b"t" if tables == "one" else None)
            self._prefixes = (b"l", b"e", b"g")
        self._head = 0

    def commit_intents(self, keys: list[bytes]) -> None:
        """Commit 1 for every key, in one transaction."""
        log, index, unfinished = self._prefixes
        with self._env.begin(write=True) as txn:
            for key in keys:
                self._head += 1
                record = intent_record(key)
                assert txn.put(log + self._head.to_bytes(8), record, db=self._log, append=True)
                row = self._row(record, None)
                if self._is_once:
                    assert txn.put(unfinished + key, row, db=self._unfinished)
                else:
                    assert txn.put(index + key, row, db=self._index)
                    assert txn.put(unfinished + key, b"", db=self._unfinished)

    def commit_outcomes(self, keys: list[bytes]) -> None:
        """Commit 2 for every key, in one transaction."""
        log, index, unfinished = self._prefixes
        with self._env.begin(write=True) as txn:
            for key in keys:
                self._head += 1
                record = accepted_record(key)
                assert txn.put(log + self._head.to_bytes(8), record, db=self._log, append=True)
                assert txn.put(index + key, self._row(record, PROOF), db=self._index)
                assert txn.delete(unfinished + key, db=self._unfinished)

    def _row(self, record: bytes, proof: str | None) -> bytes:
        if self._whole:
            return ENCODER.encode(State(1, 1, 1, AT, AT, OWNER, self._head, proof)) + bytes(4)
        return self._head.to_bytes(8) + zlib.crc32(record).to_bytes(4)

    def read(self, key: bytes) -> str | None:
        """The proof of a settled effect, through a read transaction of its own."""
        log, index, _ = self._prefixes
        with self._env.begin() as txn:
            row = txn.get(index + key, db=self._index)
            assert row is not None
            if self._whole:
                return STATE.decode(memoryview(row)[:-4]).proof
            record = txn.get(log + row[:8], db=self._log)
        assert record is not None
        assert zlib.crc32(record) == int.from_bytes(row[8:])
        return RECORD.decode(memoryview(record)[:-20]).proof

    def used_bytes(self) -> int:
        """What the pages in use so far take; the allocation ahead is not counted."""
        return (int(self._env.info()["last_pgno"]) + 1) * 4096

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


def written() -> tuple[int, int]:
    """Bytes that this process handed to write calls, and bytes of pages that it made dirty."""
    facts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(facts["wchar"]), int(facts["write_bytes"])


class Row(msgspec.Struct):
    """What one contestant cost beside its time; zeros where there is nothing to tell."""

    name: str
    pages: float = 0.0
    dirty_bytes: float = 0.0
    cpu_us: float = 0.0
    file_bytes: float = 0.0
    read_us: float = 0.0


def fresh_keys(count: int) -> list[bytes]:
    """Random keys that no layout has."""
    return [fresh_key() for _ in range(count)]


def fill(layout: Layout, count: int) -> list[bytes]:
    """Brings `count` effects to accepted, `GROUP` of them a commit; their keys."""
    keys = fresh_keys(count)
    for start in range(0, count, GROUP):
        layout.commit_intents(keys[start : start + GROUP])
        layout.commit_outcomes(keys[start : start + GROUP])
    return keys


def read_cost(layout: Layout, keys: list[bytes]) -> float:
    """Microseconds for a settled effect, the best of five passes over all keys."""
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for key in keys:
            layout.read(key)
        best = min(best, (time.perf_counter() - began) / len(keys))
    return best * 1e6


def layout_slice(layout: Layout, count: int, io: list[tuple[float, float, float]]) -> Contestant:
    """Does `count` effects one at a time and notes pages, dirty bytes and processor time of each commit in `io`."""

    def work() -> int:
        keys = [[key] for key in fresh_keys(count)]
        before, cpu = written(), time.thread_time()
        for key in keys:
            layout.commit_intents(key)
            layout.commit_outcomes(key)
        passed, dirty = (after - earlier for after, earlier in zip(written(), before, strict=True))
        cpu = time.thread_time() - cpu
        io.append((passed / 4096 / (2 * count), dirty / (2 * count), cpu * 1e6 / (2 * count)))
        return count

    return Contestant(work)


def measure(bench: Bench) -> tuple[Rates, list[Row]]:
    """Fills every layout, reads it, then lets all take turns."""
    effect_count, slice_count = bench.pick(640, 20_000), bench.pick(2, 25)
    layouts: list[Layout] = []
    sizes: list[float] = []
    reads: list[float] = []
    for number, variant in enumerate(VARIANTS):
        layout = Layout(bench.path(f"layout-{number}"), variant)
        layouts.append(layout)
        keys = fill(layout, effect_count)
        sizes.append(layout.used_bytes() / effect_count)
        reads.append(read_cost(layout, keys[:5000]))
    bares = {f"bare {allocation}": Bare(bench.path(f"bare-{allocation}"), allocation) for allocation in ALLOCATIONS}
    limit = Limit(bench.path("limit"))
    contestants: dict[str, Contestant] = {"L": two_records_each(limit, slice_count)}
    contestants |= {name: two_records_each(bare, slice_count) for name, bare in bares.items()}
    io: dict[str, list[tuple[float, float, float]]] = {layout.name: [] for layout in layouts}
    contestants |= {layout.name: layout_slice(layout, slice_count, io[layout.name]) for layout in layouts}
    rates = interleave(contestants, rounds=bench.pick(1, 20))
    rows = [Row(name) for name in ["L", *bares]]
    for layout, size, read in zip(layouts, sizes, reads, strict=True):
        pages, dirty, cpu = (sum(column) / len(column) for column in zip(*io[layout.name], strict=True))
        rows.append(Row(layout.name, pages, dirty, cpu, size, read))
    stores: list[Layout | Bare | Limit] = [*layouts, *bares.values(), limit]
    for store in stores:
        store.close()
    return rates, rows


def run(bench: Bench) -> list[Result]:
    """The layout that was chosen against the one that comes to mind first."""
    rates, rows = measure(bench)
    pages = {row.name: row.pages for row in rows}
    speed = compared(rates, name_of(CHOSEN), name_of(NAIVE), what="effects, chosen layout", unit="/s", target=1.0)
    chosen, naive = pages[name_of(CHOSEN)], pages[name_of(NAIVE)]
    written_pages = Result(
        what="pages a commit, chosen layout",
        unit="pages",
        figure=Spread.of([chosen]),
        base=name_of(NAIVE),
        ratio=Spread.of([chosen / naive]),
        target=1.0,
        is_ceiling=True,
    )
    return [speed, written_pages]


def table(rates: Rates, rows: list[Row]) -> str:
    """The rows as text, ratios as minimum, median and maximum."""
    ratio_heading = "min  median     max"
    lines = [
        f"{'':34} {'x L':>23} {'x B (growing)':>23} effects/s  pages   dirty     cpu   file   read",
        f"{'':34} {ratio_heading:>23} {ratio_heading:>23}           /comm. B/comm. us/com. B/eff.     us",
    ]
    for row in rows:
        ratios = " ".join(
            f"{each.minimum:7.2f} {each.median:7.2f} {each.maximum:7.2f}"
            for each in (rates.ratio(row.name, base) for base in ("L", "bare growing"))
        )
        costs = f"{row.pages:6.2f} {row.dirty_bytes:7.0f} {row.cpu_us:7.1f} {row.file_bytes:6.0f} {row.read_us:6.2f}"
        rate = rates.per_second(row.name).median
        lines.append(f"{row.name:34} {ratios} {rate:9.0f} {costs if row.pages else ''}".rstrip())
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Prints the table."""
    with disk_directory() as directory:
        print(machine(directory))
        print(table(*measure(Bench(directory, "--quick" in arguments))))


if __name__ == "__main__":
    main(sys.argv[1:])
