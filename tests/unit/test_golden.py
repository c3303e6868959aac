"""The bytes of format 1: what is written today is what journals in the field hold, and they are read as they were meant."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import journal
from journal import Accepted, Committed, EffectRecord, Intent, Uncertain
from journal.records import EffectEntry, LogRecord, OperationRecord, StepRecord
from tests.unit import golden
from tests.unit.golden import BYTES, JOURNAL, JOURNAL_ID, LONG, OWNER, REQUEST, ROWS, STRUCTS, Silent
from tests.unit.support import START, unused

GOLDEN: Final[dict[str, dict[str, str]]] = json.loads(BYTES.read_text(encoding="utf-8"))
OWNER_TEXT: Final = f"{OWNER:016x}"


def struct_bytes(name: str) -> bytes:
    """The golden bytes of a struct."""
    return bytes.fromhex(GOLDEN["structs"][name])


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the journal of format 1."""
    directory = tmp_path / "old"
    directory.mkdir()
    shutil.copy(JOURNAL, directory)
    return directory


@pytest.mark.parametrize("section, name", [(section, name) for section, named in GOLDEN.items() for name in named])
def test_bytes_are_what_they_were(section: str, name: str) -> None:
    """Each struct, key, frame and seal is written today as journals in the field hold it."""
    assert golden.golden_bytes()[section][name] == GOLDEN[section][name]


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
    if isinstance(struct, OperationRecord | EffectEntry | StepRecord):
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


def test_file_of_format_1_holds_its_rows(old: Path) -> None:
    """The file and the list of its rows are two views of one journal."""
    assert golden.rows_of(old) == json.loads(ROWS.read_text(encoding="utf-8"))


def test_same_calls_write_the_same_rows(tmp_path: Path) -> None:
    """With the same clock and ids, today's code writes the journal of format 1 row for row."""
    golden.build(tmp_path / "new")

    assert golden.rows_of(tmp_path / "new") == json.loads(ROWS.read_text(encoding="utf-8"))


def test_journal_of_format_1_is_sound(old: Path) -> None:
    """Today's `verify` has nothing to say about it, and reading it leaves its file as it is."""
    before = (old / "data.mdb").read_bytes()

    with journal.open(old, readonly=True, create=False) as j:
        assert list(j.verify()) == []
        assert j.journal_id == JOURNAL_ID
        assert j.stats().format_version == 1

    assert (old / "data.mdb").read_bytes() == before


def test_operations_of_format_1_are_read(old: Path) -> None:
    """With their streams, sequences, positions, actors, times and values."""
    with journal.open(old, readonly=True) as j:
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


def test_effects_of_format_1_are_read(old: Path) -> None:
    """One in each phase, under text and tuple keys, in the order of keys."""
    with journal.open(old, readonly=True) as j:
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


def test_journal_of_format_1_goes_on(old: Path) -> None:
    """Settled effects are reused, requests still bind, open ones are reconciled, and appends follow the last one."""
    with journal.open(old, logger=Silent()) as j:
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
