"""Scripts made into what the journal calls, in this process and in one that dies."""

import contextvars
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import journal
from journal import Accepted, Found, Intent, Journal, NotPerformed, Uncertain

from .model import Key, Operation, PlannedIntent, Script


class Boom(Exception):
    """What a script raises when nobody knows."""


class Silence:
    """A logger that says nothing: thousands of examples would fill the report of one that fails."""

    def debug(self, event: str, **values: Any) -> None:
        """Says nothing."""

    info = warning = error = debug


def open_quietly(path: Path, **options: Any) -> Journal:
    """Opens a journal that logs nothing."""
    return journal.open(path, logger=Silence(), **options)


def outcome_of(script: Script) -> Any:
    """Gives a person's outcome."""
    if script[0] == "accepted":
        return Accepted(script[1], "resolve")
    return Uncertain() if script[0] == "uncertain" else NotPerformed("a person says so")


def decide(j: Journal, key: Key, outcome: Script) -> None:
    """Decides as a person would: from elsewhere, on what is on record."""

    def resolve() -> None:
        record = j.record(key)
        assert record is not None
        j.resolve(key, outcome_of(outcome), expected_position=record.position, reason="person")

    thread = threading.Thread(target=contextvars.Context().run, args=(resolve,))
    thread.start()
    thread.join()


def follow(j: Journal, key: Key, script: Script, calls: list[str], name: str) -> Callable[..., Any]:
    """Gives a run, a body or a reconcile that does what its script says, and notes that it was called."""

    def work(*_: Any) -> Any:
        calls.append(name)
        match script:
            case ("returns", value):
                return value
            case ("finds", proof):
                return Found(proof)
            case ("nothing",):
                return None
            case ("absent",):
                raise NotPerformed("the script says so")
            case ("raises",):
                raise Boom("the script says so")
            case ("interrupts",):
                raise KeyboardInterrupt
            case ("unkept",):
                return {"field": (1, 2)}
            case ("resolved", outcome):
                decide(j, key, outcome)
                return "too late"
            case _:
                assert script == ("dies",)
                os.kill(os.getpid(), signal.SIGKILL)
                raise AssertionError("outlived its death")

    return work


def intent_of(j: Journal, planned: PlannedIntent, calls: list[str]) -> Intent:
    """Gives the journal's intent for a planned one."""
    run = follow(j, planned.key, planned.run, calls, "run")
    if planned.guarantee == "idempotent":
        return Intent(planned.key, run, request=planned.request)
    return Intent(planned.key, run, follow(j, planned.key, planned.reconcile, calls, "reconcile"), planned.request)


Plan = dict[int, list[PlannedIntent]]


def planned(plan: Plan, operation: Operation | Any) -> list[PlannedIntent]:
    """Gives what a plan has for an operation, by its position."""
    return plan.get(operation.position, [])


# Processes that die


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(part) for part in value) if isinstance(value, list) else value


class Dying:
    """A process that makes children, one for each call, each of which opens the journal for itself.

    It never has a journal open, so its children may be forked: a fork costs a tenth of a fresh interpreter.
    """

    def __init__(self) -> None:
        package = __package__ or ""
        roots = [Path(__file__).parents[len(package.split("."))], Path(journal.__file__).parents[1]]
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{package}.scripts"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots))},
        )

    def call(self, path: Path, now: int, method: str, *arguments: Any) -> None:
        """Lets a fresh process make a call in which it dies, and returns when it is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(path), now, method, arguments]) + "\n")
        self._process.stdin.flush()
        ended = self._process.stdout.readline().strip()
        assert ended == str(-signal.SIGKILL), f"the child ended with {ended!r} instead of dying in {method}{arguments}"

    def close(self) -> None:
        """Lets the process end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def die_in(path: str, now: int, method: str, arguments: Any) -> None:
    """Makes the call, and dies in it."""
    j = journal.open(path, clock=lambda: now)
    calls: list[str] = []
    if method == "effect":
        key, run, reconcile, request = arguments
        j.effect(
            key, run=follow(j, key, run, calls, ""), reconcile=follow(j, key, reconcile, calls, ""), request=request
        )
    elif method == "run_effect":
        key, run, request = arguments
        j.run_effect(key, follow(j, key, run, calls, ""), request=request)
    elif method == "step":
        key, body = arguments
        j.step(key, follow(j, key, body, calls, ""))
    else:
        cursor, stream, intents = arguments
        plan: Plan = {position: [PlannedIntent(*intent) for intent in own] for position, own in intents}
        j.recover(cursor, intents=lambda c: [intent_of(j, p, calls) for p in planned(plan, c)], stream=stream)


def main() -> None:
    """Makes a child for each line of JSON, and says how it ended."""
    for line in sys.stdin:
        path, now, method, arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                die_in(path, now, method, _as_tuples(arguments))
            except BaseException as error:
                sys.stderr.write(f"{error!r}\n")
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
