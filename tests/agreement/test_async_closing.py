"""Opening and closing on event loops: what is waited for, for how long, and what is left behind."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import journal
from journal import (
    Accepted,
    AsyncJournal,
    EffectInFlightError,
    EffectUnresolvedError,
    JournalClosedError,
    JournalLockedError,
)
from journal._storage.store import Store

from .stepping import Door, Watched, play
from .support import PATIENCE, Call, unused, wait_for

each_style = pytest.mark.parametrize("style", ["plain", "coroutine", "awaitable"])


def spawn(coroutine: Any) -> asyncio.Task[Any]:
    """A task of its own."""
    return asyncio.get_running_loop().create_task(coroutine)


# Opening


@pytest.mark.parametrize("is_late", [False, True])
def test_opening_that_is_cancelled_leaves_nothing_open(path: Path, *, is_late: bool) -> None:
    """At whatever step: the journal can be opened at once."""

    async def main(step: int) -> bool:
        left = [step]

        def suspended(future: Any) -> None:
            left[0] -= 1
            if left[0] == -1 and is_late:
                future.add_done_callback(lambda _: task.cancel())
            elif left[0] == -1:
                task.cancel()

        async def opening() -> AsyncJournal:
            return await journal.open_async(path)

        task = asyncio.Task(Watched(opening(), suspended))
        try:
            opened = await task
        except asyncio.CancelledError:
            async with journal.open_async(path) as a:
                assert await a.head() == 0
            return True
        await opened.close()
        return False

    steps = [play(main(step)) for step in range(4)]

    assert steps == sorted(steps, reverse=True)
    assert steps[0]
    assert not steps[-1]


def test_opening_raises_where_it_is_awaited(path: Path) -> None:
    """What `journal.open` raises; nothing is done before."""

    async def main() -> None:
        opening = journal.open_async(path, create=False)
        with pytest.raises(FileNotFoundError):
            await opening
        with pytest.raises(ValueError, match="wait_timeout"):
            await journal.open_async(path, wait_timeout=0)
        async with journal.open_async(path) as a:
            with pytest.raises(JournalLockedError):
                await journal.open_async(path)
            with pytest.raises(JournalLockedError):
                journal.open(path)
            assert repr(a) == f"<AsyncJournal {str(path)!r}>"
        assert repr(a) == f"<AsyncJournal {str(path)!r} (closed)>"
        async with await journal.open_async(path) as again:
            assert again.path == str(path)

    play(main())


def test_closed_journal_refuses_every_method(path: Path) -> None:
    """And closing again is fine, from a thread too."""

    async def main() -> None:
        a = await journal.open_async(path)
        await a.close()
        await a.close()
        await asyncio.to_thread(a.sync.close)
        calls: list[Callable[[], Any]] = [
            lambda: a.append("s", 1, op_id="1"),
            lambda: a.effect("k", run=unused(), reconcile=unused()),
            lambda: a.run_effect("k", unused()),
            lambda: a.step("k", unused()),
            lambda: a.record("k"),
            lambda: a.recover(intents=unused()),
            lambda: a.wait(0),
            a.stats,
            a.head,
        ]
        for call in calls:
            with pytest.raises(JournalClosedError):
                await call()
        for iterate in (a.read, a.effects, a.verify):
            with pytest.raises(JournalClosedError):
                iterate()

    play(main())


# The bound of closing


@pytest.mark.parametrize("style", ["coroutine", "awaitable"])
def test_closing_cancels_a_coroutine_that_hangs(path: Path, style: str) -> None:
    """After `wait_timeout`; its intent is given up on record, and the next handle asks."""

    async def main() -> None:
        a = await journal.open_async(path, wait_timeout=0.05)
        door = Door(style)
        owner = spawn(a.effect("k", run=door.run, reconcile=unused()))
        await door.wait_until_entered()
        await a.close()

        with pytest.raises(asyncio.CancelledError):
            await owner
        assert door.cancelled_count == 1
        async with journal.open_async(path) as again:
            assert [event.phase for event in await again.history("k")] == ["intent", "released"]
            outcome = await again.effect("k", run=unused(), reconcile=lambda _: "found")
            assert outcome == Accepted("found", "reconcile")

    play(main())


def test_closing_leaves_a_plain_run_that_hangs(path: Path) -> None:
    """Its intent is in flight until it ends, since it may still act; then anybody may ask."""
    door = Door("plain")

    async def main() -> None:
        a = await journal.open_async(path, wait_timeout=0.05)
        owner = spawn(a.effect("k", run=door.run, reconcile=unused()))
        await door.wait_until_entered()
        await a.close()
        with pytest.raises(EffectUnresolvedError):
            await owner
        async with journal.open_async(path, wait_timeout=0.05) as again:
            with pytest.raises(EffectInFlightError) as caught:
                await again.effect("k", run=unused(), reconcile=unused())
            assert caught.value.pid == os.getpid()
            assert [event.phase for event in await again.history("k")] == ["intent"]
        door.open()
        async with journal.open_async(path, wait_timeout=PATIENCE) as again:
            outcome = await again.effect("k", run=unused(), reconcile=lambda _: "found")
            assert outcome == Accepted("found", "reconcile")

    try:
        play(main())
    finally:
        door.open()


def test_closing_gives_up_a_coroutine_that_will_not_end(path: Path) -> None:
    """It keeps on after it was cancelled: closing returns, and its intent stays in flight."""

    async def main() -> None:
        a = await journal.open_async(path, wait_timeout=0.05)
        door = Door()

        async def run() -> Any:
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    return await door.run()

        owner = spawn(a.effect("k", run=run, reconcile=unused()))
        await door.wait_until_entered()
        await a.close()
        async with journal.open_async(path, wait_timeout=0.05) as again:
            with pytest.raises(EffectInFlightError):
                await again.effect("k", run=unused(), reconcile=unused())
            door.open()
            with pytest.raises((journal.EffectUnresolvedError, asyncio.CancelledError)):
                await owner
            assert door.cancelled_count >= 1

    play(main())


@pytest.mark.parametrize("style", ["plain", "coroutine"])
def test_closing_ends_what_waits_for_an_answer(path: Path, style: str) -> None:
    """A reconcile that does not end is left: nothing is recorded."""

    async def main() -> None:
        a = await journal.open_async(path, wait_timeout=0.05)
        with pytest.raises(journal.EffectUnresolvedError):
            await a.effect("k", run=failing, reconcile=unused())
        door = Door(style)
        owner = spawn(a.effect("k", run=unused(), reconcile=door.run))
        await door.wait_until_entered()
        await a.close()
        with pytest.raises(asyncio.CancelledError):
            await owner
        door.open()
        async with journal.open_async(path) as again:
            assert [event.phase for event in await again.history("k")] == ["intent", "released"]
            outcome = await again.effect("k", run=unused(), reconcile=lambda _: "found")
            assert outcome == Accepted("found", "reconcile")

    play(main())


async def failing() -> None:
    """A run of which nobody knows what it did."""
    raise ValueError


# Who closes


@each_style
def test_closing_from_inside_a_run_is_refused(path: Path, style: str) -> None:
    """It would wait for itself; the journal stays as open as it was."""

    async def main() -> None:
        async with journal.open_async(path) as a:

            async def coroutine() -> str:
                with pytest.raises(RuntimeError, match="would wait for itself"):
                    await a.close()
                return "proof"

            def plain() -> str:
                with pytest.raises(RuntimeError, match="would wait for itself"):
                    a.sync.close()
                return "proof"

            def awaitable() -> Any:
                return coroutine()

            run = {"coroutine": coroutine, "plain": plain, "awaitable": awaitable}[style]
            assert await a.effect("k", run=run, reconcile=unused()) == Accepted("proof", "run")
            assert "closed" not in repr(a)
            assert (await a.append("s", 1, op_id="1")).position == 3

    play(main())


def test_closing_twice_at_once_is_closing_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both return when a commit that was being flushed is durable, and the files are closed."""
    flushing, go_on = threading.Event(), threading.Event()
    commit_batch = Store._commit_batch

    def slow(store: Store, entries: Any) -> None:
        flushing.set()
        wait_for(go_on)
        commit_batch(store, entries)

    monkeypatch.setattr(Store, "_commit_batch", slow)

    async def main() -> None:
        a = await journal.open_async(path)
        appending = spawn(a.append("s", 1, op_id="1"))
        await asyncio.to_thread(wait_for, flushing)
        closings = [spawn(a.close()), spawn(a.close()), spawn(asyncio.to_thread(a.sync.close))]
        await asyncio.sleep(0.05)
        assert [closing.done() for closing in closings] == [False] * 3
        go_on.set()
        await asyncio.gather(*closings)

        assert (await appending).position == 1
        async with journal.open_async(path) as again:
            assert await again.head() == 1

    play(main())


