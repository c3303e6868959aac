"""Tasks that are cancelled at a step that the test names, and a loop that tells what it would only have logged."""

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any

from .support import PATIENCE, wait_for

BACKGROUND = ("TaskDriver.finish", "_outcome_of")
"""Where the tasks begin that act whatever becomes of their callers."""


class Watched(Coroutine[Any, Any, Any]):
    """A coroutine that tells of each of its suspensions, with the future that it waits for."""

    def __init__(self, inner: Coroutine[Any, Any, Any], tell: Callable[[Any], None]) -> None:
        self._inner = inner
        self._tell = tell

    def send(self, value: Any) -> Any:
        return self._told(self._inner.send(value))

    def throw(self, *error: Any) -> Any:
        return self._told(self._inner.throw(*error))

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise AssertionError("only tasks run it")

    def _told(self, future: Any) -> Any:
        self._tell(future)
        return future


class Cancelling:
    """Cancels at the n-th suspension of the tasks that it watches.

    `who` is what it watches and cancels: the `caller`, the tasks in the `background`, or `all` at a suspension of any
    of these, as the end of a loop does. A late cancellation comes when what is waited for has come already.
    """

    def __init__(self, step: int, who: str, *, is_late: bool) -> None:
        self._left = step
        self._who = who
        self._is_late = is_late
        self._main: asyncio.Task[Any] | None = None
        self.tasks: list[asyncio.Task[Any]] = []
        self.has_come = False

    def install(self) -> None:
        """Watch the tasks that are made on this loop from now on."""
        self._main = asyncio.current_task()
        asyncio.get_running_loop().set_task_factory(self._make)

    def _make(self, loop: Any, coroutine: Any, **options: Any) -> Any:
        is_background = coroutine.__qualname__ in BACKGROUND
        is_caller = coroutine.__qualname__.endswith(".called")
        if not is_background and not is_caller:
            return asyncio.Task(coroutine, loop=loop, **options)
        is_watched = {"caller": is_caller, "background": is_background, "all": True}[self._who]
        if not is_watched:
            task = asyncio.Task(coroutine, loop=loop, **options)
        else:
            task = asyncio.Task(Watched(coroutine, lambda future: self._suspended(task, future)), loop=loop, **options)
            self._count(lambda: self._cancel(task))  # before its first step
        self.tasks.append(task)
        return task

    def _suspended(self, task: asyncio.Task[Any], future: Any) -> None:
        if self._is_late and future is not None:
            self._count(lambda: future.add_done_callback(lambda _: self._cancel(task)))
        else:
            self._count(lambda: self._cancel(task))

    def _count(self, act: Callable[[], None]) -> None:
        self._left -= 1
        if self._left == -1:
            self.has_come = True
            act()

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        if self._who != "all":
            task.cancel()
            return
        for one in asyncio.all_tasks() - {self._main}:
            one.cancel()


async def settle() -> None:
    """Return when every other task has ended, whatever it ended by."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


@contextmanager
def silence() -> Generator[list[Any], None, None]:
    """Nothing goes unheard: no exception that nobody retrieves, no task that is destroyed while it waits."""
    told: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: told.append(unraisable.exc_value)
    try:
        yield told
        gc.collect()
    finally:
        sys.unraisablehook = hook
    if told:
        raise AssertionError(told)


def run(main: Coroutine[Any, Any, Any], told: list[Any], *, debug: bool = False) -> Any:
    """As `asyncio.run`, and what the loop would log is told."""
    with asyncio.Runner(debug=debug) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: told.append(context))
        return runner.run(main)


def play(main: Coroutine[Any, Any, Any], *, debug: bool = False) -> Any:
    """What a coroutine gives, on a loop of its own, of which nothing goes unheard."""
    with silence() as told:
        return run(main, told, debug=debug)


class Door:
    """A run that says that it was entered and goes on when it is let: a coroutine, a plain function, or in between."""

    def __init__(self, style: str = "coroutine", answer: Any = "proof") -> None:
        self.count = 0
        self.cancelled_count = 0
        self.entered = threading.Event()
        self._opened = threading.Event()
        self._answer = answer
        self.run: Callable[..., Any] = {
            "coroutine": self._coroutine,
            "plain": self._plain,
            "awaitable": lambda *given: self._coroutine(*given),  # noqa: PLW0108 - a plain function is the point
        }[style]

    async def _coroutine(self, *_: Any) -> Any:
        self._enter()
        try:
            while not self._opened.is_set():  # noqa: ASYNC110 - threads open it, too
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled_count += 1
            raise
        return self._come_out()

    def _plain(self, *_: Any) -> Any:
        self._enter()
        wait_for(self._opened)
        return self._come_out()

    def _enter(self) -> None:
        self.count += 1
        self.entered.set()

    def _come_out(self) -> Any:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    async def wait_until_entered(self) -> None:
        """Return when the run has begun."""
        async with asyncio.timeout(PATIENCE):
            while not self.entered.is_set():  # noqa: ASYNC110 - threads enter it, too
                await asyncio.sleep(0.001)

    def open(self) -> None:
        """Let the run go on."""
        self._opened.set()
