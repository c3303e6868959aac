"""What the golden bytes in `tests/data/` stand for: every struct, key and frame of each format, and a whole journal.

`python -m tests.unit.golden` writes what is missing there. What is there is never written anew: journals in the field
hold these bytes. A new format gets files of its own beside them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import lmdb
import msgspec

import journal
from journal._core.keys import key_form
from journal._core.ledger import EffectChange, advance
from journal._core.payloads import digest
from journal._storage import layout
from journal._storage.views import encode
from journal.errors import Key
from journal.records import (
    FORMAT_VERSION,
    FORMAT_VERSION_OLDEST,
    CompactionRecord,
    CursorRow,
    DroppingRow,
    EffectEntry,
    FloorRow,
    Guarantee,
    Header,
    OperationRecord,
    OwnerRow,
    Phase,
    PrunedRecord,
    ResetRecord,
    RestoredRow,
    SnapshotRow,
    StepRecord,
    StreamRow,
    Via,
)
from tests.unit.support import START, raising, unused

DATA: Final = Path(__file__).parent.parent / "data"
FORMATS: Final = range(FORMAT_VERSION_OLDEST, FORMAT_VERSION + 1)
BYTES: Final = {version: DATA / f"format-{version}.json" for version in FORMATS}
JOURNALS: Final = {version: DATA / f"format-{version}" / "data.mdb" for version in FORMATS}
ROWS_OF: Final = {version: DATA / f"format-{version}" / "rows.json" for version in FORMATS}
JOURNAL: Final = JOURNALS[1]
"""What both formats hold alike: the first one's journal, and below its rows."""
ROWS: Final = ROWS_OF[1]

JOURNAL_ID: Final = "0123456789abcdef0123456789abcdef"
OWNER: Final = 0x1122334455667788
OWNER_ROW: Final = OwnerRow(4_321, 987_654, "6f1c2d3e-0000-4000-8000-000000000000", 4_026_531_836, 77)
LONG: Final = "long-" + "k" * 600
REQUEST: Final = {"amount": 5, "currency": "EUR"}

STRUCTS: Final[dict[str, msgspec.Struct]] = {
    "operation": OperationRecord("orders", 1, 7, "order-7", "ann", START, bytes(range(16)), 11),
    "operation with short fields": OperationRecord("s", 1, 1, "1", "", 0, bytes(16), 4),
    "operation with long fields": OperationRecord(
        "é" * 100, 2**40, 2**63 - 1, "o" * 300, "a" * 70, START, bytes(16), 2**24
    ),
    "intent": EffectEntry(Phase.INTENT, b"\x01k", START, 0, START, 1, Guarantee.AT_MOST_ONCE, OWNER),
    "accepted": EffectEntry(
        Phase.ACCEPTED,
        b"\x02\x20mail\x00\x10\x80\x01\x07",
        START + 5,
        12,
        START,
        2,
        Guarantee.IDEMPOTENT,
        OWNER,
        bytes(range(16)),
        Via.RECONCILE,
        b'{"id":"m-1"}',
    ),
    "uncertain": EffectEntry(
        Phase.UNCERTAIN, b"\x01k", START, 3, START, 1, Guarantee.AT_MOST_ONCE, OWNER, None, Via.RESOLVE, None, "seen"
    ),
    "failed": EffectEntry(
        Phase.FAILED,
        b"\x01k",
        START,
        3,
        START,
        1,
        Guarantee.IDEMPOTENT,
        OWNER,
        None,
        Via.RUN,
        None,
        "run-failed",
        "Boom: é",
    ),
    "released": EffectEntry(
        Phase.RELEASED, b"\x01k", START, 3, START, 1, Guarantee.AT_MOST_ONCE, OWNER, None, None, None, "run-failed", "B"
    ),
    "cleared": EffectEntry(Phase.CLEARED, b"\x01k", START, 3, START, 1, Guarantee.AT_MOST_ONCE, 0),
    "step": StepRecord(b"\x01k", START, b"[1,2]"),
    "header": Header(1, JOURNAL_ID, START),
    "stream": StreamRow(1, 0),
    "stream after resets": StreamRow(300, 2**40),
    "cursor": CursorRow(9, None, START),
    "cursor of a stream": CursorRow(2**40, "orders", START),
    "owner": OWNER_ROW,
    "header of format 2": Header(2, JOURNAL_ID, START),
    "compaction": CompactionRecord("orders", 1, 2**40, START, 2**40 + 5),
    "reset": ResetRecord("orders", 2, START),
    "pruned": PrunedRecord(5, START, bytes(range(16)), Guarantee.IDEMPOTENT),
    "pruned without a key": PrunedRecord(2**40, START),
    "floor": FloorRow(2**40, 2**40 + 7, 2**40 + 5),
    "snapshot": SnapshotRow(1, 7, 12, 3, b'{"sum":28}', START),
    "dropping": DroppingRow(3, 2**40),
    "restored": RestoredRow("f" * 32, 2**40, START),
    "restored and confirmed": RestoredRow("f" * 32, 33, START, START + 1),
}
"""Every struct that reaches the disk, with its fields short, long and missing."""

