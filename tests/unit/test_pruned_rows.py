"""What pruning leaves in the file: rows that are right both ways, a chain that holds, reads that count on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import lmdb
import msgspec
import pytest

import journal
from journal import Accepted, EffectPrunedError, Journal
from journal._core.keys import key_form
from journal._core.ledger import Tombstone
from journal._core.payloads import digest
from journal._core.requests import OperationPage
from journal._storage import layout
from journal._storage.transaction import StoreTransaction
from journal._storage.verify import findings
from journal._storage.views import StoreView, decode_record, encode
from journal.errors import CorruptRecordError
from journal.records import Guarantee, LogRecord, PrunedRecord
from journal.values import Finding
from tests.unit.support import START, unused

LATER: Final = START + 1
LONG: Final = "k" * 600


def accept(j: Journal, key: Any) -> None:
    """Leave an accepted effect, of two events."""
    assert j.effect(key, run=lambda: "m", reconcile=unused) == Accepted("m", "run")


@pytest.fixture
def j(tmp_path: Path) -> Iterator[Journal]:
    """An open journal: operations at 1, 4, 9 and 12, effects between them."""
    with journal.open(tmp_path / "journal", clock=lambda: START) as opened:
        opened.append("s", 0, op_id="0")
        accept(opened, "a")
        opened.append("t", 1, op_id="1")
        accept(opened, "b")
        accept(opened, LONG)
        opened.append("s", 2, op_id="2")
        accept(opened, ("c", 1))
        opened.append("s", 3, op_id="3")
        accept(opened, "last")
        yield opened


HEAD: Final = 14
OPERATIONS: Final = [(1, 0), (4, 1), (9, 2), (12, 3)]


@pytest.fixture
def txn(j: Journal) -> Iterator[lmdb.Transaction]:
    """A write transaction over the journal with everything pruned, which is dropped."""
    assert j.prune_effects(settled_before=LATER) == 5
    j.close()
    with lmdb.open(j.path, map_size=2**24, sync=False, lib_version=0) as env:
        opened = env.begin(write=True)
        try:
            yield opened
        finally:
            opened.abort()


def log_of(j: Journal) -> dict[int, LogRecord]:
    """The records of the log."""
    page = j._store.read(lambda view: view.page_of_log(0, 1_000))
    return {position: decode_record(layout.head_of(position, value)) for position, value in page}


def view_of(txn: lmdb.Transaction, genesis: bytes = bytes(16)) -> StoreView:
    """The journal as the transaction sees it."""
    return StoreView(txn, genesis)


def found_in(txn: lmdb.Transaction) -> list[Finding]:
    """Everything that is wrong."""
    header = layout.unseal(layout.HEADER_KEY, bytes(txn.get(layout.HEADER_KEY) or b""))
    genesis = digest(msgspec.msgpack.decode(header)[1].encode())
    return list(findings(lambda look: look(StoreView(txn, genesis)), genesis))


def rewrite(txn: lmdb.Transaction, position: int, record: LogRecord) -> None:
    """Put a record in the place of another, with a right check and the old digest."""
    value: Any = txn.get(layout.log_key(position))
    txn.put(layout.log_key(position), layout.frame(position, layout.raw_digest(value), encode(record), b""))


def tombstone(first: int, key: Any, guarantee: Guarantee = Guarantee.AT_MOST_ONCE) -> PrunedRecord:
    """What is left of a key."""
    return PrunedRecord(first, START, digest(key_form(key)), guarantee)


def flip(txn: lmdb.Transaction, key: bytes) -> None:
    """Change a byte of a row's value."""
    value: Any = txn.get(key)
    txn.put(key, value[:-1] + bytes([value[-1] ^ 1]))


# The rows


def test_each_pruned_effect_is_one_row_of_the_log_and_one_of_its_index(j: Journal) -> None:
    """The earlier events are taken in by the one after them; the log's last record stays alone."""
    operations = {position: record for position, record in log_of(j).items() if position in dict(OPERATIONS)}
    assert j.prune_effects(settled_before=LATER) == 5

    assert log_of(j) == operations | {
        3: tombstone(2, "a"),
        6: tombstone(5, "b"),
        8: tombstone(7, LONG),
        11: tombstone(10, ("c", 1)),
        13: PrunedRecord(13, START),
        14: tombstone(14, "last"),
    }
    rows = j._store.read(lambda view: list(view.rows(layout.PRUNED)))
    assert sorted(layout.unpack_u64(content) for _, content in rows) == [3, 6, 8, 11, 14]
    assert j._store.read(lambda view: list(view.rows(layout.SETTLED))) == []
    stats = j.stats()
    assert (stats.effects, stats.pruned, stats.head) == (0, 5, HEAD)
    assert list(j.verify()) == []


