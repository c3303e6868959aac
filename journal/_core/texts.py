"""What an exception is called where it is kept: in records, messages and logs."""

from __future__ import annotations

from journal._core.requests import CutOffError
from journal.options import TEXT_CHARS_MAX


def error_text(error: BaseException) -> str:
    """An exception as `Type: text`, cut to `TEXT_CHARS_MAX`; whatever the exception does when it is asked for it."""
    if isinstance(error, CutOffError):
        error = error.error
    try:
        text = str.__str__(str(error))
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        text = "(its text cannot be had)"
    name = type(error).__name__
    whole = f"{name}: {text}" if text else name
    return whole[:TEXT_CHARS_MAX].encode("utf-8", "backslashreplace").decode()
