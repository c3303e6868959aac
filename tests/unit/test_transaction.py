"""`journal/_storage/transaction.py`: what a record puts into the log and the indexes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import lmdb
import msgspec
import pytest

from journal._core.keys import key_form
from journal._core.payloads import digest
from journal._storage import layout
from journal._storage.owners import Owner
from journal._storage.transaction import StoreTransaction, index_rows
from journal._storage.views import encode
from journal.records import (
    CursorRow,
    EffectEntry,
    Guarantee,
    LogRecord,
    OperationRecord,
    OwnerRow,
    Phase,
    StepRecord,
    StreamRow,
)
from tests.unit.support import OTHER, OWN, START

GENESIS: Final = digest(b"a journal")
ROW: Final = OwnerRow(1, 2, "boot", 3, 4)
FORM: Final = key_form("k")
UNFINISHED: Final = (Phase.INTENT, Phase.RELEASED, Phase.FAILED)


class Owned:
    """An owner as the transaction needs it, which sees one other owner alive."""

    id = OWN
    row = ROW

    def sees_alive(self, other: int, row: OwnerRow | None) -> bool:
        return other == OTHER

    def can_forget(self, other: int, row: OwnerRow) -> bool:
        assert row == ROW
        return other != OTHER


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lmdb.Environment]:
    """An empty environment, to which nothing is committed."""
    with lmdb.open(str(tmp_path_factory.mktemp("rows")), map_size=2**23, sync=False, lib_version=0) as opened:
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
    return StoreTransaction(raw, GENESIS, owned(), has_owner_row=False)


def frame(raw: lmdb.Transaction, position: int) -> layout.Frame:
    """A log record's parts."""
    value: Any = raw.get(layout.log_key(position))
    return layout.unframe(position, value)


def owned() -> Any:
    """The owner of these transactions."""
    return Owned()


def rows(raw: lmdb.Transaction) -> dict[bytes, bytes]:
    """Every row but those of the log, unsealed."""
    return {
        bytes(key): layout.unseal(bytes(key), bytes(value))
        for key, value in raw.cursor()
        if bytes(key[:1]) != layout.LOG
    }


def operation(sequence: int = 1, *, stream: str = "s", epoch: int = 1, op_id: str = "1") -> OperationRecord:
    """An operation with a payload of two bytes."""
    return OperationRecord(stream, epoch, sequence, op_id, "", START, digest(b"{}"), 2)


def event(phase: Phase, previous: int = 0, key: str = "k") -> EffectEntry:
    """An event of an effect."""
    return EffectEntry(phase, key_form(key), START, previous, START, 1, Guarantee.AT_MOST_ONCE, OWN)


@pytest.mark.parametrize(
    "record, payload", [(operation(), b"{}"), (event(Phase.INTENT), b""), (StepRecord(FORM, 1, b"1"), b"")]
)
def test_record_is_put_at_the_end_of_the_chain(
    raw: lmdb.Transaction, txn: StoreTransaction, record: LogRecord, payload: bytes
) -> None:
    """At the next position, with the digest that follows from the one before."""
    first = txn.append(record, payload)
    second = txn.append(StepRecord(key_form("later"), 1, b"2"))

    assert (first, second) == (1, 2)
    one, two = frame(raw, 1), frame(raw, 2)
    assert (one.head, one.payload) == (encode(record), payload)
    assert one.digest == layout.chain(GENESIS, 1, one.head)
    assert two.digest == layout.chain(one.digest, 2, two.head)
    assert txn.last == (2, two.digest)
    assert [position for position, _ in txn.appended] == [1, 2]
    assert txn.appended[0][1] is record


def test_next_transaction_goes_on_from_the_last_record(raw: lmdb.Transaction, txn: StoreTransaction) -> None:
    """It reads the tail itself, whatever was written before by whomever."""
    txn.append(operation(), b"{}")

    again = StoreTransaction(raw, GENESIS, None, has_owner_row=True)

    assert again.last == txn.last
    assert again.append(operation(2, op_id="2"), b"{}") == 2
    assert (again.head(), again.sequence("s")) == (2, 2)


