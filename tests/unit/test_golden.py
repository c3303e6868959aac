"""The bytes of each format: what is written is what journals in the field hold, and they are read as they were meant."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import journal
from journal import Accepted, Committed, EffectRecord, Intent, Uncertain
from journal._core.keys import key_form
from journal._core.ledger import Tombstone
from journal._core.payloads import digest
from journal._storage import layout
from journal._storage.migration import STEPS
from journal._storage.views import StoreView
from journal.records import (
    FORMAT_VERSION,
    CompactionRecord,
    DroppingRow,
    FloorRow,
    Guarantee,
    LogRecord,
    PrunedRecord,
    ResetRecord,
    RestoredRow,
    SnapshotRow,
    StreamRow,
)
from tests.unit import golden
from tests.unit.golden import BYTES, FORMATS, JOURNAL_ID, JOURNALS, LONG, OWNER, REQUEST, ROWS_OF, STRUCTS, Silent
from tests.unit.support import START, unused

GOLDEN_OF: Final[dict[int, dict[str, dict[str, str]]]] = {
    version: json.loads(file.read_text(encoding="utf-8")) for version, file in BYTES.items()
}
GOLDEN: Final = GOLDEN_OF[FORMAT_VERSION]
HEADER: Final = layout.HEADER_KEY.hex()
OWNER_TEXT: Final = f"{OWNER:016x}"


def struct_bytes(name: str) -> bytes:
    """The golden bytes of a struct."""
    return bytes.fromhex(GOLDEN["structs"][name])


@pytest.fixture(params=FORMATS)
def version(request: pytest.FixtureRequest) -> int:
    """Each format."""
    found: int = request.param
    return found


@pytest.fixture
def old(tmp_path: Path, version: int) -> Path:
    """A copy of the golden journal of a format."""
    directory = tmp_path / "old"
    directory.mkdir()
    shutil.copy(JOURNALS[version], directory)
    return directory


@pytest.fixture
def old_1(tmp_path: Path) -> Path:
    """A copy of the golden journal of format 1."""
    shutil.copy(JOURNALS[1], tmp_path)
    return tmp_path


@pytest.fixture
def old_2(tmp_path: Path) -> Path:
    """A copy of the golden journal of format 2."""
    shutil.copy(JOURNALS[2], tmp_path)
    return tmp_path


def golden_rows(version: int) -> dict[str, str]:
    """The rows of the golden journal of a format."""
    rows: dict[str, str] = json.loads(ROWS_OF[version].read_text(encoding="utf-8"))
    return rows


@pytest.mark.parametrize(
    "version, section, name",
    [
        (version, section, name)
        for version, sections in GOLDEN_OF.items()
        for section, named in sections.items()
        for name in named
    ],
)
def test_bytes_are_what_they_were(version: int, section: str, name: str) -> None:
    """Each struct, key, frame and seal is written today as journals in the field hold it."""
    assert golden.golden_bytes()[section][name] == GOLDEN_OF[version][section][name]


def test_everything_with_a_layout_is_golden() -> None:
    """A struct or key that is added gets its bytes here."""
    written = golden.golden_bytes()

    assert {section: list(named) for section, named in written.items()} == {
        section: list(named) for section, named in GOLDEN.items()
    }


@pytest.mark.parametrize("name", STRUCTS)
def test_golden_struct_is_read_as_it_was_meant(name: str) -> None:
    """Every field comes back, with its type."""
    struct = STRUCTS[name]

    assert msgspec.msgpack.decode(struct_bytes(name), type=type(struct)) == struct
    if isinstance(struct, LogRecord):
        assert msgspec.msgpack.decode(struct_bytes(name), type=LogRecord) == struct


@pytest.mark.parametrize("name", STRUCTS)
def test_struct_with_a_field_more_is_read(name: str) -> None:
    """What a later version of this format adds at the end does not hide what today's knows."""
    fields = msgspec.msgpack.decode(struct_bytes(name))

    longer = msgspec.msgpack.encode([*fields, "a field of tomorrow"])

    assert msgspec.msgpack.decode(longer, type=type(STRUCTS[name])) == STRUCTS[name]