def test_cleared_keys_leave_no_row_but_their_place(j: Journal) -> None:
    """What comes after them takes them in."""
    for key in ("a", "b"):
        j.clear_effect(key, reason="r")
    accept(j, "after")

    assert j.prune_effects(settled_before=LATER) == 4

    assert log_of(j)[14] == tombstone(13, "last")
    assert log_of(j)[17] == PrunedRecord(15, START)
    assert j.stats().pruned == 4
    assert list(j.verify()) == []
    accept(j, "a")


def test_chain_goes_on_from_a_pruned_record(j: Journal) -> None:
    """Whether it was the last when it was pruned, or is pruned under what came after."""
    j.prune_effects(settled_before=LATER)
    accept(j, "next")
    assert list(j.verify()) == []
    j.prune_effects(settled_before=LATER)
    j.append("s", 4, op_id="4")

    assert list(j.verify()) == []
    assert log_of(j)[14] == tombstone(14, "last")


def test_cleared_tombstone_names_nothing_in_the_log(j: Journal) -> None:
    """What the log says and the index rows stay one; its place is taken in by the next that names something."""
    j.prune_effects(settled_before=LATER)
    j.clear_effect("b", reason="r")
    j.clear_effect("last", reason="r")

    assert log_of(j)[8] == tombstone(5, LONG)
    assert 6 not in log_of(j)
    assert log_of(j)[14] == PrunedRecord(13, START)
    assert j.stats().pruned == 3
    assert list(j.verify()) == []
    accept(j, "b")
    assert [event.phase for event in j.history("b")] == ["cleared", "intent", "accepted"]
    assert list(j.verify()) == []
    assert j.prune_effects(settled_before=LATER) == 1
    with pytest.raises(EffectPrunedError):
        j.record("b")
    assert list(j.verify()) == []


def test_prune_and_call_in_one_commit(j: Journal) -> None:
    """Whether anything is pruned is asked once for a shared commit, and again after each pruning in it."""
    seen: list[Any] = []

    def decide(txn: Any) -> None:
        seen.append(txn.pruned(key_form("a")))
        state = txn.effect(key_form("a"))
        assert txn.prune(state) == 2
        found = txn.pruned(key_form("a"))
        seen.append(found)
        txn.forget(found)
        seen.append(txn.pruned(key_form("a")))

    j._store.commit(decide)

    assert seen == [None, Tombstone(3, tombstone(2, "a")), None]


def test_key_with_a_damaged_event_is_not_pruned(j: Journal) -> None:
    """It stays as it is, for whoever repairs it; the transaction is dropped."""
    j.close()
    with lmdb.open(j.path, map_size=2**24, lib_version=0) as env, env.begin(write=True) as txn:
        flip(txn, layout.log_key(5))
    with journal.open(j.path, clock=lambda: START) as again:
        with pytest.raises(CorruptRecordError) as caught:
            again.prune_effects(settled_before=LATER)
        assert (caught.value.position, caught.value.key) == (5, "b")
        record = again.record("b")
        assert record is not None
        assert record.phase == "accepted"
        assert again.prune_effects(settled_before=LATER, keep=lambda record: record.key == "b") == 4


def test_damaged_neighbour_is_left_alone(j: Journal) -> None:
    """Nothing is taken in that cannot be read."""
    j.clear_effect("a", reason="r")
    j.clear_effect("b", reason="r")
    j.append("s", 4, op_id="4")
    assert j.prune_effects(settled_before=LATER, keep=lambda _: True) == 0
    j.close()
    with lmdb.open(j.path, map_size=2**24, lib_version=0) as env, env.begin(write=True) as txn:
        assert txn.get(layout.log_key(6)) is not None
        flip(txn, layout.log_key(6))
    with journal.open(j.path, clock=lambda: START) as again:
        assert again.prune_effects(settled_before=LATER) == 3
        assert log_of_sound(again)[8] == tombstone(7, LONG)
        assert ("log", 6) in {(finding.table, finding.position) for finding in again.verify()}


