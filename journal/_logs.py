"""What the journal says to a log: past-tense events, after the commit, by the caller's thread.

Without a `logger` events go to the standard library's logger `journal` through structlog, with their facts in the
message and as `extra`; an application that configured nothing sees warnings only. Payloads and proofs are never
logged. A logger that raises breaks nothing: an effect must not fail or run again over a full log disk.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import MutableMapping
from typing import Any, Final

from journal._core.keys import key_of, key_text
from journal.records import CompactionRecord, EffectEntry, LogRecord, OperationRecord, Phase, ResetRecord, StepRecord

_STANDARD: Final = logging.getLogger("journal")

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_EFFECT_EVENTS: Final = {
    Phase.INTENT: ("info", "effect_intended"),
    Phase.ACCEPTED: ("info", "effect_accepted"),
    Phase.UNCERTAIN: ("warning", "effect_uncertain"),
    Phase.FAILED: ("warning", "effect_failed"),
    Phase.RELEASED: ("warning", "effect_unresolved"),
    Phase.CLEARED: ("info", "effect_cleared"),
}


def check_logger(logger: Any) -> None:
    """Refuse a logger that could say nothing.

    Raises:
        TypeError: it lacks a method.
    """
    missing = [level for level in _LEVELS if not callable(getattr(logger, level, None))]
    if logger is not None and missing:
        raise TypeError(f"logger must have the methods {', '.join(_LEVELS)}; {logger!r} has no {', '.join(missing)}")


class Log:
    """One handle's log."""

    def __init__(self, logger: Any, journal_id: str) -> None:
        logger = _STANDARD if logger is None else logger
        self._standard = logger if isinstance(logger, logging.Logger) else None
        self._logger = logger
        self._journal_id = journal_id

    def emit(self, level: str, event: str, **facts: Any) -> None:
        """Say one thing; facts that are `None` are left out."""
        if self._standard is not None and not self._standard.isEnabledFor(_LEVELS[level]):
            return
        known = {name: value for name, value in facts.items() if value is not None}
        if isinstance(known.get("key"), tuple):
            known["key"] = key_text(known["key"])
        with contextlib.suppress(Exception):
            logger = self._logger if self._standard is None else _structlog_over(self._standard)
            getattr(logger, level)(event, journal_id=self._journal_id, **known)

    def committed(self, position: int, record: LogRecord, elapsed_ms: float | None) -> None:
        """Say that a record was committed."""
        level, event = _EFFECT_EVENTS[record.phase] if isinstance(record, EffectEntry) else ("info", "")
        if self._standard is not None and not self._standard.isEnabledFor(_LEVELS[level]):
            return  # the default costs next to nothing
        if isinstance(record, EffectEntry):
            self.emit(
                level,
                event,
                position=position,
                key=key_of(record.key),
                attempt=record.attempts,
                via=None if record.via is None else record.via.word,
                reason=record.reason,
                error=record.error,
                elapsed_ms=elapsed_ms,
            )
        elif isinstance(record, OperationRecord):
            self.emit(
                "info",
                "operation_committed",
                position=position,
                stream=record.stream,
                sequence=record.sequence,
                op_id=record.op_id,
                actor=record.actor,
            )
        elif isinstance(record, CompactionRecord):
            self.emit("info", "stream_compacted", position=position, stream=record.stream, floor=record.through)
        elif isinstance(record, ResetRecord):
            self.emit("info", "stream_reset", position=position, stream=record.stream, epoch=record.epoch)
        elif isinstance(record, StepRecord):
            self.emit("info", "step_recorded", position=position, key=key_of(record.key), elapsed_ms=elapsed_ms)


@functools.cache
def _structlog_over(standard: logging.Logger) -> Any:
    """Structlog over a logger of the standard library, whatever the application configured of structlog."""
    import structlog  # noqa: PLC0415 - half of what importing the journal would cost, and most processes say nothing

    return structlog.wrap_logger(standard, processors=[_to_standard], wrapper_class=structlog.stdlib.BoundLogger)


def _to_standard(_: Any, __: str, facts: MutableMapping[str, Any]) -> tuple[tuple[str, str], dict[str, Any]]:
    text = " ".join([facts.pop("event"), *(f"{name}={value!r}" for name, value in facts.items())])
    # The text is an argument of its own: a % in a key is no format.
    return ("%s", text), {"extra": facts}
