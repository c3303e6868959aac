"""Calls of users' functions for tasks: in threads, or on the loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
import queue
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar, cast

from journal._core.requests import CutOffError
from journal._drive.common import is_coroutine_function
from journal.options import IDLE_SECONDS

T = TypeVar("T")

_Job = Callable[[], None]


class LoopWaiter:
    """What a task waits on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def release(self) -> None:
        """Let it wait no more; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self.end)

    def end(self) -> None:
        """Let it wait no more; on its loop."""
        if not self.future.done():
            self.future.set_result(None)


class Threads:
    """Threads that run one call after the other, each for a while.

    As many as there are calls at once, without a bound: calls may wait for each other. They are daemons, since a call that
    never ends must not keep the process from its end.
    """

    def __init__(self) -> None:
        self.forget()

    def run(self, job: _Job) -> None:
        """Run a job, which must not raise, in a thread that is free, or in a new one."""
        with self._lock:
            is_free = self._free_count > 0
            self._free_count -= is_free
        if is_free:
            self._jobs.put(job)
        else:
            threading.Thread(target=self._work, args=([job],), name="journal-call", daemon=True).start()

    def forget(self) -> None:
        """Begin anew: a forked child has none of the threads."""
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._free_count = 0

    def _work(self, todo: list[_Job]) -> None:
        while todo:
            todo.pop()()  # while it waits for the next one it keeps nothing of the last
            todo = self._next()

    def _next(self) -> list[_Job]:
        with self._lock:
            self._free_count += 1
        with contextlib.suppress(queue.Empty):
            return [self._jobs.get(timeout=IDLE_SECONDS)]
        with self._lock:
            if self._free_count > 0:
                self._free_count -= 1
                return []
        # Somebody counts on this thread, and has just put a job there.
        return [self._jobs.get()]


_threads: Final = Threads()
os.register_at_fork(after_in_child=_threads.forget)


class ThreadCall:
    """A call in a thread, in a copy of the current context."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._waiter = LoopWaiter()
        self._value: Any = None
        self._error: BaseException | None = None
        self.is_done = False
        self._is_abandoned = False
        self._has_ended = threading.Event()
        _threads.run(partial(contextvars.copy_context().run, self._work))

    def _work(self) -> None:
        try:
            self._value = self._function()
        except GeneratorExit as error:
            self._error = CutOffError(error)
        except BaseException as error:  # noqa: BLE001 - it is raised in the task that waits
            self._error = error
        self.is_done = True
        if self._is_abandoned:
            self.abandon()
        self._has_ended.set()
        self._waiter.release()

    def abandon(self) -> None:
        """Nobody wants its outcome any more: a coroutine that it returns is closed, as nobody will await it."""
        self._is_abandoned = True
        if self.is_done and inspect.iscoroutine(self._value):
            self._value.close()

    def join(self) -> None:
        """Wait in this thread until it has ended."""
        self._has_ended.wait()

    async def wait(self) -> None:
        """Return when it has ended; a wait that was cancelled can be begun again."""
        while not self.is_done:
            if self._waiter.future.cancelled():
                self._waiter.future = asyncio.get_running_loop().create_future()
            await self._waiter.future

    def outcome(self) -> Any:
        """What it returned or raised."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        return self._value


async def in_thread(function: Callable[[], T]) -> T:
    """What a function gives that would block the loop, called in a thread of its own."""
    call = ThreadCall(function)
    try:
        if call.is_done:
            await asyncio.sleep(0)  # the other tasks have their turn, however short it was
        await call.wait()
    except BaseException:
        call.abandon()
        raise
    return cast("T", call.outcome())


async def call_of(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    thread: Callable[[Callable[[], Any]], Awaitable[Any]],
) -> Any:
    """What a user's function gives: a coroutine function is awaited, a plain one called in a thread.

    An awaitable that the plain one returns is awaited, too. A `GeneratorExit` of its own is carried out.
    """
    task = _current_task()
    try:
        if is_coroutine_function(function):
            return await function(*arguments)
        value = await thread(lambda: function(*arguments))
        return await value if inspect.isawaitable(value) else value
    except GeneratorExit as error:
        if _current_task() is not task:  # it is not the user's own: this coroutine is being closed
            raise
        raise CutOffError(error) from error


def _current_task() -> asyncio.Task[Any] | None:
    """The task that runs; nothing where no loop does."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