def log_of_sound(j: Journal) -> dict[int, LogRecord]:
    """The records of the log that can be read."""
    found = {}
    for position, value in j._store.read(lambda view: view.page_of_log(0, 1_000)):
        try:
            found[position] = decode_record(layout.head_of(position, value))
        except layout.DamagedRowError:
            continue
    return found


def test_row_that_lmdb_does_not_take_is_damage(j: Journal) -> None:
    """As with any other row."""
    state: Any = j._store.read(lambda view: view.effect(key_form("a")))

    class Refusing:
        def __init__(self, txn: lmdb.Transaction) -> None:
            self._txn = txn

        def __getattr__(self, name: str) -> Any:
            return getattr(self._txn, name)

        def put(self, key: bytes, value: bytes, **options: Any) -> bool:
            return key[:1] != layout.LOG and self._txn.put(key, value, **options)

    j.close()
    with lmdb.open(j.path, map_size=2**24, lib_version=0) as env:
        raw = env.begin(write=True)
        wrapped: Any = Refusing(raw)
        with pytest.raises(lmdb.CorruptedError):
            StoreTransaction(wrapped, bytes(16), None, has_owner_row=True).prune(state)
        raw.abort()


# Reading over it


def test_operations_are_read_from_every_cursor(j: Journal) -> None:
    """From inside of what a record covers too, in pages of any size."""
    j.prune_effects(settled_before=LATER)

    for after in range(HEAD + 1):
        for limit in (1, 2, 100):
            found = []
            page = OperationPage([], after, ended=False)
            while not page.ended:
                page = j._store.read(partial(StoreView.operations, stream=None, after=page.through, limit=limit))
                found += [stored.position for stored in page.operations]
            assert found == [position for position, _ in OPERATIONS if position > after]
            assert page.through == HEAD


@pytest.mark.parametrize("position", [position for position, _ in OPERATIONS])
def test_operation_that_is_missing_is_found_by_its_gap(txn: lmdb.Transaction, position: int) -> None:
    """A record that stands for others stands for no more than it says."""
    txn.delete(layout.log_key(position))

    with pytest.raises(CorruptRecordError, match="missing from the log") as caught:
        view_of(txn).operations(None, 0, 100)

    assert caught.value.position == position


@pytest.mark.parametrize("position", [3, 6, 8, 11, 13, 14])
def test_damaged_pruned_record_blocks_no_reader(txn: lmdb.Transaction, position: int) -> None:
    """Of what it covered nothing is an operation, as the indexes know."""
    flip(txn, layout.log_key(position))

    page = view_of(txn).operations(None, 0, 100)

    assert [stored.position for stored in page.operations] == [1, 4, 9, 12]


def test_operation_missing_before_a_damaged_record_is_found(txn: lmdb.Transaction) -> None:
    """The index says that one was there."""
    txn.delete(layout.log_key(4))
    flip(txn, layout.log_key(6))

    with pytest.raises(CorruptRecordError, match="missing from the log") as caught:
        view_of(txn).operations(None, 0, 100)

    assert caught.value.position == 4


def test_last_record_is_believed_in_its_place_though_damaged(txn: lmdb.Transaction) -> None:
    """The one before stands just before it."""
    flip(txn, layout.log_key(HEAD))

    assert view_of(txn).tail()[0] == HEAD


@pytest.mark.parametrize(
    "key, record",
    [("a", PrunedRecord(2, START)), ("a", tombstone(2, "b")), ("b", None)],
)
def test_tombstone_that_is_not_in_the_log_is_damage(
    txn: lmdb.Transaction, key: str, record: PrunedRecord | None
) -> None:
    """And no evidence for anything."""
    if record is None:
        txn.delete(layout.log_key(6))
    else:
        rewrite(txn, 3, record)

    with pytest.raises(CorruptRecordError) as caught:
        view_of(txn).pruned(key_form(key))

    assert caught.value.key == key


