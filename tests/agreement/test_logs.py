"""Logs: what is told to the application's logger, when, and that it never matters to an effect."""

import json
import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import journal
from journal import Accepted, EffectUnresolvedError, Intent, Journal

from .conftest import Facade
from .support import Boom, Stub, accept, leave_failed, leave_open, leave_uncertain, unused


class Line:
    """One call of a logger."""

    def __init__(self, level: str, event: str, values: dict[str, Any]) -> None:
        self.level, self.event, self.values = level, event, values
        self.thread = threading.get_ident()

    def __repr__(self) -> str:
        return f"{self.level} {self.event} {self.values}"


class Logger:
    """Anything with structlog's four methods; keeps what it is told, and may do something at each line."""

    def __init__(self, at_line: Callable[[Line], None] | None = None) -> None:
        self.lines: list[Line] = []
        self.at_line = at_line

    def _note(self, level: str, event: str, values: dict[str, Any]) -> None:
        line = Line(level, event, values)
        self.lines.append(line)
        if self.at_line is not None:
            self.at_line(line)

    def debug(self, event: str, **values: Any) -> None:
        self._note("debug", event, values)

    def info(self, event: str, **values: Any) -> None:
        self._note("info", event, values)

    def warning(self, event: str, **values: Any) -> None:
        self._note("warning", event, values)

    def error(self, event: str, **values: Any) -> None:
        self._note("error", event, values)

    def named(self, event: str) -> list[Line]:
        """Gives the lines of an event."""
        return [line for line in self.lines if line.event == event]

    def only(self, event: str) -> Line:
        """Gives the one line of an event."""
        (line,) = self.named(event)
        return line


@pytest.fixture
def logger() -> Logger:
    """The logger of `told`."""
    return Logger()


@pytest.fixture
def told(open_journal: Callable[..., Journal], logger: Logger) -> Journal:
    """A journal that tells `logger`."""
    return open_journal(logger=logger)


def test_append_is_told(told: Journal, logger: Logger) -> None:
    """`operation_committed` at info, with the position."""
    c = told.append("s", 1, op_id="1")

    line = logger.only("operation_committed")
    assert (line.level, line.values["position"]) == ("info", c.position)
    assert line.values["journal_id"]


def test_each_operation_of_a_call_is_told(told: Journal, logger: Logger) -> None:
    """Each record has its own line; a resend has none, for nothing was committed."""
    told.append_all("s", [("1", 1), ("2", 2)])
    told.append("s", 1, op_id="1")

    assert [line.values["position"] for line in logger.named("operation_committed")] == [1, 2]


def test_effect_is_told(told: Journal, logger: Logger) -> None:
    """`effect_intended` and `effect_accepted` at info, with position, key, attempt, and via and time taken."""
    accept(told, "k")

    intended, accepted = logger.only("effect_intended"), logger.only("effect_accepted")
    assert [line.level for line in (intended, accepted)] == ["info", "info"]
    assert [line.values["position"] for line in (intended, accepted)] == [1, 2]
    assert [line.values["key"] for line in (intended, accepted)] == ["k", "k"]
    assert intended.values["attempt"] == accepted.values["attempt"] == 1
    assert intended.values["journal_id"] == accepted.values["journal_id"]
    assert accepted.values["via"] == "run"
    assert accepted.values["elapsed_ms"] >= 0
    assert logger.lines.index(intended) < logger.lines.index(accepted)


def test_idempotent_effect_is_told(told: Journal, logger: Logger) -> None:
    """`run_effect` tells the same events as `effect`."""
    told.run_effect("k", lambda: 1)
    with pytest.raises(Boom):
        told.run_effect("f", Stub(Boom("boom")))

    assert [line.values["key"] for line in logger.named("effect_intended")] == ["k", "f"]
    assert logger.only("effect_accepted").values["position"] == 2
    assert (logger.only("effect_failed").level, logger.only("effect_failed").values["position"]) == ("warning", 4)


def test_reuse_is_told_at_debug(told: Journal, logger: Logger) -> None:
    """`effect_reused` at debug."""
    accept(told, "k")
    accept(told, "k")

    line = logger.only("effect_reused")
    assert (line.level, line.values["key"]) == ("debug", "k")


def test_failed_effect_is_told(told: Journal, logger: Logger) -> None:
    """`effect_failed` at warning, with the position of its record."""
    leave_failed(told, "k")

    line = logger.only("effect_failed")
    assert (line.level, line.values["key"], line.values["position"]) == ("warning", "k", 2)