def test_operation_brings_its_rows(raw: lmdb.Transaction, txn: StoreTransaction) -> None:
    """The stream with its first operation, then one row by position and one by identity for each."""
    txn.append(operation(), b"{}")
    txn.append(operation(2, op_id="2"), b"{}")

    assert rows(raw) == {
        layout.STREAM + b"s": encode(StreamRow(1, 0)),
        layout.stream_prefix("s") + layout.pack_u64(1): layout.pack_u64(1),
        layout.stream_prefix("s") + layout.pack_u64(2): layout.pack_u64(2),
        layout.identity_key("s", 1, "1"): layout.pack_u64(1),
        layout.identity_key("s", 1, "2"): layout.pack_u64(2),
    }


def test_first_operation_of_a_later_epoch_leaves_the_streams_row(raw: lmdb.Transaction, txn: StoreTransaction) -> None:
    """That row was written by the reset."""
    txn.append(operation(epoch=2), b"{}")

    assert layout.STREAM + b"s" not in rows(raw)


@pytest.mark.parametrize("phase", Phase)
def test_effect_has_one_row_in_the_table_of_its_phase(
    raw: lmdb.Transaction, txn: StoreTransaction, phase: Phase
) -> None:
    """What is unfinished in one, the rest in the other; the row says where and in which phase."""
    txn.append(event(phase))

    table = layout.UNFINISHED if phase in UNFINISHED else layout.SETTLED
    found = {key: content for key, content in rows(raw).items() if key[:1] != layout.OWNER}
    assert found == {table + FORM: layout.pack_u64(1) + bytes([phase])}


def test_misses_and_new_rows_do_not_disturb_each_other(txn: StoreTransaction) -> None:
    """Over many pages, and in any order of keys: what was looked for before it was there is found afterwards."""
    numbers = [number * 7_919 % 3_001 for number in range(3_000)]

    for number in numbers:
        form = key_form(f"key-{number:04}")
        assert txn.effect(form) is None
        position = txn.append(event(Phase.INTENT, key=f"key-{number:04}"))
        if number % 3:
            txn.append(event(Phase.ACCEPTED, position, key=f"key-{number:04}"))

    for number in numbers:
        state = txn.effect(key_form(f"key-{number:04}"))
        assert state is not None
        assert state.entry.phase is (Phase.ACCEPTED if number % 3 else Phase.INTENT)
        assert txn.effect(key_form(f"key-{number:04}-")) is None


@pytest.mark.parametrize("before", Phase)
@pytest.mark.parametrize("after", Phase)
@pytest.mark.parametrize("key", ["k", "k" * 600])
def test_effect_that_moves_on_leaves_no_row_behind(
    raw: lmdb.Transaction, txn: StoreTransaction, before: Phase, after: Phase, key: str
) -> None:
    """Whatever table it was in."""
    txn.append(event(before, key=key))
    txn.append(event(after, 1, key=key))

    table = layout.UNFINISHED if after in UNFINISHED else layout.SETTLED
    found = {key: content for key, content in rows(raw).items() if key[:1] != layout.OWNER}
    assert found == {layout.form_key(table, key_form(key)): layout.pack_u64(2) + bytes([after])}
    state = txn.effect(key_form(key))
    assert state is not None
    assert (state.position, state.entry.phase) == (2, after)


def test_step_brings_its_row(raw: lmdb.Transaction, txn: StoreTransaction) -> None:
    """By its form."""
    txn.append(StepRecord(FORM, START, b"1"))

    assert rows(raw) == {layout.STEP + FORM: layout.pack_u64(1)}


def test_owner_is_written_with_its_first_intent(raw: lmdb.Transaction, txn: StoreTransaction) -> None:
    """So that others can see whether it lives; once, and only where there is an intent."""
    txn.append(event(Phase.FAILED))
    assert layout.OWNER + layout.pack_u64(OWN) not in rows(raw)
    txn.append(event(Phase.INTENT, 1))
    txn.append(event(Phase.INTENT, key="other"))

    assert txn.has_owner_row
    assert txn.owner(OWN) == ROW
    assert rows(raw)[layout.OWNER + layout.pack_u64(OWN)] == encode(ROW)


