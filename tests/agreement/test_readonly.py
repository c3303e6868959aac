"""A read-only handle: it reads everything, writes nothing, and answers from what is settled."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import journal
from journal import Accepted, Intent, Journal, JournalReadonlyError, Uncertain

from .support import (
    FileRecipient,
    Peer,
    accept,
    data_file,
    leave_failed,
    leave_open,
    leave_uncertain,
    phases,
    unused,
)


@pytest.fixture
def reader(open_journal: Callable[..., Journal]) -> Journal:
    """A read-only handle on a journal that has one of everything."""
    j = open_journal()
    j.append("s", {"n": 1}, op_id="1")
    accept(j, "accepted", "m-1")
    leave_uncertain(j, "uncertain")
    leave_open(j, "open")
    leave_failed(j, "failed")
    j.run_effect("result", lambda: [1])
    j.step("step", lambda: 2)
    j.save_cursor("c", 1)
    j.close()
    return open_journal(readonly=True)


WRITES: dict[str, Callable[[Journal, Any], Any]] = {
    "append": lambda j, called: j.append("s", 2, op_id="2"),
    "append_all": lambda j, called: j.append_all("s", [("2", 2)]),
    "effect new": lambda j, called: j.effect("new", run=called, reconcile=called),
    "effect open": lambda j, called: j.effect("open", run=called, reconcile=called),
    "effect failed": lambda j, called: j.effect("failed", run=called, reconcile=called),
    "run_effect": lambda j, called: j.run_effect("new", called),
    "step": lambda j, called: j.step("new", called),
    "resolve": lambda j, called: j.resolve("open", Uncertain(), expected_position=_position(j, "open"), reason="r"),
    "clear_effect": lambda j, called: j.clear_effect("accepted", reason="r"),
    "prune_effects": lambda j, called: j.prune_effects(settled_before=2**63 - 1, keep=called),
    "save_cursor": lambda j, called: j.save_cursor("c", 2),
}


def _position(j: Journal, key: str) -> int:
    record = j.record(key)
    assert record is not None
    return record.position


@pytest.mark.parametrize("name", WRITES)
def test_write_is_refused(reader: Journal, name: str) -> None:
    """`JournalReadonlyError`, and nothing is called or changed."""
    called = unused()
    head = reader.head()

    with pytest.raises(JournalReadonlyError):
        WRITES[name](reader, called)

    assert called.count == 0
    assert (reader.head(), reader.cursor("c")) == (head, 1)
    assert phases(reader, "open") == ["intent", "released"]


def test_settled_effects_are_answered(reader: Journal) -> None:
    """`effect` answers from a settled record, and so do `run_effect` and `step`."""
    called = unused()

    assert reader.effect("accepted", run=called, reconcile=called) == Accepted("m-1", "run")
    assert reader.effect("uncertain", run=called, reconcile=called) == Uncertain()
    assert reader.run_effect("result", called) == [1]
    assert reader.step("step", called) == 2
    assert called.count == 0


def test_everything_is_read(reader: Journal) -> None:
    """Operations, records, history, lists and cursors are as the writer left them."""
    assert [c.operation for c in reader.read()] == [{"n": 1}]
    assert reader.streams() == ["s"]
    assert [r.key for r in reader.effects()] == ["accepted", "failed", "open", "result", "uncertain"]
    assert [r.key for r in reader.unfinished()] == ["failed", "open"]
    assert phases(reader, "accepted") == ["intent", "accepted"]
    assert reader.cursor("c") == 1
    assert reader.stats() is not None


def test_settled_operations_are_recovered(reader: Journal) -> None:
    """A walk that finds everything settled writes nothing, and needs no right to."""
    settled = reader.recover(0, intents=lambda _: [Intent("accepted", unused(), unused())])

    assert (settled, settled.stopped, settled.reused) == (1, None, 1)


def test_reading_changes_no_byte(reader: Journal, path: Path) -> None:
    """The data file is as it was, after everything that a reader can do."""
    before = data_file(path).read_bytes()

    list(reader.read())
    list(reader.effects())
    reader.effect("accepted", run=unused(), reconcile=unused())
    reader.close()

    assert data_file(path).read_bytes() == before


@pytest.mark.parametrize("options", [{}, {"create": False}], ids=repr)
def test_missing_journal_is_not_made(path: Path, options: dict[str, Any]) -> None:
    """There is nothing to read, and a reader makes nothing."""
    with pytest.raises((FileNotFoundError, JournalReadonlyError)):
        journal.open(path, readonly=True, **options)

    assert not path.exists()


def test_reader_sees_what_another_process_writes(reader: Journal, start_peer: Callable[..., Peer]) -> None:
    """A reader is never behind: each call sees what was committed before it."""
    peer = start_peer("write")
    peer.hear("opened")
    for word in ("a", "b"):
        peer.tell(word)
        position = peer.hear("written")["position"]
        assert (reader.head(), reader.cursor(word)) == (position, position)

    assert [c.operation for c in reader.read("written")] == ["a", "b"]
    peer.finish()


def test_reader_in_another_process_sees_this_one(
    j: Journal, start_peer: Callable[..., Peer], recipient: FileRecipient
) -> None:
    """A writer here is read there, by a handle that cannot write."""
    j.append("s", 1, op_id="1")
    accept(j, "k", "m-1")
    peer = start_peer("look", options={"readonly": True})
    said = peer.hear("looked")

    assert (said["head"], said["operations"], said["records"]) == (3, [["s", 1, 1, 1]], [["k", "accepted", 1, "m-1"]])


def test_writer_goes_on_beside_a_reader(reader: Journal, start_peer: Callable[..., Peer]) -> None:
    """A reader owns nothing: it keeps no writer waiting and no effect in flight."""
    peer = start_peer("call", key="open", run=["deliver"], reconcile=["find"])
    peer.hear("opened")
    peer.hear("uncertain")

    assert reader.effect("open", run=unused(), reconcile=unused()) == Uncertain()
    peer.finish()
