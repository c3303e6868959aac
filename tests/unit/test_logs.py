"""`journal/_logs.py`: what the journal says to a log, and that nothing of that can hurt."""

from __future__ import annotations

import logging
from typing import Any, Final

import pytest

from journal._core.keys import key_form
from journal._logs import Log
from journal.records import (
    CompactionRecord,
    EffectEntry,
    Guarantee,
    LogRecord,
    OperationRecord,
    Phase,
    ResetRecord,
    StepRecord,
    Via,
)
from tests.unit.support import OWN, START, Boom

OPERATION: Final = OperationRecord("orders", 1, 7, "order-7", "ann", START, b"h" * 16, 9)
STEP: Final = StepRecord(key_form(("plan", 1)), START, b'"the payload"')


def event(phase: Phase, **facts: Any) -> EffectEntry:
    """An event of an effect with everything that must not be told."""
    given: dict[str, Any] = {
        "phase": phase,
        "key": key_form("mail"),
        "at": START,
        "previous": 0,
        "first_at": START,
        "attempts": 2,
        "guarantee": Guarantee.AT_MOST_ONCE,
        "owner": OWN,
        "request": b"the request!!!!!",
        "proof": b'"the proof"',
    }
    return EffectEntry(**(given | facts))


class Lines:
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def debug(self, name: str, **facts: Any) -> None:
        self.lines.append(("debug", name, facts))

    def info(self, name: str, **facts: Any) -> None:
        self.lines.append(("info", name, facts))

    def warning(self, name: str, **facts: Any) -> None:
        self.lines.append(("warning", name, facts))

    def error(self, name: str, **facts: Any) -> None:
        self.lines.append(("error", name, facts))


def told(record: LogRecord, elapsed_ms: float | None = None) -> tuple[str, str, dict[str, Any]]:
    """The one line about a record at position 9."""
    lines = Lines()
    Log(lines, "an id").committed(9, record, elapsed_ms)
    (line,) = lines.lines
    return line


@pytest.mark.parametrize(
    "phase, level, name",
    [
        (Phase.INTENT, "info", "effect_intended"),
        (Phase.ACCEPTED, "info", "effect_accepted"),
        (Phase.UNCERTAIN, "warning", "effect_uncertain"),
        (Phase.FAILED, "warning", "effect_failed"),
        (Phase.RELEASED, "warning", "effect_unresolved"),
        (Phase.CLEARED, "info", "effect_cleared"),
    ],
)
def test_each_event_of_an_effect_has_its_line(phase: Phase, level: str, name: str) -> None:
    """Past tense, at the level of what it means for whoever reads logs."""
    line = told(event(phase, via=Via.RUN, reason="why", error="Boom: no"), 12.5)

    assert line == (
        level,
        name,
        {
            "journal_id": "an id",
            "position": 9,
            "key": "mail",
            "attempt": 2,
            "via": "run",
            "reason": "why",
            "error": "Boom: no",
            "elapsed_ms": 12.5,
        },
    )


def test_operation_has_its_line() -> None:
    """With what identifies it."""
    assert told(OPERATION) == (
        "info",
        "operation_committed",
        {
            "journal_id": "an id",
            "position": 9,
            "stream": "orders",
            "sequence": 7,
            "op_id": "order-7",
            "actor": "ann",
        },
    )


def test_compaction_and_reset_have_their_lines() -> None:
    """With the floor that `floor` answers, and the new epoch."""
    facts = {"journal_id": "an id", "position": 9, "stream": "orders"}

    assert told(CompactionRecord("orders", 1, 5, START, 7)) == ("info", "stream_compacted", {**facts, "floor": 7})
    assert told(ResetRecord("orders", 2, START)) == ("info", "stream_reset", {**facts, "epoch": 2})


def test_step_has_its_line() -> None:
    """A tuple key as its JSON array."""
    facts = {"journal_id": "an id", "position": 9, "key": '["plan",1]', "elapsed_ms": 3.0}

    assert told(STEP, 3.0) == ("info", "step_recorded", facts)


@pytest.mark.parametrize("record", [OPERATION, STEP, *(event(phase) for phase in Phase)])
def test_payloads_proofs_and_requests_are_never_told(record: LogRecord) -> None:
    """They may hold anything."""
    text = repr(told(record))

    assert [secret for secret in ("the payload", "the proof", "the request", "hhhh") if secret in text] == []


