"""`journal/_drive/branches.py`: protocols beside each other, each in a thread while it runs."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Generator, Iterator
from types import ModuleType
from typing import Any, Final

import pytest

from journal._core import recovery
from journal._core.requests import Ended, Spawn
from journal._core.schemas import Schema
from journal._drive import branches as branches_module, threads as threads_module
from journal._drive.branches import Branches
from journal._drive.threads import ThreadDriver
from journal._flights import Flights
from journal._logs import Log
from journal._storage.group import Entry
from journal.errors import NotPerformed
from journal.values import Found
from recovery import Intent
from tests.unit.support import OWN, PATIENCE, Boom, InterruptAt, Memory, lines_interrupted, until

colour: Final[contextvars.ContextVar[str]] = contextvars.ContextVar("colour", default="none")


def protocol(function: Callable[[], Any]) -> Generator[Any, Any, Any]:
    """A protocol that asks for one thing, and gives what it is answered."""
    return (yield function)


def drive(steps: Generator[Any, Any, Any]) -> Any:
    """What a protocol returns, its requests answered by being called."""
    request = next(steps)
    try:
        while True:
            request = steps.send(request())
    except StopIteration as end:
        return end.value


@pytest.fixture
def branches() -> Iterator[Branches]:
    """Branches that are ended, and whose threads are gone after the test; those of other tests are, before."""
    until(lambda: not threads())
    made = Branches(drive)
    yield made
    made.end()
    until(lambda: not threads())


def threads() -> list[threading.Thread]:
    """The threads that run protocols beside another one."""
    return [thread for thread in threading.enumerate() if thread.name == "journal-walk"]


def test_protocols_run_beside_each_other(branches: Branches) -> None:
    """Each in a thread of its own, and each end comes once, with its tag."""
    barrier = threading.Barrier(3)
    for tag in range(3):
        branches.spawn(Spawn(protocol(lambda: barrier.wait(PATIENCE) * 0 + threading.get_ident()), tag))

    ends = [branches.wait() for _ in range(3)]

    assert {end.tag for end in ends} == {0, 1, 2}
    assert len({end.value for end in ends} | {threading.get_ident()}) == 4
    assert all(end.error is None for end in ends)


def test_thread_that_is_free_runs_the_next(branches: Branches) -> None:
    """There are as many as ever ran at once."""
    for tag in range(20):
        branches.spawn(Spawn(protocol(threading.get_ident), tag))
        branches.spawn(Spawn(protocol(threading.get_ident), -tag))
        branches.wait()
        branches.wait()

    assert len(threads()) == 2
    assert all(thread.daemon for thread in threads())


@pytest.mark.parametrize("error", [Boom("no"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_a_protocol_raises_is_its_end(branches: Branches, error: BaseException) -> None:
    """Whoever waits decides what it means; the thread goes on with the next."""

    def raise_it() -> None:
        raise error

    branches.spawn(Spawn(protocol(raise_it), "first"))
    ended = branches.wait()
    branches.spawn(Spawn(protocol(lambda: 2), "second"))

    assert (ended.tag, ended.value, ended.error) == ("first", None, error)
    assert branches.wait() == Ended("second", 2)


def test_protocol_runs_under_a_copy_of_the_context_of_its_spawn(branches: Branches) -> None:
    """What it sets is seen by nobody else."""
    barrier = threading.Barrier(2)

    def paint(name: str) -> Callable[[], tuple[str, str]]:
        def work() -> tuple[str, str]:
            before = colour.get()
            colour.set(name)
            barrier.wait(PATIENCE)
            return before, colour.get()

        return work

    token = colour.set("red")
    for name in ("green", "blue"):
        branches.spawn(Spawn(protocol(paint(name)), name))
    ends = {end.tag: end.value for end in (branches.wait(), branches.wait())}
    after = colour.get()
    colour.reset(token)

    assert ends == {"green": ("red", "green"), "blue": ("red", "blue")}
    assert after == "red"


def test_end_lets_what_runs_go_on(branches: Branches) -> None:
    """Its thread goes when it has ended."""
    entered, opened, left = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        assert opened.wait(PATIENCE)
        left.set()

    branches.spawn(Spawn(protocol(work), 1))
    assert entered.wait(PATIENCE)
    branches.end()
    assert threads()
    opened.set()

    assert left.wait(PATIENCE)
    until(lambda: not threads())


def test_thread_that_cannot_be_started_leaves_the_others(branches: Branches, monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol has not begun, and the next one may."""
    begun: list[int] = []

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            branches.spawn(Spawn(protocol(lambda: begun.append(1)), 1))
    branches.spawn(Spawn(protocol(lambda: begun.append(2)), 2))

    assert branches.wait().tag == 2
    assert begun == [2]