def test_thread_closes_while_a_task_runs(path: Path) -> None:
    """It waits for the run, which needs the loop."""

    async def main() -> None:
        a = await journal.open_async(path)
        door = Door()
        owner = spawn(a.effect("k", run=door.run, reconcile=unused()))
        await door.wait_until_entered()
        closing = Call(a.sync.close)
        await asyncio.to_thread(closing.wait_until_it_waits)
        assert not closing.is_done
        door.open()
        assert await owner == Accepted("proof", "run")
        await asyncio.to_thread(closing.result)

    play(main())


def test_closing_that_was_cancelled_can_be_done_again(path: Path) -> None:
    """It waited for a run; nothing new begins meanwhile."""

    async def main() -> None:
        a = await journal.open_async(path)
        door = Door()
        owner = spawn(a.effect("k", run=door.run, reconcile=unused()))
        await door.wait_until_entered()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await a.close()
        with pytest.raises(JournalClosedError):
            await a.effect("other", run=unused(), reconcile=unused())
        door.open()
        assert await owner == Accepted("proof", "run")
        await a.close()
        async with journal.open_async(path) as again:
            assert (await again.effect("k", run=unused(), reconcile=unused())) == Accepted("proof", "run")

    play(main())


# Two loops


class OtherLoop:
    """A loop in a thread of its own, which minds calls from other threads."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_debug(True)
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def start(self, coroutine: Any) -> Any:
        """A concurrent future of what it gives."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()