def test_event_without_its_last_fields_is_read() -> None:
    """Fields with a default may be missing: as in a record of a version that did not have them."""
    fields = msgspec.msgpack.decode(struct_bytes("intent"))

    shorter = msgspec.msgpack.encode(fields[:9])

    assert msgspec.msgpack.decode(shorter, type=LogRecord) == STRUCTS["intent"]


def test_file_holds_its_rows(old: Path, version: int) -> None:
    """The file and the list of its rows are two views of one journal."""
    assert golden.rows_of(old) == golden_rows(version)


def test_same_calls_write_the_same_rows(tmp_path: Path, version: int) -> None:
    """With the same clock and ids, today's code writes the journals of old row for row, but for the number in the header."""
    golden.build(tmp_path / "new", version)

    newest = {HEADER: golden_rows(FORMAT_VERSION)[HEADER]}
    assert golden.rows_of(tmp_path / "new") == golden_rows(version) | newest


def test_golden_journal_is_read_as_it_is(old: Path, version: int) -> None:
    """Whoever only reads it leaves its file as it is, and an older format what it is."""
    before = (old / "data.mdb").read_bytes()

    with journal.open(old, readonly=True, create=False) as j:
        assert j.journal_id == JOURNAL_ID
        assert j.stats().format_version == version

    assert (old / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("readonly", [False, True])
def test_journal_of_format_1_is_sound(old_1: Path, *, readonly: bool) -> None:
    """Today's `verify` has nothing to say about it, before and after it was migrated."""
    with journal.open(old_1, readonly=readonly) as j:
        assert list(j.verify()) == []


def test_journal_of_format_2_is_sound(old_2: Path) -> None:
    """With each kind of record and row."""
    with journal.open(old_2, readonly=True) as j:
        assert list(j.verify()) == []


def test_rows_of_format_2_are_read(old_2: Path) -> None:
    """Each as it was written, by its own key."""
    with journal.open(old_2, readonly=True) as j:
        view = j._store.read
        records = [view(partial(StoreView.record, position=position)) for position in (40, 41, 42)]
        at = records[0].at
        form = key_form(("pruned", 1))
        pruned = PrunedRecord(42, at, digest(form), Guarantee.AT_MOST_ONCE)

        assert records == [CompactionRecord("counters", 1, 35, at, 35), ResetRecord("drafts", 2, at), pruned]
        assert view(lambda v: v.floor("counters")) == FloorRow(35, 40, 35)
        assert view(lambda v: v.snapshot("counters")) == SnapshotRow(1, 2, 35, 1, b"3", at)
        assert view(lambda v: v.row(layout.DROPPING + b"counters", DroppingRow)) == DroppingRow(0, 35)
        assert view(lambda v: v.stream("drafts")) == StreamRow(2, 41)
        assert view(lambda v: v.pruned(form)) == Tombstone(42, pruned)
        assert view(lambda v: v.restored()) == RestoredRow("f" * 32, 33, at, at)
        assert [c.operation for c in j.read("drafts")] == ["anew"]
        assert [c.operation for c in j.read("counters", after=35)] == [3]


# Migration


def test_opened_for_writing_it_is_migrated(old_1: Path) -> None:
    """The header says so, and no other row is another one; once is enough."""
    before = golden_rows(1)

    for _ in range(2):
        with journal.open(old_1) as j:
            assert j.stats().format_version == FORMAT_VERSION
            assert j.stats().commits == 0

        assert golden.rows_of(old_1) == before | {HEADER: golden_rows(FORMAT_VERSION)[HEADER]}


def test_each_older_format_has_its_step() -> None:
    """Whatever is read can be migrated."""
    assert sorted(STEPS) == [version for version in FORMATS if version < FORMAT_VERSION]


def test_operations_of_format_1_are_read(old_1: Path) -> None:
    """With their streams, sequences, positions, actors, times and values."""
    with journal.open(old_1, readonly=True) as j:
        operations = list(j.read())

        assert operations == [
            Committed("orders", 1, 1, "order-7", "ann", START + 1, {"order": 7, "lines": ["a", "b"]}),
            Committed("lieferungen-é", 1, 2, "1", "", START + 2, None),
            Committed("lieferungen-é", 2, 3, "2", "", START + 2, "zwei"),
            Committed("orders", 2, 32, "order-8", "", operations[-1].at, 8),
        ]
        assert j.streams() == ["lieferungen-é", "orders"]
        assert j.head() == 33
        assert j.cursor("reader") == 4


def test_effects_of_format_1_are_read(old_1: Path) -> None:
    """One in each phase, under text and tuple keys, in the order of keys."""
    with journal.open(old_1, readonly=True) as j:
        records = {record.key: record for record in j.effects()}

        assert list(records) == [
            "absent",
            "asked",
            "by-hand",
            "charge-7",
            LONG,
            "open",
            "released",
            "uncertain",
            ("orders", 1, "order-7", "mail"),
            ("retry", -1),
        ]
        assert {key: (record.phase, record.via, record.attempts) for key, record in records.items()} == {
            "absent": ("accepted", "run", 2),
            "asked": ("accepted", "reconcile", 1),
            "by-hand": ("accepted", "resolve", 1),
            "charge-7": ("accepted", "run", 1),
            LONG: ("failed", "run", 1),
            "open": ("intent", None, 1),
            "released": ("intent", None, 1),
            "uncertain": ("uncertain", "reconcile", 1),
            ("orders", 1, "order-7", "mail"): ("accepted", "run", 1),
            ("retry", -1): ("failed", "run", 1),
        }
        assert records["orders", 1, "order-7", "mail"] == EffectRecord(
            key=("orders", 1, "order-7", "mail"),
            guarantee="at_most_once",
            phase="accepted",
            attempts=1,
            first_at=START + 3,
            last_at=START + 4,
            proof="m-1",
            via="run",
            reason=None,
            error=None,
            owner=OWNER_TEXT,
            position=5,
        )
        assert (records["released"].reason, records["released"].error) == ("run-failed", "ValueError: 500")
        assert (records["by-hand"].reason, records["by-hand"].proof) == ("seen", None)
        assert records["asked"].proof == {"found": True}
        assert [event.phase for event in j.history("absent")] == ["intent", "released", "failed", "intent", "accepted"]
        assert [event.phase for event in j.history("cleared")] == ["intent", "accepted", "cleared"]
        assert j.record("cleared") is None


def test_journal_of_format_1_goes_on(old_1: Path) -> None:
    """Settled effects are reused, requests still bind, open ones are reconciled, and appends follow the last one."""
    with journal.open(old_1, logger=Silent()) as j:
        mail: Any = ("orders", 1, "order-7", "mail")

        assert j.effect(mail, run=unused, reconcile=unused, request=REQUEST) == Accepted("m-1", "run")
        with pytest.raises(journal.EffectConflictError):
            j.effect(mail, run=unused, reconcile=unused, request={"amount": 6})
        assert j.run_effect("charge-7", unused) == {"receipt": 1}
        assert j.step(("plan", 1), unused) == ["step", 1.5]
        assert j.effect("uncertain", run=unused, reconcile=unused) == Uncertain()
        settled = j.recover(
            intents=lambda committed: [
                Intent("open", unused, lambda _: "found"),
                Intent("released", unused, lambda _: None),
                Intent(LONG, lambda: "third", unused),
            ]
        )
        again = j.append("orders", {"lines": ["a", "b"], "order": 7}, op_id="order-7", actor="ann")
        new = j.append("orders", 9, op_id="order-9", expected=2)

        assert (settled.stopped, settled.reconciled, settled.uncertain, settled.ran) == (None, 1, 4, 1)
        assert isinstance(again, Committed)
        assert (again.position, again.repeated) == (1, True)
        assert isinstance(new, Committed)
        assert new.sequence == 3
        assert list(j.verify()) == []