def test_thread_that_is_free_keeps_nothing_of_what_it_ran(branches: Branches) -> None:
    """A protocol, its tag and its value are gone with it."""

    class Big:
        alive = 0

        def __init__(self) -> None:
            Big.alive += 1

        def __del__(self) -> None:
            Big.alive -= 1

    branches.spawn(Spawn(protocol(Big), Big()))
    branches.wait()

    until(lambda: Big.alive == 0)


# A walk in real threads, interrupted anywhere


class LockedStore:
    """What drivers need of a store, over a journal in memory, for several threads."""

    directory = "/journal"
    wait_timeout = 30.0
    readonly = False

    def __init__(self) -> None:
        self.memory = Memory()
        self._lock = threading.Lock()

    def read(self, look: Callable[[Any], Any]) -> Any:
        with self._lock:
            return look(self.memory)

    def commit(self, decide: Callable[[Any], Any], *, settles: bool) -> Entry:
        with self._lock:
            entry = Entry(decide, 0, 0, settles=settles)
            entry.succeed(self.memory.commit(decide), [])
            return entry

    def living_pid(self, owner: int) -> int | None:
        return None


class Silence:
    """A logger that says nothing."""

    def debug(self, event: str, **facts: Any) -> None:
        """Say nothing."""

    info = warning = error = debug


@pytest.mark.parametrize("module", [recovery, branches_module, threads_module], ids=lambda module: str(module.__name__))
def test_walk_may_be_interrupted_before_any_line(module: ModuleType) -> None:
    """What is in flight is recorded by its own thread; no flight or thread stays; the next walk settles everything."""
    until(lambda: not threads())

    def walk_anew(interrupt: InterruptAt) -> None:
        store, flights, done = LockedStore(), Flights("/journal"), []
        for number in range(3):
            store.memory.put_operation(str(number), number)

        def intent(key: tuple[int, int]) -> Intent:
            def find(_: Any) -> Found[None]:
                if key not in done:
                    raise NotPerformed("it is not there")
                return Found(None)

            return Intent(key, lambda: done.append(key), find)

        def walk() -> Any:
            steps = recovery.recover(
                0,
                intents=lambda committed: [intent((committed.operation, part)) for part in (1, 2)],
                stream=None,
                on_unresolved="retry",
                on_uncertain="accept",
                concurrency=2,
                limit=None,
                progress=None,
                schema=Schema(),
                owner=OWN,
                check=lambda intent: None,
            )
            store_of_any: Any = store
            return ThreadDriver(store_of_any, flights, Log(Silence(), "id")).run(steps)

        with contextlib.suppress(KeyboardInterrupt), interrupt:
            walk()
        until(lambda: not threads())
        assert flights._open == {}
        assert {phase for key in done for phase in store.memory.phases(key)[-1:]} <= {"accepted"}

        settled = walk()
        until(lambda: not threads())
        assert (settled, settled.stopped) == (3, None)
        assert sorted(done) == [(number, part) for number in range(3) for part in (1, 2)]

    assert lines_interrupted(module, walk_anew) > 10
