"""What the agreement tests share: a clock, stubs, recipients, calls in threads, and other processes.

Nothing in here knows how a journal is built; everything goes through the public API. `worker.py` is the other end of
`Peer`.
"""

import contextlib
import contextvars
import gc
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import journal
from journal import EffectFailedError, EffectUnresolvedError, Journal, NotPerformed, Uncertain

T = TypeVar("T")
Key = str | tuple[str | int, ...]

PATIENCE = 60.0
"""Seconds after which a wait that must end is a failure. Nothing passes or fails by being faster than this."""

START = 1_700_000_000_000_000_000
"""What a fresh `Clock` shows, in nanoseconds since the epoch."""


class Boom(Exception):
    """What a run or a reconcile raises when nobody knows whether the effect happened."""


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now

    def advance(self, nanoseconds: int = 1_000) -> int:
        """Moves the clock and gives the new time."""
        self.now += nanoseconds
        return self.now


class Stub:
    """A callable that gives its answers in order (the last one for ever) and keeps what it was called with.

    An answer that is an exception is raised; one that is callable is called with the arguments. A stub without
    answers must not be called.
    """

    def __init__(self, *answers: Any) -> None:
        self._answers = answers
        self._lock = threading.Lock()
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *arguments: Any) -> Any:
        with self._lock:
            self.calls.append(arguments)
            call_count = len(self.calls)
        assert self._answers, "this must not be called"
        answer = self._answers[min(call_count, len(self._answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        return answer(*arguments) if callable(answer) else answer

    @property
    def count(self) -> int:
        """How many times it was called."""
        return len(self.calls)


def unused() -> Stub:
    """Gives a stub that must not be called; assert that its `count` is 0."""
    return Stub()


# Records in each phase


def accept(j: Journal, key: Key, proof: Any = "proof", **options: Any) -> Any:
    """Leaves an accepted effect and gives its outcome."""
    return j.effect(key, run=lambda: proof, reconcile=unused(), **options)


def leave_open(j: Journal, key: Key, error: BaseException | None = None, **options: Any) -> None:
    """Leaves an intent without outcome that its own process gave up."""
    import pytest  # peers do without it, and so start in half the time

    with pytest.raises((EffectUnresolvedError, KeyboardInterrupt)):
        j.effect(key, run=Stub(error or Boom("boom")), reconcile=unused(), **options)


def leave_failed(j: Journal, key: Key, why: str = "refused", **options: Any) -> None:
    """Leaves an effect that is known not to have happened."""
    import pytest

    with pytest.raises(EffectFailedError):
        j.effect(key, run=Stub(NotPerformed(why)), reconcile=unused(), **options)


def leave_uncertain(j: Journal, key: Key, **options: Any) -> None:
    """Leaves an uncertain effect: the recipient had no record of it."""
    leave_open(j, key, **options)
    assert j.effect(key, run=unused(), reconcile=Stub(None), **options) == Uncertain()


def phases(j: Journal, key: Key) -> list[str]:
    """Gives the phases of the key's events, in order."""
    return [event.phase for event in j.history(key)]


def nested(depth: int) -> Any:
    """Gives lists inside each other, `depth` of them."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def data_file(path: Path) -> Path:
    """Gives the LMDB data file of a journal."""
    (found,) = [name for name in path.rglob("*.mdb") if "lock" not in name.name]
    return found


# Threads


class Call(Generic[T]):
    """A call in a thread of its own, outside of the context of whoever starts it."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._value: T
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._value = contextvars.Context().run(self._function)
        except BaseException as error:  # handed to whoever asks for the outcome
            self._error = error

    @property
    def is_done(self) -> bool:
        """Whether the call has returned or raised."""
        return not self._thread.is_alive()

    def result(self) -> T:
        """Gives what the call returned, or raises what it raised."""
        self._thread.join(PATIENCE)
        assert self.is_done, "the call did not end"
        if self._error is not None:
            raise self._error
        return self._value

    def error(self) -> BaseException:
        """Gives what the call raised."""
        try:
            value = self.result()
        except BaseException as error:
            return error
        raise AssertionError(f"returned {value!r} instead of raising")

    def wait_until_it_waits(self) -> None:
        """Returns when the thread has stood at one place for a while, or is done.

        A thread that polls never stands at one place; then this returns after a bounded time.
        """
        deadline = time.monotonic() + 5
        seen: list[Any] = []
        still_count = 0
        while still_count < 40 and not self.is_done and time.monotonic() < deadline:
            # As `journal/_storage/group.py` says, the collector must not come in between.
            gc.disable()
            frame = sys._current_frames().get(self._thread.ident or 0)
            gc.enable()
            stack = []
            while frame is not None:
                stack.append(frame.f_code)
                frame = frame.f_back
            still_count = still_count + 1 if stack == seen else 0
            seen = stack
            time.sleep(0.005)


def at_once(count: int, function: Callable[[], T]) -> list[Call[T]]:
    """Starts `count` calls that pass one barrier together."""
    barrier = threading.Barrier(count)

    def call() -> T:
        barrier.wait(PATIENCE)
        return function()

    return [Call(call) for _ in range(count)]


def wait_for(event: threading.Event) -> None:
    """Waits for an event that must come."""
    assert event.wait(PATIENCE), "the event did not come"


def wait_until(condition: Callable[[], bool]) -> None:
    """Polls a condition that must become true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.002)


class Gate:
    """A run that says that it was entered and goes on when it is let: `run=gate`."""

    def __init__(self, answer: Any = "proof") -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.count = 0
        self._answer = answer

    def __call__(self, *_: Any) -> Any:
        self.count += 1
        self.entered.set()
        wait_for(self.opened)
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer() if callable(self._answer) else self._answer

    def wait_until_entered(self) -> None:
        """Returns when the run has begun."""
        wait_for(self.entered)

    def open(self) -> None:
        """Lets the run go on."""
        self.opened.set()


# Recipients and other processes


class FileRecipient:
    """A recipient that every process reaches: it keeps each delivery and each question, and deduplicates nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _note(self, did: str, key: Key) -> None:
        line = json.dumps({"did": did, "key": key, "pid": os.getpid()}) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def _noted(self, did: str, key: Key) -> list[int]:
        if not self.path.exists():
            return []
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [line["pid"] for line in lines if line["did"] == did and to_key(line["key"]) == key]

    def deliver(self, key: Key) -> int:
        """Delivers and gives the proof: the process that asked for it."""
        self._note("deliver", key)
        return os.getpid()

    def find(self, key: Key) -> int | None:
        """Gives the proof of the first delivery, or None."""
        self._note("ask", key)
        return next(iter(self.deliveries(key)), None)

    def deliveries(self, key: Key) -> list[int]:
        """Gives the process of each delivery, in order."""
        return self._noted("deliver", key)

    def questions(self, key: Key) -> list[int]:
        """Gives the process of each question, in order."""
        return self._noted("ask", key)


def to_key(value: Any) -> Key:
    """Gives the key that JSON made a list of."""
    return tuple(value) if isinstance(value, list) else value


class Peer:
    """Another process on the same journal, running one scenario of `worker.py` and speaking in lines."""

    def __init__(self, scenario: str, path: Path, *, hash_seed: str = "random", **arguments: Any) -> None:
        package = __package__ or ""
        roots = [Path(__file__).parents[len(package.split("."))], Path(journal.__file__).parents[1]]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                "-m",
                f"{package}.worker",
                scenario,
                json.dumps({"path": str(path), **arguments}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots)), "PYTHONHASHSEED": hash_seed},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._pump = threading.Thread(target=self._read, daemon=True)
        self._pump.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def hear(self, *words: str) -> Any:
        """Gives the next thing that it says, which must be one of these words."""
        line = self._lines.get(timeout=PATIENCE)
        assert line, f"the peer ended without saying {words}"
        said = json.loads(line)
        assert said["word"] in words, said
        return said

    def tell(self, word: str) -> None:
        """Gives it the word that it listens for."""
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self._process.send_signal(number)

    def wait_until_dead(self) -> int:
        """Returns when the process is gone, with how it ended."""
        return self._process.wait(PATIENCE)

    def kill(self) -> None:
        """Ends it without unwinding and returns when it is gone."""
        self._process.kill()
        self.wait_until_dead()

    def finish(self) -> None:
        """Lets it end in order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self.wait_until_dead() == 0

    def dispose(self) -> None:
        """Leaves nothing of it behind, whatever state it is in."""
        if self._process.poll() is None:
            self.kill()
        self._pump.join(PATIENCE)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
