"""`journal/_core/steps.py`: the protocol of `step`, request by request."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from journal._core.keys import key_form
from journal._core.requests import Call, Commit, Enter, Read, RunRaisedError
from journal._core.steps import step
from journal.errors import CorruptRecordError, EffectInFlightError, JournalFullError
from journal.options import VALUE_BYTES_MAX
from journal.records import StepRecord
from tests.unit.support import Boom, Memory, Play, raising, unused


def playing(
    body: Any = lambda: "result", memory: Memory | None = None, key: Any = "k", returns: Any = None
) -> Play[Any]:
    """The protocol of a step."""
    return Play(step(key, body, returns), memory or Memory())


def test_result_is_recorded_after_the_body() -> None:
    """Unlike an effect it has no intent: the body runs, then its result is committed, then the flight ends."""
    play = playing(lambda: {"a": 1})

    play.run(Read)
    assert play.expect(Enter) == Enter("step", "k", key_form("k"), None, None, wait=True)
    play.run(Enter, Read)
    assert play.memory.head() == 0
    play.does(Call)
    assert play.expect(Commit).settles is False
    play.does(Commit)

    assert play.returned == {"a": 1}
    assert play.memory.log == [(StepRecord(key_form("k"), play.memory.at, b'{"a":1}'), b"")]
    assert play.memory.holds[0].ends == [None]


def test_recorded_step_is_answered_from_the_record() -> None:
    """One read; the body is not called."""
    memory = Memory()
    memory.put_step("k", [1, 2])

    assert playing(unused, memory).run(Read).returned == [1, 2]


def test_step_and_effect_of_one_key_never_meet() -> None:
    """Steps have a key space of their own."""
    memory = Memory()
    memory.put_step(("k", 1), "a step")

    assert memory.effect(key_form(("k", 1))) is None
    assert playing(unused, memory, key=("k", 1)).finish() == "a step"


def test_call_that_joined_reads_again() -> None:
    """Where the flight that it joined has recorded a result, that is its answer."""
    memory = Memory()
    play = playing(unused, memory).run(Read)
    memory.put_step("k", "theirs")

    assert play.does(Enter, None).run(Read).returned == "theirs"


def test_call_that_joined_a_flight_without_a_result_runs_its_own_body() -> None:
    """The other was cut off: nothing is on record, and the key is free."""
    play = playing().run(Read).does(Enter, None)

    assert play.run(Read, Enter, Read, Call, Commit).returned == "result"


def test_step_that_is_recorded_while_the_call_enters_is_reused() -> None:
    """Between the first look and the flight another process may have recorded it."""
    play = playing(unused).run(Read, Enter)
    play.memory.put_step("k", "theirs")

    assert play.run(Read).returned == "theirs"
    assert play.memory.holds[0].ends == [None]


def test_first_result_recorded_wins() -> None:
    """Another process was faster: every call returns what is on record."""
    play = playing(lambda: "ours").run(Read, Enter, Read, Call)
    play.memory.put_step("k", "theirs")

    assert play.run(Commit).returned == "theirs"
    assert play.memory.head() == 1


@pytest.mark.parametrize(
    "error", [Boom("no"), StopIteration(), CorruptRecordError(1, "no"), EffectInFlightError("k", 1)]
)
def test_body_that_raises_records_nothing(error: Exception) -> None:
    """The very same exception goes on, to the caller and to those who joined."""
    play = playing(raising(error)).run(Read, Enter, Read)

    with pytest.raises(RunRaisedError) as caught:
        play.does(Call)

    assert caught.value.error is error
    assert play.memory.head() == 0
    assert play.memory.holds[0].ends == [caught.value]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_body_that_is_cut_off_records_nothing(error: BaseException) -> None:
    """The interrupt goes on; those who joined read again, and one of them runs the body."""
    play = playing(raising(error)).run(Read, Enter, Read)

    with pytest.raises(type(error)):
        play.does(Call)

    assert play.memory.head() == 0
    assert play.memory.holds[0].ends == [None]


@pytest.mark.parametrize("value", [float("nan"), (1, 2), object(), "a" * VALUE_BYTES_MAX])
def test_result_that_cannot_be_kept_is_a_type_error(value: Any) -> None:
    """It says so with the reason, and nothing is recorded."""
    play = playing(lambda: value).run(Read, Enter, Read)

    with pytest.raises(TypeError, match=r"the result of step 'k' cannot be kept: .*; nothing was recorded"):
        play.does(Call)

    assert play.memory.head() == 0


def test_result_is_given_as_its_type_decodes_it() -> None:
    """The first time as on every later call; a changed type is told."""

    class Plan(msgspec.Struct):
        name: str

    play = playing(lambda: Plan("a"), returns=Plan)

    assert play.finish() == Plan("a")
    assert playing(unused, play.memory, returns=Plan).finish() == Plan("a")
    with pytest.raises(TypeError, match="what is on record of 'k' cannot be read as <class 'int'>"):
        playing(unused, play.memory, returns=int).finish()


@pytest.mark.parametrize("place", [0, 1, 2, 4])
def test_error_of_the_store_is_the_callers(place: int) -> None:
    """At whatever request it comes; a flight that was entered ends."""
    error = JournalFullError("/journal", "no room")
    play = playing()
    for _ in range(place):
        play.does(type(play.request))

    with pytest.raises(JournalFullError):
        play.raises(type(play.request), error)

    assert [hold.ends for hold in play.memory.holds] == ([[error]] if place > 1 else [])


@pytest.mark.parametrize("place", range(5))
def test_closed_step_asks_nothing_more(place: int) -> None:
    """Its flight ends, and those who joined read again."""
    protocol = step("k", lambda: 1, None)
    play = Play(protocol, Memory())
    for _ in range(place):
        play.does(type(play.request))

    play.close()

    assert inspect.getgeneratorstate(protocol) == inspect.GEN_CLOSED
    assert [hold.ends for hold in play.memory.holds] == ([[None]] if place > 1 else [])


@pytest.mark.parametrize(
    "arguments, error",
    [
        ({"key": 1}, TypeError),
        ({"key": ()}, ValueError),
        ({"body": None}, TypeError),
        ({"body": "f"}, TypeError),
        ({"returns": 5}, TypeError),
    ],
)
def test_argument_of_no_use_is_refused(arguments: dict[str, Any], error: type[Exception]) -> None:
    """Before anything is asked."""
    given: dict[str, Any] = {"key": "k", "body": unused, "returns": None}

    with pytest.raises(error):
        next(step(**(given | arguments)))
