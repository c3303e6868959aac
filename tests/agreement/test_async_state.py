"""State on an event loop: what is applied outside a commit holds up nobody, and a caller that goes away writes nothing."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import journal
from journal import AsyncJournal, InvalidOperationError, Reducer

from .stepping import play
from .support import wait_for


class Slow:
    """An `apply` that stands still at its first call until it is let go on."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def apply(self, state: list[int], operation: int) -> list[int]:
        self.entered.set()
        wait_for(self.opened)
        return [*state, operation]

    def reducer(self) -> Reducer:
        return Reducer(list, self.apply, list[int])

    async def wait_until_entered(self) -> None:
        await asyncio.to_thread(wait_for, self.entered)


@pytest.fixture
def filled(path: Path) -> Path:
    """A journal with two operations of which no state was kept."""
    with journal.open(path) as j:
        j.append_all("s", [("1", 1), ("2", 2)])
    return path


def test_state_is_brought_up_beside_the_loop(filled: Path) -> None:
    """The loop goes on while old operations are applied."""
    slow = Slow()

    async def main() -> Any:
        async with journal.open_async(filled, state=slow.reducer()) as a:
            loading = asyncio.create_task(a.load("s"))
            await slow.wait_until_entered()
            assert await a.head() == 2
            slow.opened.set()
            return (await loading).state

    assert play(main()) == [1, 2]


def test_cancelled_append_writes_nothing_while_the_state_is_brought_up(filled: Path) -> None:
    """The caller hears at once, and the journal goes on."""
    slow = Slow()

    async def main() -> Any:
        async with journal.open_async(filled, state=slow.reducer()) as a:
            appending = asyncio.create_task(a.append("s", 3, op_id="3"))
            await slow.wait_until_entered()
            appending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await appending
            slow.opened.set()
            assert await a.head() == 2
            await a.append("s", 4, op_id="4")
            return (await a.load("s")).state

    assert play(main()) == [1, 2, 4]


def test_hook_that_calls_the_other_face_is_refused(path: Path) -> None:
    """Or one that asks the loop to call this one."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        opened: list[AsyncJournal] = []

        def validate(operation: Any, _: Any) -> None:
            if operation == "sync":
                opened[0].sync.head()
            elif operation == "loop":
                asyncio.run_coroutine_threadsafe(opened[0].head(), loop).result()

        async with journal.open_async(path, validate=validate) as a:
            opened.append(a)
            for operation in ("sync", "loop"):
                with pytest.raises(InvalidOperationError, match="may not call a journal"):
                    await a.append("s", operation, op_id="1")
            assert await a.head() == 0
            await a.append("s", "none", op_id="1")
            opened.clear()

    play(main())


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_bad_hook_hurts_no_other_task(path: Path, raised: type[BaseException]) -> None:
    """Many tasks share a commit; only the one whose operation it was hears of it."""

    def validate(operation: int, _: Any) -> None:
        if operation == 7:
            raise raised

    async def append(a: AsyncJournal, number: int) -> int | None:
        try:
            return (await a.append("s", number, op_id=str(number))).position
        except raised:
            return None

    async def main() -> list[Any]:
        async with journal.open_async(path, validate=validate) as a:
            made = await asyncio.gather(*(append(a, number) for number in range(20)))
            return [number for number, position in enumerate(made) if position is None]

    assert play(main()) == [7]


def test_tasks_that_append_to_one_stream_build_on_each_other(path: Path) -> None:
    """Nothing is applied twice, however the commits were shared."""
    applied: list[int] = []

    def apply(state: int, operation: int) -> int:
        applied.append(operation)
        return state + operation

    async def main() -> Any:
        async with journal.open_async(path, state=Reducer(lambda: 0, apply, int, snapshot_every=7)) as a:
            await asyncio.gather(*(a.append("s", number, op_id=str(number)) for number in range(500)))
            return await a.load("s")

    loaded = play(main())

    assert (loaded.state, loaded.sequence) == (sum(range(500)), 500)
    assert sorted(applied) == list(range(500))
