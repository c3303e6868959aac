"""`journal/_core/texts.py`: what an exception is called where it is kept."""

from __future__ import annotations

import pytest

from journal._core.requests import CutOffError
from journal._core.texts import error_text
from journal.options import TEXT_CHARS_MAX
from tests.unit.support import Boom


class Loud(str):
    """A text of a user's own class."""

    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("not again")


class Silent(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Odd(Exception):
    """An error whose text is of a user's own class."""

    def __str__(self) -> str:
        return Loud("odd")


@pytest.mark.parametrize(
    "error, text",
    [
        (Boom("500"), "Boom: 500"),
        (Boom(), "Boom"),
        (KeyError("k"), "KeyError: 'k'"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (CutOffError(GeneratorExit("gone")), "GeneratorExit: gone"),
        (Boom("a\ud800"), "Boom: a\\ud800"),
        (Silent(), "Silent: (its text cannot be had)"),
        (Odd(), "Odd: odd"),
    ],
)
def test_error_is_kept_as_type_and_text(error: BaseException, text: str) -> None:
    """Whatever it is, and whatever it does when it is asked, it can be written."""
    kept = error_text(error)

    assert kept == text
    assert type(kept) is str
    assert kept.encode()


def test_text_is_bounded() -> None:
    """A recipient may answer with a whole page."""
    assert error_text(Boom("a" * 10_000)) == "Boom: " + "a" * (TEXT_CHARS_MAX - 6)