def test_facts_that_are_not_known_are_left_out() -> None:
    """A line holds no nulls; what is 0 or empty is known."""
    lines = Lines()

    Log(lines, "an id").emit("debug", "effect_reused", key=None, position=0, actor="", via=None)

    assert lines.lines == [("debug", "effect_reused", {"journal_id": "an id", "position": 0, "actor": ""})]


@pytest.mark.parametrize("key, text", [("a b", "a b"), (("a", 1), '["a",1]'), ('["a",1]', '["a",1]')])
def test_key_is_told_as_text(key: Any, text: str) -> None:
    """As shells take it."""
    lines = Lines()

    Log(lines, "an id").emit("info", "effect_reused", key=key)

    assert lines.lines[0][2]["key"] == text


class Failing:
    """A logger whose disk is full."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def info(self, name: str, **facts: Any) -> None:
        raise self._error


@pytest.mark.parametrize("logger", [Failing(Boom("full")), object()])
def test_logger_that_raises_breaks_nothing(logger: Any) -> None:
    """Nor one that lacks a level: an effect must not fail or run again over that."""
    Log(logger, "an id").committed(9, OPERATION, None)


def test_interrupt_of_a_logger_goes_on() -> None:
    """It is the user's, not the logger's."""
    with pytest.raises(KeyboardInterrupt):
        Log(Failing(KeyboardInterrupt()), "an id").committed(9, OPERATION, None)


# Without a logger


@pytest.fixture
def standard() -> logging.Logger:
    """The standard library's logger of the journal."""
    return logging.getLogger("journal")


def test_events_go_to_the_standard_logger_at_their_level(caplog: pytest.LogCaptureFixture) -> None:
    """The facts in the text and as `extra`."""
    caplog.set_level(logging.DEBUG, "journal")
    log = Log(None, "an id")

    log.emit("debug", "effect_reused", key=("a", 1), position=3)
    log.committed(9, event(Phase.UNCERTAIN, via=Via.RECONCILE), None)
    log.emit("error", "commit_failed", reason="EIO")

    first, second, third = caplog.records
    assert (first.levelno, first.name) == (logging.DEBUG, "journal")
    assert first.getMessage() == """effect_reused journal_id='an id' key='["a",1]' position=3"""
    assert (vars(first)["key"], vars(first)["position"]) == ('["a",1]', 3)
    assert (second.levelno, third.levelno) == (logging.WARNING, logging.ERROR)
    assert second.getMessage().startswith("effect_uncertain journal_id='an id' position=9 key='mail' attempt=2")


@pytest.mark.parametrize("key", ["100%", "%s %d", "%(name)s", "{0}"])
def test_key_is_no_format(caplog: pytest.LogCaptureFixture, key: str) -> None:
    """Whatever it holds comes out as it is."""
    caplog.set_level(logging.INFO, "journal")

    Log(None, "an id").emit("info", "effect_reused", key=key)

    assert caplog.records[0].getMessage() == f"effect_reused journal_id='an id' key={key!r}"


def test_level_that_nobody_hears_costs_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, standard: logging.Logger
) -> None:
    """At its default nothing below a warning is even put together."""
    caplog.set_level(logging.WARNING, "journal")
    log = Log(None, "an id")
    monkeypatch.setattr(log, "_logger", None)

    log.committed(9, OPERATION, None)
    log.committed(9, event(Phase.INTENT), None)
    log.committed(9, STEP, None)
    log.emit("debug", "effect_reused", position=9)

    assert caplog.records == []
    assert standard.isEnabledFor(logging.WARNING)


def test_names_of_facts_and_of_log_records_do_not_clash(caplog: pytest.LogCaptureFixture) -> None:
    """`extra` may not overwrite what a record of the standard library has: each of our events must get through."""
    caplog.set_level(logging.DEBUG, "journal")
    log = Log(None, "an id")

    records: list[LogRecord] = [event(phase, via=Via.RUN, reason="r", error="e") for phase in Phase]
    for record in (OPERATION, STEP, *records):
        log.committed(9, record, 1.0)

    assert len(caplog.records) == 2 + len(Phase)
