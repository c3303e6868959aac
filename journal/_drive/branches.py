"""Protocols that run beside another one, each in a thread while it runs.

A thread that is free takes the next one, so there are as many as ever ran at once. They are daemons: a process that
ends does not wait for a recipient that hangs; what was in flight is then as after a crash.
"""

from __future__ import annotations

import contextvars
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from journal._core.requests import Ended, Spawn, Steps

_Drive = Callable[[Steps[Any]], Any]
_Job = tuple[contextvars.Context, Spawn]


class Branches:
    """What one driver has spawned. `drive` runs a protocol to its end, and is called in another thread for each."""

    def __init__(self, drive: _Drive) -> None:
        self._drive = drive
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._ended: SimpleQueue[Ended] = SimpleQueue()
        self._running_count = 0
        self._thread_count = 0
        # An interrupt may come before `end`; the threads keep nothing that leads here.
        self._end = weakref.finalize(self, self._jobs.put, None)

    def spawn(self, request: Spawn) -> None:
        """Begin to run a protocol, under a copy of the caller's context."""
        if self._running_count == self._thread_count:
            work = (self._jobs, self._ended, self._drive)
            threading.Thread(target=_work, args=work, name="journal-walk", daemon=True).start()
            self._thread_count += 1
        self._running_count += 1
        self._jobs.put((contextvars.copy_context(), request))

    def wait(self) -> Ended:
        """The next one that ends; an interrupt gets through."""
        ended = self._ended.get()
        self._running_count -= 1
        return ended

    def end(self) -> None:
        """Let each thread go when what it runs has ended."""
        self._end()


def _work(jobs: SimpleQueue[_Job | None], ended: SimpleQueue[Ended], drive: _Drive) -> None:
    while (job := jobs.get()) is not None:
        ended.put(_run(drive, *job))
        # A thread that waits for the next one keeps nothing of the last.
        del job
    # Each tells the next: after an interrupt nobody could count them.
    jobs.put(None)


def _run(drive: _Drive, context: contextvars.Context, request: Spawn) -> Ended:
    try:
        return Ended(request.tag, context.run(drive, request.protocol))
    except BaseException as error:  # noqa: BLE001 - whoever waits decides what it means
        return Ended(request.tag, error=error)