def test_damaged_tombstone_refuses_its_key(j: Journal) -> None:
    """It is never taken for a key of which nothing is known."""
    j.prune_effects(settled_before=LATER)
    j.close()
    with lmdb.open(j.path, map_size=2**24, lib_version=0) as env, env.begin(write=True) as txn:
        flip(txn, layout.PRUNED + digest(key_form("a")))
        flip(txn, layout.log_key(6))
    with journal.open(j.path, clock=lambda: START) as again:
        for key in ("a", "b"):
            with pytest.raises(CorruptRecordError):
                again.effect(key, run=unused, reconcile=unused)
            with pytest.raises(CorruptRecordError):
                again.record(key)


@pytest.mark.parametrize("place", range(17))
def test_changed_byte_in_the_key_of_a_tombstone_is_no_absence(j: Journal, place: int) -> None:
    """The row beside the place is looked at, also where it is the only one."""
    j.prune_effects(settled_before=LATER, keep=lambda record: record.key != "a")
    j.close()
    key = layout.PRUNED + digest(key_form("a"))
    changed = key[:place] + bytes([key[place] ^ 1]) + key[place + 1 :]
    data = Path(j.path) / "data.mdb"
    content = data.read_bytes()
    assert content.count(key)
    data.write_bytes(content.replace(key, changed))
    with journal.open(j.path, clock=lambda: START) as again:
        with pytest.raises(CorruptRecordError):
            again.effect("a", run=unused, reconcile=unused)
        with pytest.raises(CorruptRecordError):
            again.record("a")


# Verify


@pytest.mark.parametrize("position", [3, 6, 8, 11, 13, 14])
def test_missing_pruned_record_is_found(txn: lmdb.Transaction, position: int) -> None:
    """With the first position that it covered."""
    txn.delete(layout.log_key(position))

    first = {3: 2, 6: 5, 8: 7, 11: 10}.get(position, position)
    assert any(finding.table in ("log", "pruned") for finding in found_in(txn))
    if position < HEAD:
        assert Finding("log", first, f"records {first} to {position} are missing") in found_in(txn)


@pytest.mark.parametrize("position", [1, 4, 9, 12])
def test_missing_record_beside_pruned_ones_is_found(txn: lmdb.Transaction, position: int) -> None:
    """With its position."""
    txn.delete(layout.log_key(position))

    assert Finding("log", position, f"records {position} to {position} are missing") in found_in(txn)


@pytest.mark.parametrize("position", [3, 6, 13, 14])
def test_damaged_pruned_record_is_found(txn: lmdb.Transaction, position: int) -> None:
    """With its position."""
    flip(txn, layout.log_key(position))

    assert Finding("log", position, "its checksum is wrong") in found_in(txn)


def test_cover_that_is_too_short_is_found(txn: lmdb.Transaction) -> None:
    """The rest is a gap."""
    rewrite(txn, 6, tombstone(6, "b"))

    assert found_in(txn) == [Finding("log", 5, "records 5 to 5 are missing")]


@pytest.mark.parametrize("first", [4, 1, 0, -5])
def test_cover_of_what_is_there_is_found(txn: lmdb.Transaction, first: int) -> None:
    """No position has two records."""
    rewrite(txn, 6, tombstone(first, "b"))

    assert found_in(txn) == [Finding("log", 6, f"it stands for records from {first} on, of which others are there")]


@pytest.mark.parametrize(
    "record", [PrunedRecord(5, START, b"k" * 16), PrunedRecord(5, START, None, Guarantee.IDEMPOTENT), tombstone(7, "b")]
)
def test_pruned_record_that_cannot_be_is_found(txn: lmdb.Transaction, record: PrunedRecord) -> None:
    """A key without a guarantee, the reverse, and one that begins after its own place."""
    rewrite(txn, 6, record)

    assert Finding("log", 6, "it says of pruned events what cannot be") in found_in(txn)


def test_missing_tombstone_is_found(txn: lmdb.Transaction) -> None:
    """Its key would be taken for new work."""
    txn.delete(layout.PRUNED + digest(key_form("a")))

    assert found_in(txn) == [Finding("pruned", 3, "its index row is missing")]


@pytest.mark.parametrize("position", [1, 6, 13, 77])
def test_tombstone_that_names_another_record_is_found(txn: lmdb.Transaction, position: int) -> None:
    """From both sides."""
    key = layout.PRUNED + digest(key_form("a"))
    txn.put(key, layout.seal(key, layout.pack_u64(position)))

    assert {(finding.table, finding.position) for finding in found_in(txn)} == {("pruned", 3), ("pruned", None)}


