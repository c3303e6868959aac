"""Compaction and reset in the real store: rows and records, what a view makes of them, and what `verify` finds.

The journal of these tests has, in stream `s`, operations at 1 to 4 in epoch 1 and at 8 to 10 in epoch 2, and in stream
`t` one at 5; `s` was compacted through 2 (6), reset (7) and compacted through 8 (11); `t` through 5 (12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import lmdb
import msgspec
import pytest

from journal._core import compaction
from journal._core.operations import check_reach
from journal._core.payloads import digest
from journal._storage import layout, transaction
from journal._storage.store import Store
from journal._storage.transaction import StoreTransaction
from journal._storage.verify import findings
from journal._storage.views import StoreView, encode
from journal.errors import CompactedCursorError, CorruptRecordError
from journal.records import (
    CompactionRecord,
    DroppingRow,
    FloorRow,
    OperationRecord,
    ResetRecord,
    SnapshotRow,
    StreamRow,
)
from journal.values import Finding
from tests.unit.support import START, open_store

GENESIS: Final = digest(b"a journal")
HEAD: Final = 12
GONE: Final = (1, 2, 5, 8)
"""Positions of the operations without a payload; those at 3 and 4 are of the ended epoch, and were passed too."""
PASSED: Final = (*GONE, 3, 4)


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lmdb.Environment]:
    """An environment with the journal; nothing in these tests is committed to it."""
    with lmdb.open(str(tmp_path_factory.mktemp("rows")), map_size=2**23, sync=False, lib_version=0) as opened:
        with opened.begin(write=True) as raw:
            fill(StoreTransaction(raw, GENESIS, None, has_owner_row=False))
        yield opened


@pytest.fixture
def raw(env: lmdb.Environment) -> Iterator[lmdb.Transaction]:
    """A write transaction that is dropped."""
    opened = env.begin(write=True)
    try:
        yield opened
    finally:
        opened.abort()


@pytest.fixture
def txn(raw: lmdb.Transaction) -> StoreTransaction:
    """What decisions are given."""
    return StoreTransaction(raw, GENESIS, None, has_owner_row=False)


def fill(txn: StoreTransaction) -> None:
    """Write the journal."""
    txn.at = START
    for number in range(1, 5):
        append(txn, "s", 1, number)
    append(txn, "t", 1, 1)
    run(txn, compaction.compact("s", 2, (), ()))
    run(txn, compaction.reset("s"))
    for number in range(1, 4):
        append(txn, "s", 2, number)
    run(txn, compaction.compact("s", 8, (), ()))
    run(txn, compaction.compact("t", 5, (), ()))


def append(txn: StoreTransaction, stream: str, epoch: int, sequence: int, size: int = 0) -> int:
    """Add an operation; its position."""
    payload = msgspec.json.encode({"n": sequence, "x": "x" * size})
    head = OperationRecord(stream, epoch, sequence, f"op-{sequence}", "", START, digest(payload), len(payload))
    return txn.append(head, payload)


def run(txn: StoreTransaction, protocol: Any) -> Any:
    """What a protocol returns, each of its requests answered in one transaction."""
    request = next(protocol)
    try:
        while True:
            request = protocol.send((request.look if hasattr(request, "look") else request.decide)(txn))
    except StopIteration as end:
        return end.value


def put(raw: lmdb.Transaction, key: bytes, row: Any) -> None:
    """Put a row that agrees with its own check."""
    raw.put(key, layout.seal(key, encode(row)))


def found_in(raw: lmdb.Transaction) -> list[Finding]:
    """Everything that is wrong."""
    return list(findings(lambda look: look(StoreView(raw, GENESIS)), GENESIS))


def frame(raw: lmdb.Transaction, position: int) -> layout.Frame:
    """A log record's parts."""
    value: Any = raw.get(layout.log_key(position))
    return layout.unframe(position, value)


