"""The names that users may lean on: there, documented, and no others."""

import inspect
import re
from typing import Any

import pytest

import journal
import recovery
from tests.conftest import ROOT

ERRORS = {
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
}
VALUES = {
    "Accepted",
    "AlreadyCommitted",
    "Committed",
    "Cursor",
    "Found",
    "Intent",
    "Loaded",
    "NotPerformed",
    "Reducer",
    "Settled",
    "Stop",
    "Uncertain",
}
METHODS = {
    "append",
    "append_all",
    "backup",
    "clear_effect",
    "prune_effects",
    "close",
    "confirm_restored",
    "cursor",
    "effect",
    "effects",
    "head",
    "history",
    "load",
    "read",
    "rebuild",
    "record",
    "recover",
    "resolve",
    "run_effect",
    "save_cursor",
    "stats",
    "step",
    "streams",
    "unfinished",
    "vacuum",
    "verify",
    "wait",
}
PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md")}
DOCUMENTED = {name for text in PAGES.values() for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)}
PUBLIC = [f"journal.{name}" for name in sorted(journal.__all__)] + [
    f"recovery.{name}" for name in sorted(recovery.__all__)
]


def test_contract_names_are_there() -> None:
    """Nothing that the contract names has gone or been renamed."""
    assert ERRORS | VALUES | {"open", "open_async", "restore", "Journal", "AsyncJournal"} <= set(journal.__all__)
    assert {name for name in METHODS if not callable(getattr(journal.Journal, name, None))} == set()


def test_every_public_name_is_in_the_reference() -> None:
    """A name without underscore is a promise, and a promise is written down."""
    assert {f"journal.{name}" for name in journal.__all__} - DOCUMENTED == set()


def test_reference_names_nothing_else() -> None:
    """The reference documents what is exported, under the name by which users import it."""
    names = {name for name in DOCUMENTED if name.startswith("journal.")}

    assert names - {f"journal.{name}" for name in journal.__all__} - journal_methods() == set()


def journal_methods() -> set[str]:
    """The methods that a reference page may show on their own."""
    return {f"journal.Journal.{name}" for name in dir(journal.Journal) if not name.startswith("_")}


@pytest.mark.parametrize("path", PUBLIC)
def test_every_public_name_says_what_it_gives(path: str) -> None:
    """Public classes, functions and methods have a docstring of their own."""
    package, name = path.split(".")
    value: Any = getattr({"journal": journal, "recovery": recovery}[package], name)
    silent = (
        [
            f"{path}.{member}"
            for member, function in vars(value).items()
            if not member.startswith("_") and (inspect.isfunction(function) or isinstance(function, property))
            if not inspect.getdoc(function)
        ]
        if inspect.isclass(value)
        else []
    )

    assert not (inspect.isclass(value) or inspect.isfunction(value)) or value.__doc__
    assert silent == []


def test_recovery_and_journal_share_their_words() -> None:
    """What recovery defines is the same object wherever it is imported from."""
    assert journal.Intent is recovery.Intent
    assert journal.Settled is recovery.Settled
    assert journal.Stop is recovery.Stop


def test_errors_are_siblings() -> None:
    """No named error is another's parent, so that catching one never catches another."""
    classes = [getattr(journal, name) for name in ERRORS - {"JournalError"}]

    assert [
        (one.__name__, other.__name__)
        for one in classes
        for other in classes
        if one is not other and issubclass(one, other)
    ] == []
    assert [error.__name__ for error in classes if not issubclass(error, journal.JournalError)] == []