KEYS: Final[dict[str, Key]] = {
    "text": "mail-7",
    "text of every length of UTF-8": "a\x00é€\U0001f600",
    "text that looks like a tuple": '["mail",7]',
    "tuple": ("mail", 7),
    "tuple of an operation's effect": ("orders", 1, "order-7", "mail", "ann"),
    "tuple with zeros in its text": ("", "\x00", "a\x00", "\x00\xff"),
    "tuple of integers": (0, 1, -1, 255, 256, -255, -256, 2**64, -(2**64)),
}


def golden_bytes() -> dict[str, dict[str, str]]:
    """The bytes of everything that has a layout, as today's code writes them."""
    head = encode(STRUCTS["operation"])
    genesis = digest(JOURNAL_ID.encode())
    chained = layout.chain(genesis, 1, head)
    forms = {name: key_form(key) for name, key in KEYS.items()}
    long_forms = {str(size): key_form("k" * (size - 1)) for size in (509, 510, 511, 600, 4_097)}
    found: dict[str, dict[str, bytes]] = {
        "structs": {name: encode(struct) for name, struct in STRUCTS.items()},
        "forms": forms,
        "index keys": {
            f"form of {size} bytes": layout.form_key(layout.SETTLED, form) for size, form in long_forms.items()
        },
        "keys": {
            "header": layout.HEADER_KEY,
            "log": layout.log_key(2**40 + 1),
            "stream's rows": layout.stream_prefix("é"),
            "identity": layout.identity_key("orders", 1, "order-7"),
            "identity after a reset": layout.identity_key("orders", 2, "order-7"),
            "floor": layout.FLOOR + b"orders",
            "snapshot": layout.SNAPSHOT + b"orders",
            "pruned": layout.PRUNED + digest(key_form("mail-7")),
            "dropping": layout.DROPPING + b"orders",
            "restored": layout.RESTORED_KEY,
        },
        "chain": {"genesis": genesis, "position 1": chained, "position 2": layout.chain(chained, 2, head)},
        "frames": {
            "with a payload": layout.frame(1, chained, head, b'{"order":7}'),
            "without": layout.frame(2**32 + 5, chained, encode(STRUCTS["intent"]), b""),
        },
        "seals": {
            "header": layout.seal(layout.HEADER_KEY, encode(STRUCTS["header"])),
            "nothing": layout.seal(b"\x05", b""),
        },
    }
    return {section: {name: data.hex() for name, data in named.items()} for section, named in found.items()}


class Silent:
    """A logger that says nothing."""

    def debug(self, event: str, **facts: Any) -> None: ...

    info = warning = error = debug


@contextlib.contextmanager
def fixed_identities() -> Iterator[None]:
    """Let journals and owners have known ids; restored afterwards."""
    with patch.object(secrets, "token_hex", lambda _: JOURNAL_ID), patch.object(secrets, "randbits", lambda _: OWNER):
        yield