def test_unresolved_effect_is_told(told: Journal, logger: Logger) -> None:
    """`effect_unresolved` at warning, for a run that raised as for a recipient that cannot be asked."""
    leave_open(told, "k")
    with pytest.raises(EffectUnresolvedError):
        told.effect("k", run=unused(), reconcile=Stub(Boom("down")))

    lines = logger.named("effect_unresolved")
    assert [(line.level, line.values["key"]) for line in lines] == [("warning", "k")] * 2


def test_uncertain_effect_is_told(told: Journal, logger: Logger) -> None:
    """`effect_uncertain` at warning, with the position of its record."""
    leave_uncertain(told, "k")

    line = logger.only("effect_uncertain")
    assert (line.level, line.values["key"], line.values["position"]) == ("warning", "k", told.head())


def test_reconciled_effect_is_told(told: Journal, logger: Logger) -> None:
    """`effect_accepted` says via `reconcile`."""
    leave_open(told, "k")
    told.effect("k", run=unused(), reconcile=Stub("m-1"))

    assert logger.only("effect_accepted").values["via"] == "reconcile"


def test_tuple_key_is_told_as_its_json_array(told: Journal, logger: Logger) -> None:
    """A tuple key is logged as its JSON array."""
    accept(told, ("a", 1))

    key = logger.only("effect_accepted").values["key"]
    assert (json.loads(key) if isinstance(key, str) else list(key)) == ["a", 1]


def test_settled_walk_is_told(told: Journal, logger: Logger) -> None:
    """`recovery_settled` when a walk came to its end."""
    told.append("s", 1, op_id="1")
    told.recover(0, intents=lambda _: [Intent("k", Stub(1))])

    assert len(logger.named("recovery_settled")) == 1
    assert logger.named("recovery_stopped") == []


def test_stopped_walk_is_told_at_warning(told: Journal, logger: Logger) -> None:
    """`recovery_stopped` at warning when it did not."""
    told.append("s", 1, op_id="1")
    told.recover(0, intents=lambda _: [Intent("k", Stub(Boom("boom")))])

    assert logger.only("recovery_stopped").level == "warning"


def test_every_effect_record_of_a_walk_is_told(told: Journal, logger: Logger) -> None:
    """Effects of a walk are told like direct ones, each record with its position."""
    told.append_all("s", [("1", 1), ("2", 2)])
    told.recover(0, intents=lambda c: [Intent(("k", c.op_id), Stub(1), unused())])

    assert [line.values["position"] for line in logger.named("effect_intended")] == [3, 5]
    assert [line.values["position"] for line in logger.named("effect_accepted")] == [4, 6]


def test_payloads_and_proofs_are_never_told(told: Journal, logger: Logger) -> None:
    """What operations, requests, proofs and results say stays out of the logs."""
    secret = "hunter2"
    told.append("s", {"card": secret}, op_id="1")
    accept(told, "k", {"proof": secret}, request={"body": secret})
    told.run_effect("r", lambda: secret, request=secret)
    told.step("st", lambda: secret)
    leave_open(told, "o")
    told.effect("o", run=unused(), reconcile=Stub(secret))
    accept(told, "k", request={"body": secret})
    told.recover(0, intents=lambda _: [Intent("k", unused(), unused())])

    assert logger.lines
    assert [line for line in logger.lines if secret in repr(line)] == []


def test_lines_are_told_after_their_commit(open_journal: Callable[..., Journal], facade: Facade) -> None:
    """When a line is told its record is there, and no transaction is open: the logger may use the journal.

    On a loop it may only look, since it cannot wait.
    """
    handle: list[Journal] = []
    early: list[Line] = []
    appended: list[int] = []

    def at_line(line: Line) -> None:
        if not handle:
            return
        if line.values.get("position", 0) > handle[0].head():
            early.append(line)
        if line.event.startswith("effect_") and can_wait:
            appended.append(handle[0].append("log", line.event, op_id=str(handle[0].head())).position)

    logger = Logger(at_line)
    j = open_journal(logger=logger, wait_timeout=10)
    can_wait = not facade.is_loop
    handle.append(j)
    accept(j, "k")
    leave_open(j, "o")
    leave_failed(j, "f")

    assert early == []
    assert len(appended) >= (6 if can_wait else 0)


def test_lines_are_told_by_the_callers_thread(told: Journal, logger: Logger, facade: Facade) -> None:
    """Nothing is told from a thread that the application does not know: of a loop's calls it is the loop's."""
    accept(told, "k")
    told.append("s", 1, op_id="1")
    leave_open(told, "o")
    told.recover(0, intents=lambda _: [Intent("n", Stub(1), unused())])

    assert {line.thread for line in logger.lines} == {facade.thread}


def fail(_: Line) -> None:
    """What a broken logger does."""
    raise OSError("log disk full")


