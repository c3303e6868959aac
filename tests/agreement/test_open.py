"""Opening, closing, and what a handle refuses."""

import asyncio
import contextlib
import copy
import functools
import gc
import os
import pickle
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import journal
import recovery
from journal import (
    Accepted,
    EffectFailedError,
    Intent,
    Journal,
    JournalClosedError,
    JournalError,
    JournalLockedError,
    NotPerformed,
    UnsupportedFormatError,
)

from .support import Boom, Call, Gate, Peer, accept, at_once, leave_open, unused

PUBLIC = [
    "Accepted",
    "Uncertain",
    "Found",
    "NotPerformed",
    "Intent",
    "Stop",
    "Settled",
    "Cursor",
    "Committed",
    "AlreadyCommitted",
    "JournalError",
    "IdentityConflictError",
    "SequenceConflictError",
    "InvalidOperationError",
    "OperationRefusedError",
    "InvalidCursorError",
    "CompactedCursorError",
    "InvalidCompactionError",
    "EffectUnresolvedError",
    "EffectFailedError",
    "EffectConflictError",
    "EffectInFlightError",
    "CorruptRecordError",
    "JournalFullError",
    "JournalLockedError",
    "JournalClosedError",
    "JournalForkedError",
    "JournalReadonlyError",
    "JournalBusyError",
    "UnsupportedFormatError",
]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_promised_name_is_importable(name: str) -> None:
    """What section 3 names is found in `journal`."""
    assert hasattr(journal, name)


def test_intent_is_the_same_class_in_both_packages() -> None:
    """`journal.Intent is recovery.Intent`."""
    assert journal.Intent is recovery.Intent


def test_fresh_journal_is_empty(j: Journal) -> None:
    """A new journal has head 0, no stream, no record, and no saved cursor."""
    assert j.head() == 0
    assert j.streams() == []
    assert list(j.read()) == []
    assert list(j.effects()) == []
    assert j.unfinished() == []
    assert j.record("k") is None
    assert j.history("k") == []
    assert j.cursor("c") == 0


def test_journal_is_a_context_manager(path: Path) -> None:
    """`with` gives the handle and closes it at the end."""
    with journal.open(path) as j:
        j.append("s", 1, op_id="1")

    with pytest.raises(JournalClosedError):
        j.head()


def test_options_are_keyword_only(path: Path) -> None:
    """Nothing but the path is given by position."""
    with pytest.raises(TypeError):
        journal.open(path, int)  # type: ignore[call-arg]  # the wrong call is what is tested

    assert not path.exists()


def test_everything_is_there_after_reopening(open_journal: Callable[..., Journal]) -> None:
    """What was acknowledged is read by the next handle."""
    first = open_journal()
    first.append("s", {"a": [1, None, "x"]}, op_id="1", actor="me")
    accept(first, "k", {"id": 7})
    first.step("k", lambda: "computed")
    first.save_cursor("c", 1)
    before = (list(first.read()), list(first.effects()), first.history("k"), first.head(), first.cursor("c"))
    first.close()

    again = open_journal()

    assert (list(again.read()), list(again.effects()), again.history("k"), again.head(), again.cursor("c")) == before
    assert again.step("k", unused()) == "computed"


