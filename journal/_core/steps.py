"""The protocol of `step`: a computation whose result is recorded after its body has run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from journal._core.effects import decoded
from journal._core.keys import key_form
from journal._core.payloads import ValueRejectedError, check_type, keep_value
from journal._core.requests import Call, Commit, Enter, Flight, Read, RunRaisedError, Steps, Transaction
from journal.errors import Key
from journal.options import VALUE_BYTES_MAX
from journal.records import StepRecord


def step(key: Any, body: Callable[[], Any], returns: Any) -> Steps[Any]:
    """The protocol of `Journal.step`."""
    form = key_form(key)
    if not callable(body):
        raise TypeError(f"body must be a function of no arguments, not {type(body).__name__}: {body!r}")
    check_type(returns, "returns")
    while True:
        found: StepRecord | None = yield Read(lambda view: view.step(form))
        if found is not None:
            return decoded(key, found.value, returns)
        flight: Flight | None = yield Enter("step", key, form, None, None)
        if flight is not None:
            return (yield from _step_in_flight(key, form, body, returns, flight))


def _step_in_flight(key: Key, form: bytes, body: Callable[[], Any], returns: Any, flight: Flight) -> Steps[Any]:
    try:
        found: StepRecord | None = yield Read(lambda view: view.step(form))
        if found is None:
            try:
                value = yield Call(body)
            except Exception as error:
                raise RunRaisedError(error) from error
            try:
                data, _ = keep_value(value, returns, VALUE_BYTES_MAX)
            except ValueRejectedError as error:
                raise TypeError(f"the result of step {key!r} cannot be kept: {error}; nothing was recorded") from error
            found = yield Commit(_record_step(form, data))
    except Exception as error:
        flight.end(error)
        raise
    except BaseException:
        flight.end()
        raise
    flight.end()
    assert found is not None  # noqa: S101 - it was read, or just recorded
    return decoded(key, found.value, returns)


def _record_step(form: bytes, data: bytes) -> Callable[[Transaction], StepRecord]:
    def decide_step(txn: Transaction) -> StepRecord:
        found = txn.step(form)
        if found is None:
            found = StepRecord(form, txn.at, data)
            txn.append(found)
        return found

    return decide_step
