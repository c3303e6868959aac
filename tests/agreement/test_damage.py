"""What is no journal, or no longer one: refused at `open`, without touching it; and records that are damaged."""

import pickle
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pytest

import journal
from journal import (
    Accepted,
    CorruptRecordError,
    EffectUnresolvedError,
    Intent,
    Journal,
    JournalError,
    UnsupportedFormatError,
)

from .support import Boom, Peer, Stub, accept, data_file, leave_open, unused

Open = Callable[..., Journal]


def snapshot(path: Path) -> dict[str, bytes]:
    """Gives every file below a directory."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def fill(open_journal: Open) -> None:
    """Makes a journal with some hundred records, and closes it."""
    j = open_journal()
    j.append_all("s", [(str(index), "x" * 2000) for index in range(300)])
    accept(j, "k", "m-1")
    j.close()


# What is no journal


@pytest.mark.parametrize("create", [True, False])
def test_directory_of_other_files_is_refused_untouched(path: Path, create: bool) -> None:
    """`UnsupportedFormatError`, and nothing is added."""
    path.mkdir()
    (path / "notes.txt").write_text("something else")

    with pytest.raises(UnsupportedFormatError):
        journal.open(path, create=create)

    assert snapshot(path) == {"notes.txt": b"something else"}


@pytest.mark.parametrize("filled", [True, False])
def test_foreign_lmdb_is_refused_untouched(path: Path, filled: bool) -> None:
    """An LMDB environment of somebody else is no journal, whether or not something is in it."""
    with lmdb.open(str(path), lib_version=0, max_dbs=2) as environment:
        if filled:
            with environment.begin(write=True) as txn:
                txn.put(b"key", b"value")
    before = data_file(path).read_bytes()

    with pytest.raises(UnsupportedFormatError):
        journal.open(path)

    assert data_file(path).read_bytes() == before
    with lmdb.open(str(path), lib_version=0, max_dbs=2) as environment, environment.begin() as txn:
        assert txn.get(b"key") == (b"value" if filled else None)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00" * 4096, b"\x00" * 65536, b"garbage " * 4096, b"x"],
    ids=["empty", "zero page", "zero pages", "garbage", "one byte"],
)
@pytest.mark.parametrize("create", [True, False])
def test_data_file_that_is_none_is_refused_untouched(
    open_journal: Open, path: Path, content: bytes, create: bool
) -> None:
    """An emptied or overwritten data file is never taken for a new journal."""
    fill(open_journal)
    data_file(path).write_bytes(content)

    for _ in range(2):
        with pytest.raises(UnsupportedFormatError):
            journal.open(path, create=create)

    assert data_file(path).read_bytes() == content


@pytest.mark.parametrize("create", [True, False])
def test_missing_data_file_is_never_a_new_journal(open_journal: Open, path: Path, create: bool) -> None:
    """Where a journal was, and its data file is gone, nothing new is made."""
    fill(open_journal)
    data_file(path).unlink()

    for _ in range(2):
        with pytest.raises((UnsupportedFormatError, FileNotFoundError)):
            journal.open(path, create=create)

    assert list(path.rglob("data.mdb")) == []


@pytest.mark.parametrize("kept", [1, 4095, 4096, 8192, 12288, 0.25, 0.5, 0.75, -4096, -1])
def test_truncated_data_file_is_refused_without_a_crash(
    open_journal: Open, path: Path, start_peer: Callable[..., Peer], kept: Any
) -> None:
    """Told as an error of `open`, never by SIGBUS; or, where only unused pages are gone, everything is there."""
    fill(open_journal)
    file = data_file(path)
    whole = file.read_bytes()
    size = int(len(whole) * kept) if isinstance(kept, float) else kept % len(whole)
    file.write_bytes(whole[:size])
    peer = start_peer("look")
    said = peer.hear("raised", "looked")

    if said["word"] == "raised":
        assert said["error"] == "UnsupportedFormatError"
        assert file.read_bytes() == whole[:size]
    else:
        assert size > 12288
        assert len(said["operations"]) == 300
        assert said["records"] == [["k", "accepted", 1, "m-1"]]


@pytest.mark.parametrize("readonly", [True, False])
def test_truncated_to_its_first_pages_is_refused(
    open_journal: Open, path: Path, start_peer: Callable[..., Peer], readonly: bool
) -> None:
    """With the meta pages and no page of the tree there is no journal, for a reader as for a writer."""
    fill(open_journal)
    file = data_file(path)
    file.write_bytes(file.read_bytes()[: 2 * 4096])
    peer = start_peer("look", options={"readonly": readonly})

    assert peer.hear("raised")["error"] == "UnsupportedFormatError"


def test_newer_format_is_refused_untouched(open_journal: Open, path: Path) -> None:
    """A journal of a later version of this library is refused with both versions, and stays as it is."""
    fill(open_journal)
    with lmdb.open(str(path), lib_version=0) as environment, environment.begin(write=True) as txn:
        row = txn.get(b"\x01journal")
        assert row is not None
        version, *rest = msgspec.msgpack.decode(row[:-4])
        content = msgspec.msgpack.encode([version + 1, *rest])
        txn.put(b"\x01journal", content + zlib.crc32(content, zlib.crc32(b"\x01journal")).to_bytes(4, "big"))
    before = data_file(path).read_bytes()

    for options in ({}, {"create": False}, {"readonly": True}):
        with pytest.raises(UnsupportedFormatError) as caught:
            journal.open(path, **options)  # type: ignore[arg-type]  # the wrong type is what is tested
        for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
            assert str(version + 1) in str(error.found)
            assert str(version) in str(error.supported)
        assert str(version + 1) in str(caught.value)

    assert data_file(path).read_bytes() == before


def test_refused_journal_opens_once_it_is_put_back(open_journal: Open, path: Path) -> None:
    """A refusal leaves nothing behind that would keep the sound file from opening."""
    fill(open_journal)
    file = data_file(path)
    whole = file.read_bytes()
    file.write_bytes(b"")
    with pytest.raises(UnsupportedFormatError):
        journal.open(path)
    file.write_bytes(whole)

    assert open_journal().record("k") is not None


# Under a running handle


def test_journal_whose_file_was_deleted_refuses_at_the_next_commit(j: Journal, path: Path) -> None:
    """Nothing is acknowledged into a file that nobody will find, and no effect runs."""
    accept(j, "k")
    data_file(path).unlink()
    run = unused()

    with pytest.raises((JournalError, OSError)):
        j.append("s", 1, op_id="1")
    with pytest.raises((JournalError, OSError)):
        j.effect("new", run=run, reconcile=unused())

    assert run.count == 0


def test_journal_whose_file_was_replaced_refuses_at_the_next_commit(
    open_journal: Open, path: Path, tmp_path: Path
) -> None:
    """A file put in its place, be it an older copy of the same journal, is not written to."""
    j = open_journal()
    accept(j, "k")
    file = data_file(path)
    copy = tmp_path / "copy.mdb"
    shutil.copyfile(file, copy)
    copy.rename(file)
    before = file.read_bytes()
    run = unused()

    with pytest.raises((JournalError, OSError)):
        j.append("s", 1, op_id="1")
    with pytest.raises((JournalError, OSError)):
        j.effect("new", run=run, reconcile=unused())

    assert run.count == 0
    assert file.read_bytes() == before


def test_outcome_that_cannot_be_written_is_told(j: Journal, path: Path) -> None:
    """The effect ran and its file was gone: `outcome-unrecorded`, from the cause, and no second run."""
    run = Stub(lambda: data_file(path).unlink())

    with pytest.raises(EffectUnresolvedError) as caught:
        j.effect("k", run=run, reconcile=unused())

    assert (caught.value.key, caught.value.reason) == ("k", "outcome-unrecorded")
    assert caught.value.__cause__ is not None
    with pytest.raises((JournalError, OSError)):
        j.effect("k", run=run, reconcile=Stub("m-1"))
    assert run.count == 1


# Damaged records


def damage(path: Path, marker: str) -> None:
    """Overwrites every copy of a text in the data file with bytes that are text in no encoding."""
    file = data_file(path)
    content = file.read_bytes()
    assert marker.encode() in content
    file.write_bytes(content.replace(marker.encode(), b"\xff" * len(marker)))


@pytest.fixture
def damaged(open_journal: Open, path: Path) -> Journal:
    """A journal in which a payload, a proof, an open effect's error and a step's result cannot be decoded."""
    j = open_journal()
    j.append("bad", "first", op_id="1")
    j.append("bad", "PAYLOAD-MARKER-0123456789", op_id="2")
    j.append("fine", "third", op_id="1")
    accept(j, "bad", "PROOF-MARKER-0123456789")
    accept(j, "fine", "m-1")
    leave_open(j, "open")
    leave_open(j, "bad-open", Boom("ERROR-MARKER-0123456789"))
    j.step("bad", lambda: "STEP-MARKER-0123456789")
    j.close()
    damage(path, "PAYLOAD-MARKER-0123456789")
    damage(path, "ERROR-MARKER-0123456789")
    damage(path, "STEP-MARKER-0123456789")
    damage(path, "PROOF-MARKER-0123456789")
    return open_journal()


def test_damaged_effect_refuses(damaged: Journal) -> None:
    """`CorruptRecordError` with key and position; it is never evidence that the effect did not run."""
    called = unused()

    for call in (
        lambda: damaged.effect("bad", run=called, reconcile=called),
        lambda: damaged.record("bad"),
    ):
        with pytest.raises(CorruptRecordError) as caught:
            call()
        for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
            assert (error.key, error.position) == ("bad", 5)

    assert called.count == 0


def test_damaged_effect_blocks_its_own_key_only(damaged: Journal) -> None:
    """Other keys are answered, run and reconciled as ever."""
    assert damaged.effect("fine", run=unused(), reconcile=unused()) == Accepted("m-1", "run")
    assert damaged.effect("open", run=unused(), reconcile=Stub("m-2")) == Accepted("m-2", "reconcile")
    assert damaged.effect("new", run=lambda: 1, reconcile=unused()) == Accepted(1, "run")
    assert damaged.step("new", lambda: 1) == 1


@pytest.mark.parametrize("guarantee", ["at_most_once", "idempotent"])
def test_damaged_open_effect_is_neither_run_nor_asked_about(damaged: Journal, guarantee: str) -> None:
    """Whatever is left of a record says that something was begun: the call is refused, whichever it is."""
    called = unused()

    with pytest.raises(CorruptRecordError) as caught:
        if guarantee == "idempotent":
            damaged.run_effect("bad-open", called)
        else:
            damaged.effect("bad-open", run=called, reconcile=called)

    assert caught.value.key == "bad-open"
    assert called.count == 0


@pytest.mark.parametrize("change", [1, -1])
@pytest.mark.parametrize("guarantee", ["at_most_once", "idempotent"])
def test_effect_whose_row_is_hidden_is_not_run(open_journal: Open, path: Path, guarantee: str, change: int) -> None:
    """A flipped byte in the key of its index row hides it from a search: the row beside its place tells."""
    j = open_journal()
    for key in ("a", "k", "z"):
        accept(j, key)
    j.close()
    place, beside = b"\x09\x01k", b"\x09\x01" + bytes([ord("k") + change])
    with lmdb.open(str(path), lib_version=0) as environment, environment.begin(write=True) as txn:
        row = txn.pop(place)
        assert row is not None
        txn.put(beside, row)
    j = open_journal()
    called, head = unused(), j.head()

    with pytest.raises(CorruptRecordError) as caught:
        if guarantee == "idempotent":
            j.run_effect("k", called)
        else:
            j.effect("k", run=called, reconcile=called)

    assert caught.value.key == "k"
    assert (called.count, j.head()) == (0, head)
    assert j.effect("0", run=lambda: 1, reconcile=unused()) == Accepted(1, "run")


def test_damaged_step_is_not_computed_again(damaged: Journal) -> None:
    """A step whose record cannot be decoded has run: its body is not called, and nothing is written."""
    body, head = unused(), damaged.head()

    with pytest.raises(CorruptRecordError) as caught:
        damaged.step("bad", body)

    assert caught.value.key == "bad"
    assert (body.count, damaged.head()) == (0, head)


def test_damaged_operation_refuses_with_its_position(damaged: Journal) -> None:
    """Reading over it raises `CorruptRecordError`, for its stream as for all."""
    for stream in ("bad", None):
        with pytest.raises(CorruptRecordError) as caught:
            list(damaged.read(stream))
        assert caught.value.position == 2


def test_damaged_operation_blocks_its_own_stream_only(damaged: Journal) -> None:
    """Other streams are read and appended to as ever."""
    assert [c.operation for c in damaged.read("fine")] == ["third"]
    assert damaged.append("fine", "fourth", op_id="2").position == damaged.head()
    assert [c.operation for c in damaged.read("fine")] == ["third", "fourth"]


def test_damaged_effect_stops_a_walk(damaged: Journal) -> None:
    """`corrupt`, with its key and the error; nothing is called for it."""
    called = unused()

    settled = damaged.recover(0, intents=lambda _: [Intent("bad", called, called)], stream="fine")

    stop = settled.stopped
    assert stop is not None
    assert (settled, stop.reason, stop.key) == (0, "corrupt", "bad")
    assert isinstance(stop.error, CorruptRecordError)
    assert called.count == 0


@pytest.mark.parametrize("how", ["constant", "callable"])
def test_damaged_effect_can_be_passed(damaged: Journal, how: str) -> None:
    """`on_unresolved` lets a walk go on past a record that cannot be decoded."""
    called = unused()
    policy: Any = "pass" if how == "constant" else lambda intent, _: "pass"
    head = damaged.head()

    settled = damaged.recover(0, intents=lambda _: [Intent("bad", called, called)], stream="fine", on_unresolved=policy)

    assert (settled, settled.stopped, settled.passed) == (3, None, 1)
    assert (called.count, damaged.head()) == (0, head)


def test_other_engines_format_is_refused(path: Path) -> None:
    """A data file of LMDB's newer format is refused like any foreign file."""
    with lmdb.open(str(path), lib_version=1, max_dbs=2) as environment, environment.begin(write=True) as txn:
        txn.put(b"key", b"value")
    before = data_file(path).read_bytes()

    with pytest.raises(UnsupportedFormatError):
        journal.open(path)

    assert data_file(path).read_bytes() == before