SPELLINGS: dict[str, Callable[[Path], Any]] = {
    "same": lambda path: path,
    "text": str,
    "slash": lambda path: f"{path}/",
    "dots": lambda path: path.parent / "x" / ".." / path.name,
    "relative": os.path.relpath,
    "link": lambda path: path.with_name("link"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_second_open_in_one_process_is_refused(j: Journal, path: Path, spelling: str) -> None:
    """One process opens a journal once, however the path is spelled; the first handle goes on."""
    path.with_name("x").mkdir()
    path.with_name("link").symlink_to(path)

    with pytest.raises(JournalLockedError) as caught:
        journal.open(SPELLINGS[spelling](path))

    assert path.samefile(caught.value.path)
    assert j.append("s", 1, op_id="1").position == 1


def test_second_open_is_refused_to_readers_too(j: Journal, path: Path) -> None:
    """A read-only handle counts as any other."""
    with pytest.raises(JournalLockedError):
        journal.open(path, readonly=True)


def test_two_journals_may_be_open(open_journal: Callable[..., Journal], path: Path) -> None:
    """Only the same journal is refused; another is a journal of its own."""
    one, two = open_journal(), open_journal(path.with_name("other"))

    one.append("s", 1, op_id="1")

    assert (one.head(), two.head()) == (1, 0)


def test_closed_journal_can_be_opened_again(open_journal: Callable[..., Journal]) -> None:
    """Closing lets go of the path."""
    for expected in range(3):
        j = open_journal()
        assert j.head() == expected
        j.append("s", expected, op_id=str(expected))
        j.close()


def test_failed_open_lets_go_of_the_path(open_journal: Callable[..., Journal], path: Path) -> None:
    """An open that was refused does not count as an open handle."""
    with pytest.raises(FileNotFoundError):
        journal.open(path, create=False)

    assert open_journal().head() == 0


def test_closing_twice_is_fine(j: Journal) -> None:
    """The second `close` does nothing."""
    j.close()
    j.close()


METHODS: dict[str, Callable[[Journal], Any]] = {
    "append": lambda j: j.append("s", 1, op_id="1"),
    "append_all": lambda j: j.append_all("s", [("1", 1)]),
    "append nothing": lambda j: j.append_all("s", []),
    "read": lambda j: list(j.read()),
    "streams": lambda j: j.streams(),
    "head": lambda j: j.head(),
    "stats": lambda j: j.stats(),
    "effect": lambda j: j.effect("k", run=unused(), reconcile=unused()),
    "run_effect": lambda j: j.run_effect("k", unused()),
    "step": lambda j: j.step("k", unused()),
    "record": lambda j: j.record("k"),
    "unfinished": lambda j: j.unfinished(),
    "effects": lambda j: list(j.effects()),
    "history": lambda j: j.history("k"),
    "resolve": lambda j: j.resolve("k", journal.Uncertain(), expected_position=1, reason="r"),
    "clear_effect": lambda j: j.clear_effect("k", reason="r"),
    "prune_effects": lambda j: j.prune_effects(settled_before=1, keep=unused()),
    "recover": lambda j: j.recover(0, intents=unused()),
    "save_cursor": lambda j: j.save_cursor("c", 0),
    "cursor": lambda j: j.cursor("c"),
}


@pytest.mark.parametrize("name", METHODS)
def test_closed_journal_refuses_every_method(j: Journal, name: str) -> None:
    """After `close` every method raises `JournalClosedError`, also where the answer is on record."""
    j.append("s", 1, op_id="1")
    accept(j, "k")
    j.step("k", lambda: 1)
    j.close()

    with pytest.raises(JournalClosedError):
        METHODS[name](j)


def test_close_waits_for_a_run_in_flight(open_journal: Callable[..., Journal]) -> None:
    """`close` returns when the run has ended, and its outcome is recorded."""
    j = open_journal()
    gate = Gate("late proof")
    effect = Call(lambda: j.effect("k", run=gate, reconcile=unused()))
    gate.wait_until_entered()
    closing = Call(j.close)
    closing.wait_until_it_waits()
    waited = not closing.is_done
    gate.open()
    outcome = effect.result()
    closing.result()

    assert waited
    assert outcome == Accepted("late proof", "run")
    assert open_journal().effect("k", run=unused(), reconcile=unused()) == Accepted("late proof", "run")


def test_without_create_a_missing_journal_is_not_made(path: Path) -> None:
    """`create=False` where nothing is: `FileNotFoundError`, and still nothing is there."""
    with pytest.raises(FileNotFoundError):
        journal.open(path, create=False)

    assert not path.exists()


def test_without_create_an_empty_directory_stays_empty(path: Path) -> None:
    """`create=False` in an empty directory: `FileNotFoundError`, and it stays empty."""
    path.mkdir()

    with pytest.raises(FileNotFoundError):
        journal.open(path, create=False)

    assert list(path.iterdir()) == []


def test_empty_directory_becomes_a_journal(open_journal: Callable[..., Journal], path: Path) -> None:
    """`create=True` on an empty directory makes the journal there."""
    path.mkdir()

    assert open_journal().append("s", 1, op_id="1").position == 1


def test_without_create_an_existing_journal_opens(open_journal: Callable[..., Journal]) -> None:
    """`create=False` opens what is there."""
    j = open_journal()
    j.append("s", 1, op_id="1")
    j.close()

    assert open_journal(create=False).head() == 1


def test_missing_parent_is_told(path: Path) -> None:
    """The directory of a journal is made, its parents are not."""
    with pytest.raises(FileNotFoundError):
        journal.open(path / "below" / "deeper")

    assert not path.exists()


def test_file_is_no_journal(path: Path) -> None:
    """A path that is a file is refused and left as it is."""
    path.write_bytes(b"something else")

    with pytest.raises((OSError, UnsupportedFormatError)):
        journal.open(path)

    assert path.read_bytes() == b"something else"


def test_files_are_private_to_the_user(j: Journal, path: Path) -> None:
    """No file of a journal can be read by anybody else."""
    accept(j, "k")

    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.rglob("*") if file.is_file()}

    assert modes
    assert {name: mode for name, mode in modes.items() if mode & 0o077} == {}


def test_files_are_private_whatever_the_umask(open_journal: Callable[..., Journal], path: Path) -> None:
    """A process that lets everybody read its files does not let them read the journal."""
    before = os.umask(0)
    try:
        j = open_journal()
        accept(j, "k")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.rglob("*") if file.is_file()}
    finally:
        os.umask(before)

    assert {name: mode for name, mode in modes.items() if mode & 0o077} == {}


