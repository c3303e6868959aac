"""`journal/_storage/verify.py`: what is found in a journal of which one row was changed, taken out, moved or added."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import lmdb
import pytest

from journal._core.keys import key_form
from journal._core.payloads import digest
from journal._storage import layout, verify
from journal._storage.verify import findings
from journal._storage.views import StoreView, encode
from journal.errors import CorruptRecordError
from journal.records import EffectEntry, Guarantee, Phase, StreamRow
from journal.values import Finding
from tests.unit.golden import JOURNAL_ID, ROWS
from tests.unit.support import START

GENESIS: Final = digest(JOURNAL_ID.encode())
GOLDEN: Final = {
    bytes.fromhex(key): bytes.fromhex(value) for key, value in json.loads(ROWS.read_text(encoding="utf-8")).items()
}
HEAD: Final = 33
DERIVED: Final = (layout.SEQUENCE, layout.IDENTITY, layout.STEP, layout.UNFINISHED, layout.SETTLED)


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lmdb.Environment]:
    """An environment with the golden rows; nothing in these tests is committed to it."""
    with lmdb.open(str(tmp_path_factory.mktemp("verify")), map_size=2**22, sync=False, lib_version=0) as opened:
        with opened.begin(write=True) as txn:
            for key, value in GOLDEN.items():
                txn.put(key, value)
        yield opened


@pytest.fixture
def txn(env: lmdb.Environment) -> Iterator[lmdb.Transaction]:
    """A write transaction that is dropped."""
    opened = env.begin(write=True)
    try:
        yield opened
    finally:
        opened.abort()


def found_in(txn: lmdb.Transaction) -> list[Finding]:
    """Everything that is wrong."""

    def read(look: Callable[[StoreView], Any]) -> Any:
        return look(StoreView(txn, GENESIS))

    return list(findings(read, GENESIS))


def seen(txn: lmdb.Transaction) -> set[tuple[str, int | None]]:
    """Tables and positions of everything that is wrong."""
    return {(finding.table, finding.position) for finding in found_in(txn)}


def problems(txn: lmdb.Transaction) -> str:
    """Everything that is said."""
    return "\n".join(finding.problem for finding in found_in(txn))


def name_of(key: bytes) -> str:
    """A row as a test id."""
    return f"{layout.TABLES[key[:1]]}-{key[1:9].hex()}"


def put_row(txn: lmdb.Transaction, key: bytes, content: bytes) -> None:
    """Put a row that agrees with its own check."""
    txn.put(key, layout.seal(key, content))


def rewritten(txn: lmdb.Transaction, position: int, head: bytes, payload: bytes = b"", *, chained: bool = True) -> None:
    """Put a record in the place of another, with a right checksum, and with its own right digest or the old one."""
    before = GENESIS if position == 1 else layout.unframe(position - 1, GOLDEN[layout.log_key(position - 1)]).digest
    old = layout.unframe(position, GOLDEN[layout.log_key(position)]).digest
    record_digest = layout.chain(before, position, head) if chained else old
    txn.put(layout.log_key(position), layout.frame(position, record_digest, head, payload))


def test_sound_journal_has_no_findings(txn: lmdb.Transaction) -> None:
    """Nothing is wrong with the golden one."""
    assert found_in(txn) == []


def test_empty_journal_has_no_findings(txn: lmdb.Transaction) -> None:
    """Neither with one in which nothing happened."""
    for key in GOLDEN:
        if key != layout.HEADER_KEY:
            txn.delete(key)

    assert found_in(txn) == []


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_pages_make_no_difference(txn: lmdb.Transaction, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """The same is found however the log and the rows are cut into transactions."""
    txn.delete(layout.log_key(7))
    txn.delete(layout.form_key(layout.SETTLED, key_form("asked")))
    whole = found_in(txn)
    monkeypatch.setattr(verify, "PAGE_RECORDS", limit)

    assert found_in(txn) == whole != []


@pytest.mark.parametrize("key", GOLDEN, ids=name_of)
def test_every_changed_byte_is_found(txn: lmdb.Transaction, key: bytes) -> None:
    """In whatever row, and a log record is told with its position."""
    value = GOLDEN[key]

    for place in {0, 5, 10, 26, len(value) // 2, len(value) - 1} & set(range(len(value))):
        txn.put(key, value[:place] + bytes([value[place] ^ 0x04]) + value[place + 1 :])
        expected = ("log", layout.position_of(key)) if key[:1] == layout.LOG else (layout.TABLES[key[:1]], None)
        assert expected in seen(txn), place
    txn.put(key, value)


@pytest.mark.parametrize("position", range(1, HEAD))
def test_missing_record_is_found(txn: lmdb.Transaction, position: int) -> None:
    """With its position."""
    txn.delete(layout.log_key(position))

    assert ("log", position) in seen(txn)
    assert f"records {position} to {position} are missing" in problems(txn)


def test_several_missing_records_are_found_as_one_gap(txn: lmdb.Transaction) -> None:
    """With the first and the last of them."""
    for position in (5, 6, 7):
        txn.delete(layout.log_key(position))

    assert Finding("log", 5, "records 5 to 7 are missing") in found_in(txn)


@pytest.mark.parametrize("count", [1, 2, HEAD])
def test_records_missing_at_the_end_are_found(txn: lmdb.Transaction, count: int) -> None:
    """The log itself cannot tell; the index rows of what was there can."""
    for position in range(HEAD - count + 1, HEAD + 1):
        txn.delete(layout.log_key(position))

    assert found_in(txn) != []


@pytest.mark.parametrize("key", [key for key in GOLDEN if key[:1] in DERIVED], ids=name_of)
def test_missing_index_row_is_found(txn: lmdb.Transaction, key: bytes) -> None:
    """With its table, and the position of the record that it should name."""
    txn.delete(key)

    tables = {table for table, _ in seen(txn)}
    assert layout.TABLES[key[:1]] in tables


@pytest.mark.parametrize("key", [key for key in GOLDEN if key[:1] in DERIVED], ids=name_of)
def test_index_row_that_names_another_record_is_found(txn: lmdb.Transaction, key: bytes) -> None:
    """Though it agrees with its own check."""
    content = layout.unseal(key, GOLDEN[key])
    put_row(txn, key, layout.pack_u64(layout.unpack_u64(content[:8]) % HEAD + 1) + content[8:])

    assert layout.TABLES[key[:1]] in {table for table, _ in seen(txn)}


@pytest.mark.parametrize("key", [key for key in GOLDEN if key[:1] in (layout.UNFINISHED, layout.SETTLED)], ids=name_of)
def test_index_row_in_another_phase_is_found(txn: lmdb.Transaction, key: bytes) -> None:
    """Lists would give or leave out what is not so."""
    content = layout.unseal(key, GOLDEN[key])
    put_row(txn, key, content[:8] + bytes([content[8] % 6 + 1]))

    assert layout.TABLES[key[:1]] in {table for table, _ in seen(txn)}


@pytest.mark.parametrize(
    "key, content",
    [
        (layout.stream_prefix("orders") + layout.pack_u64(4), layout.pack_u64(2)),
        (layout.identity_key("orders", 1, "never"), layout.pack_u64(1)),
        (layout.STREAM + b"never", encode(StreamRow(1, 0))),
        (layout.form_key(layout.STEP, key_form("never")), layout.pack_u64(1)),
        (layout.form_key(layout.UNFINISHED, key_form("never")), layout.pack_u64(1) + b"\x01"),
        (layout.form_key(layout.UNFINISHED, key_form("asked")), layout.pack_u64(8) + b"\x01"),
        (layout.form_key(layout.SETTLED, key_form("open")), layout.pack_u64(33) + b"\x02"),
    ],
)
def test_index_row_that_no_record_brought_is_found(txn: lmdb.Transaction, key: bytes, content: bytes) -> None:
    """An effect with rows in both tables too."""
    put_row(txn, key, content)

    assert layout.TABLES[key[:1]] in {table for table, _ in seen(txn)}


def test_row_of_an_unknown_table_is_found(txn: lmdb.Transaction) -> None:
    """No record brings it."""
    put_row(txn, b"\x77key", b"content")

    assert found_in(txn) == [Finding("unknown", None, "a row with the prefix b'w'")]


@pytest.mark.parametrize("position", [1, 2, 5, 20])
def test_record_that_was_replaced_is_found(txn: lmdb.Transaction, position: int) -> None:
    """With a right checksum, by the chain: by its own digest, or by that of the record after."""
    head = encode(EffectEntry(Phase.CLEARED, key_form("forged"), START, 0, START, 1, Guarantee.AT_MOST_ONCE, 0))

    rewritten(txn, position, head, chained=False)
    assert Finding("log", position, "its digest does not follow from the record before") in found_in(txn)

    rewritten(txn, position, head)
    assert Finding("log", position + 1, "its digest does not follow from the record before") in found_in(txn)


def test_records_that_changed_places_are_found(txn: lmdb.Transaction) -> None:
    """Even with checksums that are right at their new places."""
    one, two = (layout.unframe(position, GOLDEN[layout.log_key(position)]) for position in (2, 3))
    txn.put(layout.log_key(2), layout.frame(2, two.digest, two.head, two.payload))
    txn.put(layout.log_key(3), layout.frame(3, one.digest, one.head, one.payload))

    assert {("log", 2), ("log", 3)} <= seen(txn)


def test_payload_that_was_replaced_is_found(txn: lmdb.Transaction) -> None:
    """The head holds its hash, and the chain the head."""
    frame = layout.unframe(1, GOLDEN[layout.log_key(1)])
    txn.put(layout.log_key(1), layout.frame(1, frame.digest, frame.head, frame.payload.replace(b"7", b"8")))

    assert found_in(txn) == [Finding("log", 1, "its payload is not the one that was committed")]


def test_record_that_cannot_be_decoded_is_found(txn: lmdb.Transaction) -> None:
    """With a right checksum and digest."""
    rewritten(txn, 4, b"\x93\x09\x01\x02")

    assert ("log", 4) in seen(txn)
    assert ("log", 6) not in seen(txn)


def test_damaged_record_does_not_hide_the_next(txn: lmdb.Transaction) -> None:
    """The chain goes on from the digest that the frame still says."""
    value = GOLDEN[layout.log_key(4)]
    txn.put(layout.log_key(4), value[:-1] + bytes([value[-1] ^ 1]))

    assert ("log", 4) in seen(txn)
    assert ("log", 5) not in seen(txn)


def test_event_that_links_to_another_effect_is_found(txn: lmdb.Transaction) -> None:
    """Its history would be a stranger's."""
    forged = EffectEntry(Phase.ACCEPTED, key_form("charge-7"), START, 5, START, 1, Guarantee.IDEMPOTENT, 0, proof=b"1")
    rewritten(txn, 7, encode(forged))

    assert "its previous event at 5 is of another effect" in problems(txn)


