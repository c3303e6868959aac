"""`AsyncJournal` behind the synchronous signatures: each call is a task on a loop in another thread."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Self

import journal
from journal import AsyncJournal


class Loop:
    """An event loop in a thread of its own; one for each process, since a forked child has no thread."""

    def __init__(self) -> None:
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread

    def run(self, begin: Callable[[], Awaitable[Any]]) -> Any:
        """What the awaitable gives that `begin` makes on the loop, in the context of the caller."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="loop", daemon=True)
            self._thread.start()
        outcome = _outcome_of(begin)
        if threading.current_thread() is self._thread:
            # A logger's call, say: it cannot wait, but what only looks needs no waiting.
            value, error = _without_waiting(outcome)
        else:
            value, error = asyncio.run_coroutine_threadsafe(outcome, self._loop).result()
        if error is not None:
            raise error
        return value

    @property
    def thread(self) -> int:
        """The thread that it runs in."""
        return self._thread.ident or 0

    def close(self) -> None:
        """End the loop, and whatever is left on it, as `asyncio.run` does."""
        if self._pid == os.getpid():
            self.run(_cancel_all)
            self._loop.call_soon_threadsafe(self._loop.stop)
            while self._loop.is_running():
                threading.Event().wait(0.001)
            self._loop.close()


async def _outcome_of(begin: Callable[[], Awaitable[Any]]) -> tuple[Any, BaseException | None]:
    try:
        return await begin(), None
    except BaseException as error:  # a task that ends by KeyboardInterrupt would end the loop
        return None, error


def _without_waiting(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise AssertionError("a call from the loop's own thread had to wait")


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class LoopJournal:
    """An `AsyncJournal` with the methods of `Journal`."""

    def __init__(self, loop: Loop, opened: AsyncJournal) -> None:
        self._loop = loop
        self._opened = opened

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._opened).replace("AsyncJournal", "Journal")

    def close(self) -> None:
        self._loop.run(self._opened.close)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._opened, name)
        return self._method(value) if callable(value) else value

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            async def begin() -> Any:
                made = method(*arguments, **named)
                return made if hasattr(made, "__anext__") else await made

            made = self._loop.run(begin)
            return self._each(made) if hasattr(made, "__anext__") else made

        return call

    def _each(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        end = object()

        async def step() -> Any:
            return await anext(items, end)

        while (item := self._loop.run(step)) is not end:
            yield item


class AsyncFacade:
    """`journal.open_async`."""

    is_loop = True

    def __init__(self) -> None:
        self._loop = Loop()

    def open(self, path: Path, **options: Any) -> Any:
        async def begin() -> AsyncJournal:
            return await journal.open_async(path, **options)

        return LoopJournal(self._loop, self._loop.run(begin))

    def close(self) -> None:
        self._loop.close()

    @property
    def thread(self) -> int:
        return self._loop.thread
