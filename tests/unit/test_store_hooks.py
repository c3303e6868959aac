"""`journal/_storage/store.py`: what hooks raise within a shared commit, and what a commit remembers of states."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from journal._core.requests import RunRaisedError, Transaction
from journal._core.states import StateAt
from journal._storage.store import Store
from journal.records import StepRecord
from tests.unit.support import open_store


class Stop(BaseException):
    """No `Exception`."""


@pytest.fixture
def remembered() -> list[dict[str, StateAt]]:
    return []


@pytest.fixture
def store(tmp_path: Path, remembered: list[dict[str, StateAt]]) -> Iterator[Store]:
    opened = open_store(tmp_path / "journal", remember=remembered.append)
    yield opened
    opened.close()


def putting(name: str, *raised: BaseException | None) -> Callable[[Transaction], int]:
    """A decision that raises one after the other, each time that it is asked, and then appends."""
    todo = list(raised)

    def decide(txn: Transaction) -> int:
        error = todo.pop(0) if todo else None
        if isinstance(error, Exception):
            raise error
        if error is not None:
            raise RunRaisedError(error) from error
        txn.states[name] = StateAt(1, txn.head() + 1, txn.head() + 1, 0, b"1")
        return txn.append(StepRecord(name.encode(), txn.at, b"1"))

    return decide


def always(error: BaseException) -> Callable[[Transaction], Any]:
    """A decision of which a hook raises whenever it is asked."""

    def decide(_: Transaction) -> Any:
        raise RunRaisedError(error) from error

    return decide


def commit_all(store: Store, *decisions: Callable[[Transaction], Any]) -> list[Any]:
    """Commits them together; what each entry came to."""
    entries = [store.entry(decide) for decide in decisions]
    try:
        store.group.commit_all(entries)
    finally:
        came_to = [entry.error or entry.answer for entry in entries]
    return came_to


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), Stop()])
@pytest.mark.parametrize("is_main", [True, False])
def test_what_a_hook_raises_is_its_callers_alone(store: Store, error: BaseException, is_main: bool) -> None:
    """Not the one's who commits for it; the others are committed."""
    came_to: list[Any] = []

    def work() -> None:
        came_to.extend(commit_all(store, putting("a"), always(error), putting("b")))

    if is_main:
        work()
    else:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert [came_to[0], came_to[1].error, came_to[2]] == [1, error, 2]
    assert store.read(lambda view: view.head()) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), Stop()])
def test_interrupt_that_comes_in_a_hook_is_raised_after_the_flush(store: Store, error: BaseException) -> None:
    """In the main thread it may be a signal's: the hook, asked again, does not raise it."""
    with pytest.raises(type(error)) as caught:
        commit_all(store, putting("a"), putting("b", error), putting("c"))

    assert caught.value is error
    assert store.read(lambda view: view.head()) == 3
    assert commit_all(store, putting("d")) == [4]


@pytest.mark.parametrize("second", [ValueError("no"), Stop()])
def test_interrupt_is_raised_where_the_hook_refuses_then(store: Store, second: BaseException) -> None:
    """What it refuses is told to its caller."""
    first = KeyboardInterrupt()
    entries = [store.entry(putting("a")), store.entry(putting("b", first, second))]
    with pytest.raises(KeyboardInterrupt):
        store.group.commit_all(entries)

    assert store.read(lambda view: view.head()) == 1
    error = entries[1].error
    assert (error.error if isinstance(error, RunRaisedError) else error) is second


def test_interrupt_is_raised_where_another_decision_spoils_the_commit(store: Store) -> None:
    """Those that are not decided then are the next leader's; here they are given up with their call."""

    def spoil(txn: Transaction) -> None:
        txn.append(StepRecord(b"spoilt", txn.at, b"1"))
        raise ValueError("too late")

    with pytest.raises(KeyboardInterrupt):
        commit_all(store, putting("a", KeyboardInterrupt()), spoil)

    assert store.read(lambda view: view.head()) == 0
    assert commit_all(store, putting("b")) == [1]


def test_states_are_remembered_when_they_are_durable(store: Store, remembered: list[dict[str, StateAt]]) -> None:
    """Those of a whole commit at once; of one that is retried, only those of the try that landed."""

    def spoil(txn: Transaction) -> None:
        assert set(txn.states) == {"a"}
        txn.states["spoilt"] = StateAt(1, 9, 9, 0, b"1")
        txn.append(StepRecord(b"spoilt", txn.at, b"1"))
        raise ValueError("too late")

    commit_all(store, putting("a"), spoil, putting("b"))
    commit_all(store, putting("c"))

    assert [sorted(states) for states in remembered] == [["a", "b"], ["c"]]