def test_relative_path_is_the_one_at_the_opening(
    open_journal: Callable[..., Journal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that changes its directory goes on with the same journal, and may not open it twice."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    j = open_journal(Path("journal"))
    j.append("s", 1, op_id="1")
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert j.append("s", 2, op_id="2").position == 2
    assert accept(j, "k") == Accepted("proof", "run")
    with pytest.raises(JournalLockedError):
        journal.open(tmp_path / "journal")
    j.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert open_journal(tmp_path / "journal").head() == 4


def test_many_threads_open_it_once(open_journal: Callable[..., Journal], path: Path) -> None:
    """Of eight threads that open one path at once, also one where nothing is yet, one gets it."""

    def work() -> Journal | None:
        try:
            return journal.open(path)
        except JournalLockedError:
            return None

    handles = [handle for handle in (call.result() for call in at_once(8, work)) if handle is not None]

    assert len(handles) == 1
    assert handles[0].append("s", 1, op_id="1").position == 1
    handles[0].close()
    assert open_journal().head() == 1


def test_many_readers_at_once(j: Journal) -> None:
    """Hundreds of iterators in the middle of their reading keep nobody from anything."""
    j.append_all("s", [(str(index), index) for index in range(3)])
    readers = [iter(j.read()) for _ in range(500)]
    first = [next(reader).operation for reader in readers]
    j.append("s", 3, op_id="3")

    assert first == [0] * 500
    assert all(next(reader).operation == 1 for reader in readers)
    assert accept(j, "k") == Accepted("proof", "run")


async def _coroutine(*_: object) -> None:
    raise AssertionError("a coroutine function must not be called")


@pytest.mark.parametrize("function", [_coroutine, functools.partial(_coroutine, 1)], ids=["plain", "partial"])
@pytest.mark.parametrize("given", ["run", "reconcile", "run_effect", "step", "recover"])
def test_coroutine_function_is_refused_before_anything_is_written(
    path: Path, given: str, function: Callable[..., Any]
) -> None:
    """The synchronous journal takes no coroutine function, and says so before it writes or calls."""
    j = journal.open(path)
    j.append("s", 1, op_id="1")
    run = unused()
    calls: dict[str, Callable[[], Any]] = {
        "run": lambda: j.effect("k", run=function, reconcile=run),
        "reconcile": lambda: j.effect("k", run=run, reconcile=function),
        "run_effect": lambda: j.run_effect("k", function),
        "step": lambda: j.step("k", function),
        "recover": lambda: j.recover(0, intents=lambda _: [Intent("k", function)]),
    }

    with pytest.raises(TypeError):
        calls[given]()

    assert run.count == 0
    assert j.head() == 1
    assert j.record("k") is None


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_open_journal_is_neither_pickled_nor_copied(path: Path, duplicate: Callable[[Any], Any]) -> None:
    """Handed to another process it is refused with what to do instead, for either face."""

    async def open_async() -> None:
        async with journal.open_async(path) as a:
            with pytest.raises(TypeError, match="open it where it is used"):
                duplicate(a)

    with journal.open(path) as j, pytest.raises(TypeError, match="open it where it is used"):
        duplicate(j)
    asyncio.run(open_async())


def test_answers_are_frozen(j: Journal) -> None:
    """Every value that the API returns is immutable."""
    c = j.append("s", 1, op_id="1")
    outcome = accept(j, "k")
    values = [c, outcome, j.record("k"), j.history("k")[0], j.stats()]

    for value in values:
        name = type(value).__struct_fields__[0] if hasattr(type(value), "__struct_fields__") else "position"
        with pytest.raises(AttributeError):
            setattr(value, name, None)


def test_wait_timeout_does_not_bound_a_run_in_this_process(open_journal: Callable[..., Journal]) -> None:
    """`wait_timeout` is for what other processes do: a caller that shares a run here waits for its end."""
    j = open_journal(wait_timeout=0.05)
    gate = Gate()
    first = Call(lambda: j.effect("k", run=gate, reconcile=unused()))
    gate.wait_until_entered()
    second = Call(lambda: j.effect("k", run=unused(), reconcile=unused()))
    second.wait_until_it_waits()
    joined = not second.is_done
    gate.open()

    assert joined
    assert first.result() == second.result() == Accepted("proof", "run")


def test_journal_is_shared_with_other_processes(j: Journal, start_peer: Callable[..., Peer]) -> None:
    """Another process has the journal open at the same time, for everything."""
    peer = start_peer("write")
    peer.hear("opened")
    peer.tell("theirs")
    theirs = peer.hear("written")["position"]
    mine = j.append("mine", "mine", op_id="1").position

    assert (theirs, mine) == (1, 2)
    assert [c.operation for c in j.read()] == ["theirs", "mine"]
    assert j.cursor("theirs") == 1
    peer.finish()


def test_refusing_to_be_recreated_keeps_the_error_types_apart(j: Journal) -> None:
    """`NotPerformed` is raised by the application's code, and is not what the journal raises for it."""
    with pytest.raises(EffectFailedError) as caught:
        j.effect("k", run=lambda: (_ for _ in ()).throw(NotPerformed("why")), reconcile=unused())

    assert not isinstance(caught.value, NotPerformed)


def test_open_intent_survives_closing(open_journal: Callable[..., Journal]) -> None:
    """An intent without outcome is still there after reopening, and is reconciled, not run."""
    j = open_journal()
    leave_open(j, "k")
    j.close()
    again = open_journal()

    outcome = again.effect("k", run=unused(), reconcile=lambda _: "found")

    assert outcome == Accepted("found", "reconcile")


@pytest.mark.parametrize("error", [Boom("500"), NotPerformed("refused")])
@pytest.mark.parametrize("method", ["effect", "run_effect", "step", "append"])
def test_handle_that_was_dropped_is_closed_at_once_after_an_error_too(
    path: Path, method: str, error: Exception
) -> None:
    """What was raised leads to the call, and must not lead back to itself: nobody has to wait for the collector."""

    def run() -> Any:
        raise error

    def use() -> None:
        j = journal.open(path)
        calls: dict[str, Callable[[], Any]] = {
            "effect": lambda: j.effect("k", run=run, reconcile=unused()),
            "run_effect": lambda: j.run_effect("k", run),
            "step": lambda: j.step("k", run),
            "append": lambda: j.append("s", 1, op_id="1", expected=5),
        }
        with contextlib.suppress(Boom, NotPerformed, JournalError):
            calls[method]()

    gc.collect()
    gc.disable()
    try:
        use()
        error.__traceback__ = None
        journal.open(path).close()
    finally:
        gc.enable()