def build(directory: Path, version: int) -> None:
    """Make the golden journal of a format: each kind of its records and rows, and effects in each phase."""
    times = itertools.count(START)
    with fixed_identities(), journal.open(directory, clock=lambda: next(times), map_size=2**20, logger=Silent()) as j:
        owner = j._store._owner
        assert owner is not None
        assert owner.id == OWNER
        owner.row = OWNER_ROW
        j.append("orders", {"order": 7, "lines": ["a", "b"]}, op_id="order-7", actor="ann")
        j.append_all("lieferungen-é", [("1", None), ("2", "zwei"), ("1", None)], expected=0)
        j.effect(("orders", 1, "order-7", "mail"), run=lambda: "m-1", reconcile=unused, request=REQUEST)
        j.run_effect("charge-7", lambda: {"receipt": 1})
        left_open(j, "asked")
        j.effect("asked", run=unused, reconcile=lambda _: {"found": True})
        left_open(j, "uncertain")
        j.effect("uncertain", run=unused, reconcile=lambda _: None)
        left_open(j, "by-hand")
        j.resolve("by-hand", journal.Accepted(None), expected_position=position(j, "by-hand"), reason="seen")
        left_open(j, "absent")
        j.effect("absent", run=lambda: "second", reconcile=raising(journal.NotPerformed("no record")))
        left_open(j, "released")
        with contextlib.suppress(journal.EffectFailedError):
            j.effect(LONG, run=raising(journal.NotPerformed("refused")), reconcile=unused)
        with contextlib.suppress(ValueError):
            j.run_effect(("retry", -1), raising(ValueError("500")))
        j.run_effect("cleared", lambda: 1)
        j.clear_effect("cleared", reason="again")
        j.step(("plan", 1), lambda: ["step", 1.5])
        j.save_cursor("reader", 4, stream="orders")
        j.append("orders", 8, op_id="order-8")
        # As a crash leaves it: nobody gave it up.
        change = EffectChange(phase=Phase.INTENT, guarantee=Guarantee.AT_MOST_ONCE, owner=OWNER)
        j._store.commit(advance(key_form("open"), 0, change))
        if version >= 2:
            j._store.commit(lambda txn: add_format_2(txn, next(times)))
            j.append("drafts", "anew", op_id="1")


def add_format_2(txn: Any, at: int) -> None:
    """Add each kind of record and row that format 2 brought: as a compaction leaves it that has yet to drop payloads."""
    for stream, epoch in (("counters", 1), ("drafts", 1)):
        for sequence in (1, 2, 3):
            payload = str(sequence).encode()
            record = OperationRecord(stream, epoch, sequence, str(sequence), "", at, digest(payload), len(payload))
            txn.append(record, payload)
    floor = txn.last[0] - 4
    txn.save_snapshot("counters", SnapshotRow(1, 2, floor, 1, b"3", at))
    txn.append(CompactionRecord("counters", 1, floor, at, floor))
    txn._put_row(layout.DROPPING + b"counters", encode(DroppingRow(0, floor)))
    txn.append(ResetRecord("drafts", 2, at))
    pruned = digest(key_form(("pruned", 1)))
    txn.append(PrunedRecord(txn.last[0] + 1, at, pruned, Guarantee.AT_MOST_ONCE))
    txn._put_row(layout.RESTORED_KEY, encode(RestoredRow("f" * 32, 33, at, at)))


def left_open(j: journal.Journal, key: Key) -> None:
    """Leave an intent whose run raised."""
    with contextlib.suppress(journal.EffectUnresolvedError):
        j.effect(key, run=raising(ValueError("500")), reconcile=unused)


def position(j: journal.Journal, key: Key) -> int:
    """Where an effect's record stands."""
    record = j.record(key)
    assert record is not None
    return record.position


def rows_of(directory: Path) -> dict[str, str]:
    """Every row of a journal's file, read with LMDB alone."""
    with lmdb.open(str(directory), readonly=True, lock=False, lib_version=0) as env, env.begin() as txn:
        return {bytes(key).hex(): bytes(value).hex() for key, value in txn.cursor()}


def write_missing() -> None:
    """Write the golden files that are not there; of an older format, nobody can any more."""
    if not BYTES[FORMAT_VERSION].exists():
        write_json(BYTES[FORMAT_VERSION], golden_bytes())
    file = JOURNALS[FORMAT_VERSION]
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            build(Path(folder), FORMAT_VERSION)
            shutil.copy(Path(folder) / "data.mdb", file)
            write_json(ROWS_OF[FORMAT_VERSION], rows_of(Path(folder)))


def write_json(path: Path, value: Any) -> None:
    """Write a value so that a change of it shows as a change of lines."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_missing()
