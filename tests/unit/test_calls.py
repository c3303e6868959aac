"""`journal/_drive/calls.py`: the threads in which plain functions are called for tasks."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from journal._drive import calls
from journal._drive.calls import Threads
from tests.unit.support import PATIENCE, until


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Threads]:
    """Threads of this test alone, which leave soon."""
    monkeypatch.setattr(calls, "IDLE_SECONDS", 0.05)
    made = Threads()
    yield made
    until(lambda: made._free_count == 0)


def idents(threads: Threads, count: int) -> set[int]:
    """The threads in which so many jobs run that wait for each other."""
    together = threading.Barrier(count + 1)
    seen: list[int] = []

    def job() -> None:
        seen.append(threading.get_ident())
        together.wait(PATIENCE)

    for _ in range(count):
        threads.run(job)
    together.wait(PATIENCE)
    return set(seen)


def test_jobs_that_wait_for_each_other_have_a_thread_each(threads: Threads) -> None:
    """However many there are: a bound would let them wait for ever."""
    assert len(idents(threads, 100)) == 100


def test_thread_that_is_free_runs_the_next_job(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread is started for it."""
    monkeypatch.setattr(calls, "IDLE_SECONDS", PATIENCE)
    (first,) = idents(threads, 1)
    until(lambda: threads._free_count == 1)

    assert idents(threads, 1) == {first}
    assert first in idents(threads, 2)
    monkeypatch.undo()
    until(lambda: threads._free_count == 2)
    idents(threads, 2)  # both of them, which wait for a short time from now on


def test_thread_that_waited_long_enough_is_gone(threads: Threads) -> None:
    """And the next job has a new one."""
    idents(threads, 3)
    until(lambda: threads._free_count == 0)

    assert len(idents(threads, 1)) == 1


def test_job_that_comes_when_a_thread_is_about_to_go_is_run(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who takes it counts on a thread that has just stopped waiting."""
    monkeypatch.setattr(calls, "IDLE_SECONDS", 0.0)
    done: list[int] = []

    for number in range(2_000):
        threads.run(lambda number=number: done.append(number))  # type: ignore[misc]  # the default binds it

    until(lambda: len(done) == 2_000)
    assert sorted(done) == list(range(2_000))


def test_thread_that_is_free_keeps_nothing_of_its_job(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it ran may hold a handle."""
    monkeypatch.setattr(calls, "IDLE_SECONDS", PATIENCE)

    class Big:
        def job(self) -> None:
            pass

    big: Any = Big()
    gone = weakref.ref(big)
    threads.run(big.job)
    del big
    until(lambda: threads._free_count == 1)
    gc.collect()

    assert gone() is None
    monkeypatch.undo()
    threads.run(lambda: None)


@pytest.mark.parametrize("when", ["before", "after"])
def test_coroutine_that_nobody_waits_for_is_closed(when: str) -> None:
    """A plain function returned it to a task that was cancelled meanwhile, or just before."""
    may_end = threading.Event()
    made: list[Any] = []

    async def never() -> None:
        raise AssertionError("nobody awaits it")

    def function() -> Any:
        made.append(never())
        assert may_end.wait(PATIENCE)
        return made[0]

    async def main() -> None:
        waiting = asyncio.create_task(calls.in_thread(function))
        await asyncio.sleep(0)
        until(lambda: made)
        if when == "before":
            may_end.set()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        may_end.set()
        until(lambda: made and made[0].cr_frame is None)

    asyncio.run(main())


def test_forked_child_counts_on_no_thread_of_its_parent(threads: Threads) -> None:
    """They do not exist there."""
    idents(threads, 2)
    threads.forget()

    assert len(idents(threads, 1)) == 1