def test_logger_that_raises_breaks_nothing(open_journal: Callable[..., Journal]) -> None:
    """Every call answers as with a logger that works, and nothing runs twice."""
    j = open_journal(logger=Logger(fail))
    run = Stub("m-1")

    assert j.append("s", 1, op_id="1").position == 1
    assert j.effect("k", run=run, reconcile=unused()) == Accepted("m-1", "run")
    assert j.effect("k", run=run, reconcile=unused()) == Accepted("m-1", "run")
    leave_open(j, "o")
    assert j.effect("o", run=unused(), reconcile=Stub("m-2")) == Accepted("m-2", "reconcile")
    leave_failed(j, "f")
    leave_uncertain(j, "u")
    assert j.run_effect("r", lambda: 1) == 1
    assert j.step("s", lambda: 2) == 2
    settled = j.recover(0, intents=lambda _: [Intent("n", run, unused())])
    assert (settled, settled.stopped) == (1, None)
    stopped = j.recover(0, intents=lambda _: [Intent("bad", Stub(Boom("no")), unused())])
    assert stopped.stopped is not None
    assert run.count == 2
    j.close()


def test_events_go_to_the_standard_logger_at_their_level(j: Journal, caplog: pytest.LogCaptureFixture) -> None:
    """With no logger given, events reach the standard library's logger `journal`."""
    caplog.set_level(logging.DEBUG, logger="journal")

    accept(j, "k")
    accept(j, "k")
    leave_failed(j, "f")

    levels = {(record.levelno, name) for record in caplog.records for name in EVENTS if name in record.getMessage()}
    assert {record.name.split(".")[0] for record in caplog.records} == {"journal"}
    assert levels >= {
        (logging.INFO, "effect_intended"),
        (logging.INFO, "effect_accepted"),
        (logging.DEBUG, "effect_reused"),
        (logging.WARNING, "effect_failed"),
    }


EVENTS = ["effect_intended", "effect_accepted", "effect_reused", "effect_failed"]


def run_program(path: Path, body: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that configures no logging, with a journal `j`."""
    root = Path(journal.__file__).parents[1]
    program = f"""
        import journal, logging
        from journal import EffectUnresolvedError
        with journal.open({str(path)!r}) as j:
{textwrap.indent(textwrap.dedent(body), " " * 12)}
    """
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=True,
        timeout=60,
    )


def test_application_that_configured_nothing_sees_nothing_of_what_went_well(path: Path) -> None:
    """Nothing on stdout or stderr for what was committed and reused."""
    done = run_program(
        path,
        """
        j.append("s", 1, op_id="1")
        j.effect("k", run=lambda: 1, reconcile=lambda s: None)
        j.effect("k", run=lambda: 1, reconcile=lambda s: None)
        j.recover(0, intents=lambda c: [])
        """,
    )

    assert (done.stdout, done.stderr) == ("", "")


def test_application_that_configured_nothing_sees_warnings_but_not_on_stdout(path: Path) -> None:
    """An unresolved effect is seen, with its key, on stderr only."""
    done = run_program(
        path,
        """
        def run():
            raise OSError("boom")
        try:
            j.effect("the-key", run=run, reconcile=lambda s: None)
        except EffectUnresolvedError:
            pass
        """,
    )

    assert done.stdout == ""
    assert "effect_unresolved" in done.stderr
    assert "the-key" in done.stderr


def test_library_configures_no_logging(path: Path) -> None:
    """The application's root logger and the logger `journal` keep their levels, and the root its handlers."""
    done = run_program(
        path,
        """
        j.effect("k", run=lambda: 1, reconcile=lambda s: None)
        print(logging.getLogger().handlers, logging.getLogger().level, logging.getLogger("journal").level)
        """,
    )

    assert done.stdout == f"[] {logging.WARNING} {logging.NOTSET}\n"


def test_logger_of_the_standard_library_is_used_as_it_is(
    open_journal: Callable[..., Journal], caplog: pytest.LogCaptureFixture
) -> None:
    """It takes no keywords, and need not: the facts are in the message."""
    caplog.set_level(logging.INFO, logger="mine")
    j = open_journal(logger=logging.getLogger("mine"))

    accept(j, "k")

    assert [(record.name, record.getMessage().split()[0]) for record in caplog.records] == [
        ("mine", "effect_intended"),
        ("mine", "effect_accepted"),
    ]


@pytest.mark.parametrize("logger", [5, object(), print])
def test_logger_that_could_say_nothing_is_refused(open_journal: Callable[..., Journal], logger: Any) -> None:
    """Before anything is opened."""
    with pytest.raises(TypeError, match="logger must have"):
        open_journal(logger=logger)
    open_journal().close()