@pytest.mark.parametrize("owner, has_owner_row", [(None, False), (owned(), True)])
def test_owner_that_is_known_is_not_written_again(raw: lmdb.Transaction, owner: Any, *, has_owner_row: bool) -> None:
    """A page less in each commit."""
    txn = StoreTransaction(raw, GENESIS, owner, has_owner_row=has_owner_row)

    txn.append(event(Phase.INTENT))

    assert layout.OWNER + layout.pack_u64(OWN) not in rows(raw)


def owner_key(owner: int) -> bytes:
    """The key of an owner's row."""
    return layout.OWNER + layout.pack_u64(owner)


def put_owner(raw: lmdb.Transaction, owner: int) -> None:
    """Put the row of another owner."""
    raw.put(owner_key(owner), layout.seal(owner_key(owner), encode(ROW)))


def test_dead_owners_are_forgotten_with_a_first_intent(raw: lmdb.Transaction, txn: StoreTransaction) -> None:
    """Their rows would pile up for ever; those of the living stay."""
    for owner in (1, OTHER, 2**60):
        put_owner(raw, owner)

    txn.append(event(Phase.INTENT))

    assert [key for key in rows(raw) if key[:1] == layout.OWNER] == [owner_key(OWN), owner_key(OTHER)]


def test_damaged_row_of_another_owner_does_not_refuse_an_intent(raw: lmdb.Transaction, txn: StoreTransaction) -> None:
    """It blocks what that owner left, and no other effect."""
    raw.put(owner_key(OTHER), b"damaged")

    txn.append(event(Phase.INTENT))

    assert txn.effect(FORM) is not None


def test_row_of_an_owner_whose_lock_outlived_it_is_kept(raw: lmdb.Transaction, tmp_path: Path) -> None:
    """A child inherited the lock: without the row, which says that its process is gone, it would seem to live again."""
    descriptors = [os.open(tmp_path / "owners.lock", os.O_RDWR | os.O_CREAT, 0o600) for _ in range(2)]
    try:
        left, own = Owner(descriptors[0]), Owner(descriptors[1])
        gone = msgspec.structs.replace(left.row, started=left.row.started - 1)
        raw.put(owner_key(left.id), layout.seal(owner_key(left.id), encode(gone)))
        txn = StoreTransaction(raw, GENESIS, own, has_owner_row=False)
        assert not own.sees_alive(left.id, txn.owner(left.id))

        txn.append(event(Phase.INTENT))

        assert not own.sees_alive(left.id, txn.owner(left.id))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def test_cursor_is_no_record(raw: lmdb.Transaction, txn: StoreTransaction) -> None:
    """A change of the file, and none of the log."""
    txn.save_cursor("reader", CursorRow(0, None, START))

    assert txn.has_changes
    assert (txn.head(), txn.appended) == (0, [])
    assert txn.cursor("reader") == CursorRow(0, None, START)


def test_transaction_that_only_looks_has_no_changes(txn: StoreTransaction) -> None:
    """It need not be committed."""
    txn.effect(FORM)
    txn.operations(None, 0, 10)

    assert not txn.has_changes


def test_record_that_lmdb_does_not_append_is_damage(raw: lmdb.Transaction, txn: StoreTransaction) -> None:
    """The return value of every put is looked at: a key behind the tail that was there unseen."""
    raw.put(layout.log_key(7), b"behind")

    with pytest.raises(lmdb.CorruptedError, match="would not put a row of log in its place"):
        txn.append(StepRecord(FORM, START, b"1"))


@pytest.mark.parametrize("record", [operation(), event(Phase.INTENT), event(Phase.ACCEPTED), StepRecord(FORM, 1, b"1")])
def test_rows_of_a_record_are_said_once(raw: lmdb.Transaction, txn: StoreTransaction, record: LogRecord) -> None:
    """What `verify` compares the file with is what is written."""
    txn.append(record, b"{}")

    assert set(index_rows(1, record)) <= set(rows(raw).items())