def test_tombstone_that_no_record_brought_is_found(txn: lmdb.Transaction) -> None:
    """It would refuse a key that was never called."""
    key = layout.PRUNED + digest(key_form("never"))
    txn.put(key, layout.seal(key, layout.pack_u64(3)))

    assert found_in(txn) == [Finding("pruned", None, "it is not what the record at position 3 says")]


def test_effect_on_record_and_pruned_is_found(j: Journal) -> None:
    """Nobody could tell which of both is so."""
    j.prune_effects(settled_before=LATER, keep=lambda record: record.key != "a")
    j.close()
    with lmdb.open(j.path, map_size=2**24, lib_version=0) as env:
        raw = env.begin(write=True)
        rewrite(raw, 3, tombstone(2, "b"))
        for key in (b"a", b"b"):
            raw.delete(layout.PRUNED + digest(key_form(key.decode())))
        row = layout.PRUNED + digest(key_form("b"))
        raw.put(row, layout.seal(row, layout.pack_u64(3)))

        assert Finding("settled", 6, "its effect is on record, and pruned as well") in found_in(raw)
        raw.abort()


def test_record_replaced_after_a_pruned_one_is_found(txn: lmdb.Transaction) -> None:
    """Its link begins with the digest that the pruned record keeps."""
    value: Any = txn.get(layout.log_key(4))
    frame = layout.unframe(4, value)
    txn.put(layout.log_key(4), layout.frame(4, bytes(16), frame.head, frame.payload))

    assert Finding("log", 4, "its digest does not follow from the record before") in found_in(txn)


def test_page_that_cannot_be_read_again_is_a_finding(txn: lmdb.Transaction) -> None:
    """While a cover is looked into."""
    rewrite(txn, 6, tombstone(4, "b"))

    def read(look: Any) -> Any:
        if getattr(look, "keywords", {}).get("limit") == 1:
            raise CorruptRecordError(None, "gone")
        return look(view_of(txn))

    assert Finding("log", 6, "gone") in list(findings(read, bytes(16)))


@pytest.mark.parametrize("acts", ["prune", "clear"])
def test_pruning_during_the_check_is_no_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, acts: str) -> None:
    """Between any two of its transactions, with pages of any size."""
    for limit in (1, 2, 3, 256):
        monkeypatch.setattr("journal._storage.verify.PAGE_RECORDS", limit)
        looks, moment = 1, 0
        while moment < looks:
            with journal.open(tmp_path / f"{limit}-{moment}", clock=lambda: START) as other:
                other.append("s", 0, op_id="0")
                for key in "abc":
                    accept(other, key)
                other.append("s", 1, op_id="1")
                accept(other, "d")
                reader = Interrupted(other, moment, _prune_or_clear(other, acts))

                found = list(findings(reader, other._store._genesis))

                assert found == [], (limit, moment)
                assert list(other.verify()) == []
            looks = reader.looks
            moment += 1
        assert looks > 10


class Interrupted:
    """A reader before whose n-th transaction something else happens."""

    def __init__(self, j: Journal, moment: int, act: Callable[[], Any]) -> None:
        self.looks = 0
        self._read = j._store.read
        self._moment = moment
        self._act = act

    def __call__(self, look: Callable[[StoreView], Any]) -> Any:
        if self.looks == self._moment:
            self._act()
        self.looks += 1
        return self._read(look)


def _prune_or_clear(j: Journal, acts: str) -> Callable[[], Any]:
    def clear() -> None:
        for key in "abd":
            j.clear_effect(key, reason="r")

    if acts == "clear":
        j.prune_effects(settled_before=LATER)
        return clear
    return partial(j.prune_effects, settled_before=LATER)


def test_what_is_pruned_counts_as_touched(j: Journal) -> None:
    """So that room for outcomes is kept on the disk by what a pruning really writes."""
    state = j._store.read(lambda view: view.effect(key_form("a")))

    def decide(txn: Any) -> tuple[int, int]:
        before = txn.touched
        return txn.prune(state), txn.touched - before

    events, touched = j._store.commit(decide).answer

    assert touched > events
