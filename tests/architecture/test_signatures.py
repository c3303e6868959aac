"""The two faces have one shape: what `Journal` has, `AsyncJournal` has, with the same parameters."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import journal
from journal import AsyncJournal, Journal

ITERATORS = {"effects", "read", "verify"}
METHODS = sorted(name for name, _ in inspect.getmembers(Journal, inspect.isfunction) if not name.startswith("_"))
PROPERTIES = sorted(name for name, _ in inspect.getmembers(Journal, lambda member: isinstance(member, property)))


def shape_of(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults of a function's parameters."""
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", METHODS)
def test_method_has_the_same_parameters(name: str) -> None:
    """Names, kinds and defaults: a call can be moved from one face to the other."""
    assert shape_of(getattr(AsyncJournal, name)) == shape_of(getattr(Journal, name))


def test_opening_has_the_same_parameters() -> None:
    """And the same defaults."""
    assert shape_of(journal.open_async) == shape_of(journal.open)


@pytest.mark.parametrize("name", METHODS)
def test_method_is_awaited_or_an_async_iterator(name: str) -> None:
    """A coroutine function, or a plain one that checks its arguments at the call and gives an async iterator."""
    method = getattr(AsyncJournal, name)

    assert inspect.iscoroutinefunction(method) == (name not in ITERATORS)
    assert not inspect.isasyncgenfunction(method)


def test_face_for_loops_has_no_method_of_its_own() -> None:
    """But for `sync`, the way to the other one."""
    public = {name for name in dir(AsyncJournal) if not name.startswith("_")}

    # `aclose` is what `contextlib.aclosing` calls.
    assert public == {*METHODS, *PROPERTIES, "sync", "aclose"}
    assert {"path", "journal_id"} <= set(PROPERTIES)


@pytest.mark.parametrize("name", METHODS)
def test_docstring_of_a_method_points_to_the_other_face(name: str) -> None:
    """Nothing is described twice: a line, and where the loop brings something with it, that."""
    assert (inspect.getdoc(getattr(AsyncJournal, name)) or "").startswith(f"As `Journal.{name}`, ")


def test_docstring_of_opening_points_to_the_other_one() -> None:
    """How it is awaited is all that is new."""
    assert (inspect.getdoc(journal.open_async) or "").startswith("As `journal.open`, awaited: ")


@pytest.mark.parametrize("name", ["path", "journal_id"])
def test_property_is_described_alike(name: str) -> None:
    """It waits for nothing on either face."""
    assert inspect.getdoc(getattr(AsyncJournal, name)) == inspect.getdoc(getattr(Journal, name))