@pytest.fixture
def other() -> Any:
    """Another loop."""
    made = OtherLoop()
    yield made
    made.close()


def test_two_loops_share_one_handle(path: Path, other: OtherLoop) -> None:
    """Their tasks share one run, their commits one log."""

    async def use(a: AsyncJournal, name: str) -> list[Any]:
        for n in range(20):
            await a.append(name, n, op_id=str(n))
        return [await a.effect(("k", n), run=run, reconcile=unused()) for n in range(20)]

    runs: list[int] = []

    async def run() -> str:
        runs.append(1)
        await asyncio.sleep(0)
        return "proof"

    async def main() -> None:
        async with journal.open_async(path) as a:
            there = other.start(use(a, "there"))
            here = await use(a, "here")
            assert await asyncio.wrap_future(there) == here == [Accepted("proof", "run")] * 20
            assert len(runs) == 20
            assert await a.head() == 80
            assert [finding async for finding in a.verify()] == []

    play(main(), debug=True)


def test_closing_on_one_loop_cancels_what_hangs_on_the_other(path: Path, other: OtherLoop) -> None:
    """In the thread of that loop, and at once."""

    async def main() -> None:
        a = await journal.open_async(path, wait_timeout=0.05)
        door = Door()
        there = other.start(a.effect("k", run=door.run, reconcile=unused()))
        await door.wait_until_entered()
        await a.close()

        with pytest.raises(asyncio.CancelledError):
            await asyncio.wrap_future(there)
        assert door.cancelled_count == 1
        async with journal.open_async(path) as again:
            assert [event.phase for event in await again.history("k")] == ["intent", "released"]

    play(main(), debug=True)
