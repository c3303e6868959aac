"""`journal/aio.py`: what only shows with files, a loop, and somebody in the way."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import journal
from journal import Accepted, AsyncJournal, Committed, Intent
from journal._storage import files
from tests.unit.support import PATIENCE, until, unused


@contextlib.contextmanager
def turn_held(path: Path) -> Iterator[None]:
    """Another one has the writer's turn meanwhile."""
    descriptor = os.open(path / files.TURN_FILE, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the journal is."""
    return tmp_path / "journal"


async def turns(count: int) -> None:
    """Let the loop come round so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("method", ["effect", "run_effect", "append"])
def test_call_that_is_cancelled_while_it_waits_for_its_turn_begins_nothing(path: Path, method: str) -> None:
    """The caller hears of it at once; when the turn is free, nothing is written and nothing is run."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            calls: dict[str, Any] = {
                "effect": lambda: a.effect("k", run=unused, reconcile=unused),
                "run_effect": lambda: a.run_effect("k", unused),
                "append": lambda: a.append("s", 1, op_id="1"),
            }
            with turn_held(path):
                ahead = asyncio.create_task(a.append("ahead", 1, op_id="1"))
                await turns(5)
                behind = asyncio.create_task(calls[method]())
                await turns(5)
                behind.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await behind
            await ahead
            assert await a.head() == 1
            assert await a.record("k") is None
            assert await a.run_effect("other", lambda: "later") == "later"

    asyncio.run(main())


def test_cancelled_walk_takes_back_what_its_last_commit_began(path: Path) -> None:
    """The outcome shares its commit with the next intent: the one is recorded, the other is known not to have run."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            await a.append("s", 1, op_id="1")
            entered, may_end = asyncio.Event(), asyncio.Event()

            async def first() -> str:
                entered.set()
                await may_end.wait()
                return "done"

            def intents(_: Committed) -> list[Intent]:
                return [Intent("first", first), Intent("second", unused), Intent("third", unused)]

            walk = asyncio.create_task(a.recover(intents=intents))
            await entered.wait()
            with turn_held(path):
                may_end.set()
                await turns(5)
                walk.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await walk
            while [event.phase for event in await a.history("second")] != ["intent", "failed"]:
                await a.wait(await a.head(), 0.01)
            assert [event.phase for event in await a.history("first")] == ["intent", "accepted"]
            assert (await a.history("second"))[-1].reason == "not-started"
            assert await a.record("third") is None

    asyncio.run(main())


@pytest.mark.parametrize("then", ["another loop", "a thread", "close"])
@pytest.mark.parametrize("style", ["coroutine", "plain"])
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")  # a loop that is closed under its tasks leaves them so
def test_effect_of_a_loop_that_was_closed_is_asked_about(path: Path, then: str, style: str) -> None:
    """Nobody cancelled it, and nobody will end it: it is not in flight any more, once its plain function has ended."""
    entered, may_end = threading.Event(), threading.Event()

    async def hang() -> None:
        entered.set()
        await asyncio.Event().wait()

    def plain() -> str:
        entered.set()
        assert may_end.wait(PATIENCE)
        return "too late"

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    a: AsyncJournal = loop.run_until_complete(_open(path))
    owner = loop.create_task(a.effect("k", run=hang if style == "coroutine" else plain, reconcile=unused))
    loop.run_until_complete(asyncio.sleep(0))
    while not entered.is_set():
        loop.run_until_complete(asyncio.sleep(0.001))
    loop.close()
    may_end.set()
    calls = [driver.thread_call for driver in a._background.drivers.values()]
    until(lambda: all(call is None or call.is_done for call in calls))

    if then == "close":
        asyncio.run(a.close())
        asyncio.run(_ask_anew(path))
    else:
        answer = (
            asyncio.run(a.effect("k", run=unused, reconcile=_find))
            if then == "another loop"
            else a.sync.effect("k", run=unused, reconcile=lambda _: "found")
        )
        assert answer == Accepted("found", "reconcile")
        asyncio.run(a.close())
    del owner


async def _open(path: Path) -> AsyncJournal:
    return await journal.open_async(path, wait_timeout=1.0)


async def _find(_: Any) -> str:
    return "found"


async def _ask_anew(path: Path) -> None:
    async with journal.open_async(path) as a:
        assert await a.effect("k", run=unused, reconcile=_find) == Accepted("found", "reconcile")


@pytest.mark.parametrize("style", ["coroutine", "plain"])
def test_long_walk_lets_the_other_tasks_have_their_turns(path: Path, style: str) -> None:
    """Over what is settled nothing has to be waited for; a timeout gets through all the same."""

    async def none(_: Committed) -> list[Intent]:
        return []

    def plain(_: Committed) -> list[Intent]:
        return []

    async def main() -> None:
        async with journal.open_async(path) as a:
            await a.append_all("s", [(str(number), number) for number in range(3_000)])
            count = 0

            async def tick() -> None:
                nonlocal count
                while True:
                    count += 1
                    await asyncio.sleep(0)

            ticking = asyncio.create_task(tick())
            assert await a.recover(intents=none if style == "coroutine" else plain) == 3_000
            assert count > 1
            before = count
            assert len([committed async for committed in a.read()]) == 3_000
            assert count > before
            ticking.cancel()

    asyncio.run(main())