def reframe(raw: lmdb.Transaction, position: int, payload: bytes) -> None:
    """Give a record another payload, and leave the rest as it is."""
    parts = frame(raw, position)
    raw.put(layout.log_key(position), layout.frame(position, parts.digest, parts.head, payload))


def name_of(key: bytes) -> str:
    """A row as a test id."""
    return f"{layout.TABLES[key[:1]]}-{key[1:9].hex()}"


FLOOR_S: Final = layout.FLOOR + b"s"
STREAM_S: Final = layout.STREAM + b"s"
DROPPING_S: Final = layout.DROPPING + b"s"


# Rows and records


def test_dropped_payload_leaves_the_rest_of_its_record(raw: lmdb.Transaction, txn: StoreTransaction) -> None:
    """The same position, head and digest: the chain and the identity need no more."""
    before = frame(raw, 9)

    assert txn.drop_payloads("s", 8, 9, 100) == 9

    assert txn.has_changes
    assert frame(raw, 9) == layout.Frame(before.digest, before.head, b"")
    assert frame(raw, 10).payload
    assert [position for position in range(1, HEAD) if not frame(raw, position).payload] == [
        *range(1, 9),
        9,
        11,
    ], "operations without a payload, and records that have none"


def test_payload_that_is_gone_is_not_written_again(txn: StoreTransaction) -> None:
    """What others dropped meanwhile costs no page."""
    assert txn.drop_payloads("s", 0, 8, 100) == 8
    assert not txn.has_changes


@pytest.mark.parametrize(
    "after, through, reached", [(8, 10, 10), (8, 99, 99), (0, 3, 3), (9, 9, 9), (10, 12, 12), (4, 7, 7)]
)
def test_all_that_is_there_is_dropped_at_once(txn: StoreTransaction, after: int, through: int, reached: int) -> None:
    """Where it is little."""
    assert txn.drop_payloads("s", after, through, 100) == reached


def test_number_of_payloads_dropped_at_once_is_bounded(txn: StoreTransaction, raw: lmdb.Transaction) -> None:
    """It ends before the first that is left."""
    assert txn.drop_payloads("s", 4, 10, 2) == 9
    assert (bool(frame(raw, 9).payload), bool(frame(raw, 10).payload)) == (False, True)
    assert txn.drop_payloads("s", 9, 10, 2) == 10
    assert not frame(raw, 10).payload
    assert txn.drop_payloads("s", 2, 4, 2) == 4