def test_damaged_last_record_is_found(txn: lmdb.Transaction) -> None:
    """Though nobody can tell the head by it."""
    key = layout.log_key(HEAD)
    txn.put(key, GOLDEN[key][:-1] + b"\x00")

    assert ("log", HEAD) in seen(txn)


class Unreadable:
    """A reader for whom one kind of look finds a page that cannot be read."""

    def __init__(self, txn: lmdb.Transaction, failing: str) -> None:
        self._view = StoreView(txn, GENESIS)
        self._failing = failing

    def __call__(self, look: Any) -> Any:
        if getattr(getattr(look, "func", look), "__name__", "") == self._failing:
            raise CorruptRecordError(None, "a page of the data file: gone")
        return look(self._view)


@pytest.mark.parametrize("failing", ["page_of_log", "page_of_rows", "<lambda>"])
def test_page_that_cannot_be_read_is_a_finding(txn: lmdb.Transaction, failing: str) -> None:
    """Audit reports damage as a value, and goes on where it can."""
    found = list(findings(Unreadable(txn, failing), GENESIS))

    assert [finding.problem for finding in found if "a page of the data file: gone" in finding.problem]


def test_commits_during_the_check_are_no_findings(env: lmdb.Environment) -> None:
    """What came after the head was read is left to the next check: its record and its rows."""
    calls = 0

    def read(look: Callable[[StoreView], Any]) -> Any:
        nonlocal calls
        calls += 1
        with env.begin(write=True) as txn:
            if calls == 1:
                txn.delete(layout.log_key(HEAD))
                txn.delete(layout.form_key(layout.UNFINISHED, key_form("open")))
            answer = look(StoreView(txn, GENESIS))
            txn.abort()
        return answer

    assert list(findings(read, GENESIS)) == []


