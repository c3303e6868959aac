"""Errors: one tree, facts as attributes, pickling, and messages that say what to do next."""

import copy
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import journal
from journal import Journal, JournalError, NotPerformed

from .support import Boom, Call, Gate, Peer, Stub, accept, leave_failed, leave_open, unused

NAMED = [
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


def test_all_errors_are_in_one_tree() -> None:
    """Each is a `JournalError`, and that is an `Exception`."""
    assert issubclass(JournalError, Exception)
    assert [name for name in NAMED if not issubclass(getattr(journal, name), JournalError)] == []


def test_no_named_error_is_anothers_parent() -> None:
    """Catching one never catches another."""
    classes = [getattr(journal, name) for name in NAMED]

    assert [(a, b) for a in classes for b in classes if a is not b and issubclass(a, b)] == []


def test_not_performed_is_an_exception_of_its_own() -> None:
    """`NotPerformed` can be raised by any code and is none of the journal's named errors."""
    assert issubclass(NotPerformed, Exception)
    assert not issubclass(NotPerformed, tuple(getattr(journal, name) for name in NAMED))
    assert "why" in str(NotPerformed("why"))


def identity_conflict(j: Journal) -> None:
    j.append("orders-7", 1, op_id="op-1", actor="ann")
    j.append("orders-7", 2, op_id="op-1", actor="ann")


def sequence_conflict(j: Journal) -> None:
    j.append("orders-7", 1, op_id="op-1")
    j.append("orders-7", 2, op_id="op-2", expected=11)


def invalid_operation(j: Journal) -> None:
    j.append("orders-7", {"amounts": (1, 2)}, op_id="op-1")


def invalid_cursor(j: Journal) -> None:
    j.append("s", 1, op_id="1")
    j.read(after=4711)


def unresolved(j: Journal) -> None:
    j.effect(("mail", 7), run=Stub(Boom("boom")), reconcile=unused())


def failed(j: Journal) -> None:
    j.effect(("mail", 7), run=Stub(NotPerformed("refused")), reconcile=unused())


def not_retried(j: Journal) -> None:
    with pytest.raises(Boom):
        j.run_effect(("mail", 7), Stub(Boom("boom")))
    j.run_effect(("mail", 7), unused(), retry_failed=False)


def conflict_of_request(j: Journal) -> None:
    accept(j, ("mail", 7), request=1)
    accept(j, ("mail", 7), request=2)


def conflict_of_guarantee(j: Journal) -> None:
    accept(j, ("mail", 7))
    j.run_effect(("mail", 7), unused())


def conflict_of_position(j: Journal) -> None:
    leave_open(j, ("mail", 7))
    j.resolve(("mail", 7), journal.Uncertain(), expected_position=99, reason="r")


def in_flight(j: Journal) -> None:
    errors: list[BaseException] = []

    def inner() -> None:
        try:
            j.effect(("mail", 7), run=unused(), reconcile=unused())
        except JournalError as error:
            errors.append(error)

    j.effect(("mail", 7), run=inner, reconcile=unused())
    raise errors[0]


def closed(j: Journal) -> None:
    j.close()
    j.head()


RAISE: dict[str, tuple[Callable[[Journal], None], str, dict[str, Any], list[str]]] = {
    "identity": (
        identity_conflict,
        "IdentityConflictError",
        {"stream": "orders-7", "op_id": "op-1"},
        ["orders-7", "op-1"],
    ),
    "sequence": (
        sequence_conflict,
        "SequenceConflictError",
        {"stream": "orders-7", "sequence": 1, "expected": 11},
        ["orders-7", "1", "11"],
    ),
    "operation": (
        invalid_operation,
        "InvalidOperationError",
        {"stream": "orders-7", "op_id": "op-1"},
        ["amounts"],
    ),
    "cursor": (invalid_cursor, "InvalidCursorError", {"cursor": 4711, "head": 1}, ["4711", "1"]),
    "unresolved": (
        unresolved,
        "EffectUnresolvedError",
        {"key": ("mail", 7), "reason": "run-failed"},
        ["('mail', 7)", "run-failed"],
    ),
    "failed": (failed, "EffectFailedError", {"key": ("mail", 7)}, ["('mail', 7)"]),
    "not retried": (not_retried, "EffectFailedError", {"key": ("mail", 7)}, ["('mail', 7)"]),
    "request": (conflict_of_request, "EffectConflictError", {"key": ("mail", 7)}, ["('mail', 7)"]),
    "guarantee": (conflict_of_guarantee, "EffectConflictError", {"key": ("mail", 7)}, ["('mail', 7)"]),
    "position": (conflict_of_position, "EffectConflictError", {"key": ("mail", 7)}, ["('mail', 7)", "99"]),
    "in flight": (
        in_flight,
        "EffectInFlightError",
        {"key": ("mail", 7), "pid": os.getpid()},
        ["('mail', 7)", str(os.getpid())],
    ),
    "closed": (closed, "JournalClosedError", {}, []),
}


def raised(j: Journal, name: str) -> JournalError:
    """Gives the error of one of the ways to be refused."""
    with pytest.raises(JournalError) as caught:
        RAISE[name][0](j)
    return caught.value


@pytest.mark.parametrize("name", RAISE)
def test_error_carries_its_facts(j: Journal, name: str) -> None:
    """What the message says is there as attributes, typed as it was given."""
    _, type_name, facts, _ = RAISE[name]

    error = raised(j, name)

    assert type(error) is getattr(journal, type_name)
    assert {fact: getattr(error, fact) for fact in facts} == facts
    assert {fact: type(getattr(error, fact)) for fact in facts} == {fact: type(value) for fact, value in facts.items()}


@pytest.mark.parametrize("name", RAISE)
def test_message_names_the_values_and_the_next_step(j: Journal, name: str) -> None:
    """What happened, with the values, then what to do."""
    message = str(raised(j, name))

    assert [text for text in RAISE[name][3] if text not in message] == []
    happened, _, next_step = message.partition("; ")
    assert happened
    assert next_step


@pytest.mark.parametrize("name", ["unresolved", "failed", "not retried", "request", "guarantee", "position"])
def test_effect_errors_carry_the_record(j: Journal, name: str) -> None:
    """What is on record of the effect comes with the error."""
    error: Any = raised(j, name)

    assert error.record is not None
    assert error.record.key == ("mail", 7)
    assert error.record == j.record(("mail", 7))


@pytest.mark.parametrize("name", RAISE)
@pytest.mark.parametrize("way", ["pickle", "oldest pickle", "copy", "deepcopy"])
def test_error_survives_pickling(j: Journal, name: str, way: str) -> None:
    """An error that goes to another process arrives with its type, its message and its facts."""
    error = raised(j, name)
    ways: dict[str, Callable[[], Any]] = {
        "pickle": lambda: pickle.loads(pickle.dumps(error)),
        "oldest pickle": lambda: pickle.loads(pickle.dumps(error, protocol=2)),
        "copy": lambda: copy.copy(error),
        "deepcopy": lambda: copy.deepcopy(error),
    }

    again = ways[way]()

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert [fact for fact in RAISE[name][2] if getattr(again, fact) != getattr(error, fact)] == []
    assert getattr(again, "record", None) == getattr(error, "record", None)


def test_locked_error_names_the_path(j: Journal, path: Path) -> None:
    """Which path is open already, in message and attribute, also after pickling."""
    with pytest.raises(journal.JournalLockedError) as caught:
        journal.open(path)

    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert path.samefile(error.path)
        assert str(path) in str(error)


def test_closed_error_names_the_path(j: Journal, path: Path) -> None:
    """Which journal was closed."""
    assert str(path) in str(raised(j, "closed"))


def test_unsupported_format_error_names_the_path(path: Path) -> None:
    """Which directory is no journal, in message and attribute, also after pickling."""
    path.mkdir()
    (path / "notes.txt").write_text("something else")

    with pytest.raises(journal.UnsupportedFormatError) as caught:
        journal.open(path)

    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert path.samefile(error.path)
        assert str(path) in str(error)


def test_readonly_error_survives_pickling(open_journal: Callable[..., Journal]) -> None:
    """A refused write through a read-only handle arrives as such elsewhere."""
    open_journal().close()
    j = open_journal(readonly=True)
    with pytest.raises(journal.JournalReadonlyError) as caught:
        j.append("s", 1, op_id="1")

    again = pickle.loads(pickle.dumps(caught.value))

    assert (type(again), str(again)) == (journal.JournalReadonlyError, str(caught.value))


def test_in_flight_elsewhere_survives_pickling(
    open_journal: Callable[..., Journal], start_peer: Callable[..., Peer]
) -> None:
    """Key and pid of another process's effect arrive elsewhere, and stand in the message."""
    j = open_journal(wait_timeout=0.1)
    peer = start_peer("call", key="k", run=["running", "listen"])
    peer.hear("opened")
    peer.hear("running")
    with pytest.raises(journal.EffectInFlightError) as caught:
        accept(j, "k")

    again = pickle.loads(pickle.dumps(caught.value))

    assert (again.key, again.pid) == ("k", peer.pid)
    assert str(peer.pid) in str(again)


def test_causes_are_chained(j: Journal) -> None:
    """An unresolved effect is raised from what `run` raised, and joiners share the cause's text."""
    gate = Gate(Boom("the very cause"))
    owner = Call(lambda: j.effect("k", run=gate, reconcile=unused()))
    gate.wait_until_entered()
    gate.open()

    error = owner.error()
    assert isinstance(error.__cause__, Boom)
    assert "the very cause" in str(error.__cause__)


def test_failed_effects_say_why(j: Journal) -> None:
    """The reason that `NotPerformed` gave can be read in the error or its cause."""
    with pytest.raises(journal.EffectFailedError) as caught:
        j.effect("k", run=Stub(NotPerformed("connection refused")), reconcile=unused())

    assert "connection refused" in f"{caught.value} {caught.value.__cause__}"
    leave_failed(j, "k")