def test_bytes_dropped_at_once_are_bounded(
    txn: StoreTransaction, raw: lmdb.Transaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large operations are read to be checked."""
    monkeypatch.setattr(transaction, "PAGE_BYTES_MAX", 100)
    large, small, last = (append(txn, "t", 1, 2, 200), append(txn, "t", 1, 3), append(txn, "t", 1, 4))

    assert txn.drop_payloads("t", 5, last, 100) == small - 1
    assert not frame(raw, large).payload
    assert txn.drop_payloads("t", small - 1, last, 100) == last


def test_damaged_record_is_left_as_it_is(txn: StoreTransaction, raw: lmdb.Transaction) -> None:
    """It is `verify`'s to find; what follows is dropped."""
    key = layout.log_key(9)
    damaged = bytes(raw.get(key) or b"")[:-1] + b"\x00"
    raw.put(key, damaged)

    assert txn.drop_payloads("s", 8, 10, 100) == 10
    assert raw.get(key) == damaged
    assert not frame(raw, 10).payload


def test_head_that_cannot_be_decoded_is_left_as_it_is(txn: StoreTransaction, raw: lmdb.Transaction) -> None:
    """Though its check is right."""
    raw.put(layout.log_key(9), layout.frame(9, b"d" * 16, b"\xc1", b"payload"))

    assert txn.drop_payloads("s", 8, 10, 100) == 10
    assert frame(raw, 9).payload == b"payload"


def test_record_of_another_stream_is_never_dropped(txn: StoreTransaction, raw: lmdb.Transaction) -> None:
    """Whatever the index says."""
    key = layout.stream_prefix("t") + layout.pack_u64(9)
    raw.put(key, layout.seal(key, layout.pack_u64(2)))
    with pytest.raises(CorruptRecordError) as caught:
        txn.drop_payloads("t", 5, 9, 100)
    assert (caught.value.position, caught.value.stream) == (9, "t")

    key = layout.stream_prefix("t") + layout.pack_u64(7)
    raw.put(key, layout.seal(key, layout.pack_u64(2)))
    with pytest.raises(CorruptRecordError):
        txn.drop_payloads("t", 5, 8, 100)
    assert frame(raw, 9).payload


@pytest.mark.parametrize("damage", ["row", "record"])
def test_damaged_index_refuses_to_drop(txn: StoreTransaction, raw: lmdb.Transaction, damage: str) -> None:
    """What it names may be another's."""
    key = layout.stream_prefix("s") + layout.pack_u64(9)
    if damage == "row":
        raw.put(key, bytes(raw.get(key) or b"")[:-1] + b"\x00")
    else:
        raw.delete(layout.log_key(9))

    with pytest.raises(CorruptRecordError):
        txn.drop_payloads("s", 8, 9, 100)


def test_record_that_lmdb_does_not_take_is_damage(raw: lmdb.Transaction) -> None:
    """It is not passed over in silence."""

    class Refusing:
        """A transaction that puts nothing."""

        def __getattr__(self, name: str) -> Any:
            return (lambda *_, **__: False) if name == "put" else getattr(raw, name)

    refusing: Any = Refusing()
    txn = StoreTransaction(refusing, GENESIS, None, has_owner_row=False)

    with pytest.raises(lmdb.CorruptedError):
        txn.drop_payloads("s", 8, 9, 100)


def test_row_of_what_is_left_comes_and_goes(txn: StoreTransaction) -> None:
    """One for each stream."""
    txn.save_dropping("t", DroppingRow(1, 5))
    txn.save_dropping("s", DroppingRow(2, 8))

    assert (txn.droppings(), txn.dropping("s")) == (["s", "t"], DroppingRow(2, 8))
    txn.save_dropping("s", None)
    assert (txn.droppings(), txn.dropping("s")) == (["t"], None)


def test_damaged_row_of_what_is_left_holds_up_its_own_stream(raw: lmdb.Transaction, txn: StoreTransaction) -> None:
    """And no compaction of another."""
    put(raw, DROPPING_S, DroppingRow(2, 8))
    raw.put(DROPPING_S, bytes(raw.get(DROPPING_S) or b"")[:-1] + b"\x00")
    txn.save_dropping("t", DroppingRow(0, 5))

    assert txn.droppings() == ["t"]
    with pytest.raises(CorruptRecordError):
        txn.dropping("s")
    assert run(txn, compaction.compact("t", 5, (), ())) == 5
    assert txn.droppings() == []


def test_damaged_floor_blocks_its_own_stream(raw: lmdb.Transaction, txn: StoreTransaction) -> None:
    """A reader of all streams is told where it comes to one of its operations; the highest floor nobody knows."""
    raw.put(FLOOR_S, bytes(raw.get(FLOOR_S) or b"")[:-1] + b"\x00")
    append(txn, "u", 1, 1)

    check_reach(txn, None, 0)
    check_reach(txn, "s", 8)
    check_reach(txn, "u", 0)
    assert [stored.position for stored in txn.operations("u", 0, 10).operations] == [HEAD + 1]
    assert [stored.position for stored in txn.operations(None, 10, 10).operations] == [HEAD + 1]
    for look in (
        lambda: txn.operations(None, 8, 10),
        lambda: txn.operations("s", 8, 10),
        lambda: run(txn, compaction.floor(None)),
        lambda: run(txn, compaction.compact("s", 9, (), ())),
    ):
        with pytest.raises(CorruptRecordError):
            look()


def test_reset_takes_floor_and_snapshot_away(txn: StoreTransaction) -> None:
    """They were of the epoch that has ended."""
    txn.save_snapshot("s", SnapshotRow(2, 3, 10, 1, b"{}", START))

    position = txn.append(ResetRecord("s", 3, START))

    assert (txn.floor("s"), txn.snapshot("s")) == (None, None)
    assert txn.stream("s") == StreamRow(3, position)
    assert txn.floors() == [("t", FloorRow(5, 12, 5))]


# What a view gives


def test_streams_give_what_is_there_now(txn: StoreTransaction) -> None:
    """Of each its present epoch, past its floor."""
    assert txn.floors() == [("s", FloorRow(8, 11, 8)), ("t", FloorRow(5, 12, 5))]
    assert [stored.position for stored in txn.operations("s", 8, 10).operations] == [9, 10]
    assert [stored.position for stored in txn.operations(None, 8, 10).operations] == [9, 10]
    assert txn.sequence("s") == 3
    assert txn.sequence("t") == 1


@pytest.mark.parametrize("stream, after, floor", [("s", 0, 8), ("s", 7, 8), ("t", 4, 5), (None, 0, 8), (None, 5, 8)])
def test_page_with_a_compacted_operation_is_refused(
    txn: StoreTransaction, stream: str | None, after: int, floor: int
) -> None:
    """Whether or not its payload has gone yet."""
    with pytest.raises(CompactedCursorError) as caught:
        txn.operations(stream, after, 10)

    assert (caught.value.cursor, caught.value.floor, caught.value.stream) == (after, floor, stream)


def test_page_is_refused_before_the_payloads_go(txn: StoreTransaction) -> None:
    """With the record it has happened."""
    txn.append(CompactionRecord("s", 2, 10, START, 11))

    for stream in ("s", None):
        with pytest.raises(CompactedCursorError) as caught:
            txn.operations(stream, 9, 10)
        assert caught.value.floor == 11


@pytest.mark.parametrize(
    "through, last", [(0, 0), (1, 1), (4, 4), (5, 4), (7, 4), (8, 8), (9, 9), (10, 10), (12, 10), (2**63, 10)]
)
def test_last_operation_up_to_a_position(txn: StoreTransaction, through: int, last: int) -> None:
    """In whatever epoch."""
    assert txn.last_operation("s", through) == last
    assert txn.last_operation("none", through) == 0


def test_compacted_operation_keeps_its_identity(txn: StoreTransaction) -> None:
    """Without a payload."""
    stored = txn.identity("s", 2, "op-1")

    assert stored is not None
    assert (stored.position, stored.payload) == (8, b"")
    assert stored.head.payload_bytes > 0


@pytest.mark.parametrize("position", [9, 10])
def test_missing_payload_above_the_floor_is_damage(raw: lmdb.Transaction, txn: StoreTransaction, position: int) -> None:
    """It is never taken for a compacted one."""
    reframe(raw, position, b"")

    for look in (
        lambda: txn.operation(position),
        lambda: txn.operations("s", 8, 10),
        lambda: txn.operations(None, 8, 10),
        lambda: txn.identity("s", 2, f"op-{position - 7}"),
    ):
        with pytest.raises(CorruptRecordError, match="its payload is missing") as caught:
            look()
        assert (caught.value.position, caught.value.stream) == (position, "s")


@pytest.mark.parametrize("position", GONE)
def test_payload_of_another_length_is_damage(raw: lmdb.Transaction, txn: StoreTransaction, position: int) -> None:
    """Also where there may be none."""
    reframe(raw, position, b"1")

    with pytest.raises(CorruptRecordError, match="another length"):
        txn.operation(position)


def test_damaged_record_of_an_ended_epoch_does_not_block_reading(raw: lmdb.Transaction, txn: StoreTransaction) -> None:
    """Nobody would be given it; one of the present epoch is told with its stream."""
    for position in (4, 10):
        raw.put(layout.log_key(position), bytes(raw.get(layout.log_key(position)) or b"")[:-1] + b"\x00")

    with pytest.raises(CompactedCursorError):
        txn.operations(None, 3, 10)
    with pytest.raises(CorruptRecordError) as caught:
        txn.operations(None, 8, 10)
    assert (caught.value.position, caught.value.stream) == (10, "s")


# What verify finds


def test_sound_journal_has_no_findings(raw: lmdb.Transaction) -> None:
    """Floors, ended epochs and missing payloads are in order."""
    assert found_in(raw) == []


def rows_of(raw: lmdb.Transaction) -> list[tuple[bytes, bytes]]:
    """All rows, and two more that a compaction may leave."""
    put(raw, DROPPING_S, DroppingRow(2, 8))
    return [(bytes(key), bytes(value)) for key, value in raw.cursor()]


def test_every_changed_byte_is_found(raw: lmdb.Transaction) -> None:
    """In whatever row."""
    for key, value in rows_of(raw):
        for place in range(len(value)):
            raw.put(key, value[:place] + bytes([value[place] ^ 0x10]) + value[place + 1 :])
            assert found_in(raw), (name_of(key), place)
        raw.put(key, value)
    assert found_in(raw) == []


def test_every_missing_row_is_found(raw: lmdb.Transaction) -> None:
    """But for that of what is left to be dropped, where nothing is left."""
    for key, value in rows_of(raw):
        raw.delete(key)
        assert bool(found_in(raw)) == (key != DROPPING_S), name_of(key)
        raw.put(key, value)


@pytest.mark.parametrize("position", [9, 10])
def test_payload_that_no_compaction_dropped_is_found(raw: lmdb.Transaction, position: int) -> None:
    """Above the floor."""
    reframe(raw, position, b"")

    assert found_in(raw) == [Finding("log", position, "its payload is missing, and no compaction dropped it")]


def test_missing_payload_of_an_ended_epoch_is_found(raw: lmdb.Transaction, txn: StoreTransaction) -> None:
    """Where neither its own compactions nor a later one passed it; the highest is told."""
    append(txn, "s", 2, 4)
    txn.append(ResetRecord("s", 3, START))
    assert found_in(raw) == []
    for position in (9, 10):
        reframe(raw, position, b"")
    assert found_in(raw) == [Finding("log", 10, "its payload is missing, and no compaction dropped it")]

    run(txn, compaction.compact("s", 10, (), ()))

    assert found_in(raw) == []


def test_compaction_during_the_check_is_no_finding(raw: lmdb.Transaction) -> None:
    """It may drop payloads, and be followed by a reset, after the head was read; damaged records stand in no way."""
    calls = 0

    def read(look: Callable[[StoreView], Any]) -> Any:
        nonlocal calls
        calls += 1
        answer = look(StoreView(raw, GENESIS))
        if calls == 1:
            txn = StoreTransaction(raw, GENESIS, None, has_owner_row=False)
            run(txn, compaction.compact("s", 10, (), ()))
            run(txn, compaction.reset("s"))
            append(txn, "t", 1, 2)
            last = append(txn, "t", 1, 3)
            raw.put(layout.log_key(last - 1), bytes(raw.get(layout.log_key(last - 1)) or b"")[:-1] + b"\x00")
        return answer

    assert [finding for finding in findings(read, GENESIS) if "no compaction" in finding.problem] == []


def test_payload_that_is_left_below_the_floor_is_found(raw: lmdb.Transaction, txn: StoreTransaction) -> None:
    """Where nothing says that it is to be dropped."""
    txn.append(CompactionRecord("s", 2, 10, START, 11))
    txn.save_dropping("s", DroppingRow(8, 11))
    assert found_in(raw) == []
    problem = "its payload was compacted, is still there, and nothing says that it is to be dropped"

    txn.save_dropping("s", DroppingRow(9, 11))
    assert found_in(raw) == [Finding("log", 9, problem)]
    txn.save_dropping("s", None)
    assert found_in(raw) == [Finding("log", 9, problem), Finding("log", 10, problem)]


def test_payload_that_is_dropped_during_the_check_is_no_finding(raw: lmdb.Transaction, txn: StoreTransaction) -> None:
    """A page of the log may be older than what is asked about it."""
    txn.append(CompactionRecord("s", 2, 10, START, 11))
    txn.save_dropping("s", DroppingRow(8, 11))

    def read(look: Any) -> Any:
        answer = look(StoreView(raw, GENESIS))
        if getattr(getattr(look, "func", None), "__name__", "") == "page_of_log":
            run(txn, compaction.compact("s", 8, (), ()))
        return answer

    assert list(findings(read, GENESIS)) == []


@pytest.mark.parametrize(
    "key, row, table",
    [
        (FLOOR_S, FloorRow(9, 11, 9), "floors"),
        (FLOOR_S, FloorRow(2, 6, 2), "floors"),
        (FLOOR_S, FloorRow(5, 12, 5), "floors"),
        (FLOOR_S, FloorRow(8, 99, 8), "floors"),
        (FLOOR_S, FloorRow(8, 10, 8), "floors"),
        (layout.FLOOR + b"none", FloorRow(8, 11, 8), "floors"),
        (STREAM_S, StreamRow(1, 0), "streams"),
        (STREAM_S, StreamRow(3, 7), "streams"),
        (STREAM_S, StreamRow(2, 6), "streams"),
        (layout.STREAM + b"t", StreamRow(2, 7), "streams"),
        (DROPPING_S, DroppingRow(8, 8), "droppings"),
        (DROPPING_S, DroppingRow(2, 9), "droppings"),
        (layout.DROPPING + b"none", DroppingRow(0, 1), "droppings"),
    ],
)
def test_row_that_no_record_says_is_found(raw: lmdb.Transaction, key: bytes, row: Any, table: str) -> None:
    """Though it agrees with its own check."""
    put(raw, key, row)

    assert table in {finding.table for finding in found_in(raw)}


def test_floor_of_an_ended_epoch_is_found(raw: lmdb.Transaction, txn: StoreTransaction) -> None:
    """A reset takes it away."""
    txn.append(ResetRecord("s", 3, START))
    put(raw, FLOOR_S, FloorRow(8, 11, 8))

    assert found_in(raw) == [Finding("floors", None, "it names position 11, and the stream was reset after that")]


def test_row_of_another_kind_is_found(raw: lmdb.Transaction) -> None:
    """What cannot be decoded is told, and ends nothing."""
    for key in (FLOOR_S, STREAM_S, DROPPING_S):
        put(raw, key, "text")

    assert {"floors", "streams", "droppings"} <= {finding.table for finding in found_in(raw)}


# The whole


def test_killed_compaction_is_ended_by_the_next(tmp_path: Path) -> None:
    """By whoever opens the journal and compacts any stream."""
    store = open_store(tmp_path)
    for number in range(1, 4):
        store.commit(appending("s", number))
    store.commit(appending("t", 1))
    protocol = compaction.compact("s", 3, (), ())
    request: Any = next(protocol)
    request = protocol.send(store.read(request.look))
    store.commit(request.decide)
    store.close()

    store = open_store(tmp_path)
    assert list(store.verify()) == []
    assert store.read(lambda view: view.droppings()) == ["s"]
    assert carry_out(store, compaction.compact("t", 4, (), ())) == 4
    assert store.read(lambda view: view.droppings()) == []
    assert store.read(lambda view: [view.frame(at).payload for at in range(1, 5)]) == [b""] * 4
    assert list(store.verify()) == []
    store.close()


def appending(stream: str, sequence: int) -> Callable[[Any], int]:
    """A decision that adds an operation."""
    return lambda txn: append(txn, stream, 1, sequence)


def carry_out(store: Store, protocol: Any) -> Any:
    """What a protocol returns."""
    request = next(protocol)
    try:
        while True:
            is_read = hasattr(request, "look")
            answer = store.read(request.look) if is_read else store.commit(request.decide).answer
            request = protocol.send(answer)
    except StopIteration as end:
        return end.value