def test_log_that_vanishes_during_the_check_is_found(env: lmdb.Environment) -> None:
    """Somebody emptied the file after its head was read."""
    calls = 0

    def read(look: Callable[[StoreView], Any]) -> Any:
        nonlocal calls
        calls += 1
        with env.begin(write=True) as txn:
            if calls > 1:
                for key in GOLDEN:
                    txn.delete(key)
            answer = look(StoreView(txn, GENESIS))
            txn.abort()
        return answer

    assert list(findings(read, GENESIS)) == [Finding("log", 1, f"records 1 to {HEAD} are missing")]


def test_row_that_moves_on_during_the_check_is_no_finding(env: lmdb.Environment) -> None:
    """Between two transactions an effect may get another event: what a page said of it is not held against it."""
    key = layout.form_key(layout.UNFINISHED, key_form("open"))

    def read(look: Any) -> Any:
        answer = look(StoreView(transactions[-1], GENESIS))
        if getattr(getattr(look, "func", None), "__name__", "") == "page_of_rows":
            return [
                (row, layout.seal(key, layout.pack_u64(1) + b"\x01") if row == key else value) for row, value in answer
            ]
        return answer

    with env.begin(write=True) as txn:
        transactions = [txn]
        found = list(findings(read, GENESIS))
        txn.abort()

    assert found == []
