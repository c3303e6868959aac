"""The page of crash cases says what the tests show."""

from tests.crash.page import PAGE, render, split


def test_page_is_printed_from_the_tables() -> None:
    """docs/internals/crashes.md is in step with the tables; `python -m tests.crash.page` prints it anew."""
    _, printed, _ = split(PAGE.read_text(encoding="utf-8"))

    assert printed == f"\n{render()}\n"
