"""Drives protocols on an event loop.

`TaskDriver.run` answers what needs no waiting in the caller's own task, so a settled effect is given without
suspending. From where the protocol acts for a key, it goes on in a task of its own: whoever cancels the caller cancels
neither a `run` nor a `reconcile`. Reads are short and done on the loop; what waits for the writer, and every plain
function that acts, is in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, ClassVar, Final, TypeVar, cast

from journal._core import requests
from journal._core.requests import CutOffError, DeadlineError, RunRaisedError, Steps
from journal._drive.calls import LoopWaiter, ThreadCall, call_of, in_thread
from journal._drive.committing import Committer, TaskEntry
from journal._drive.common import Driver
from journal._drive.signals import AsyncSignal
from journal._flights import Flight, Flights, Joined, inside
from journal._logs import Log
from journal._storage.store import Store
from journal.errors import JournalClosedError, JournalError, JournalReadonlyError
from journal.options import RECONCILE_GRACE_SECONDS, TURN_SECONDS_MAX

T = TypeVar("T")

_WAITS: Final = object()
"""Says that a request cannot be answered at once."""


class Background:
    """The tasks that act for keys whatever becomes of their callers, those that still ask a recipient, and walks.

    A handle may be used on several loops, and be closed on one of them.
    """

    def __init__(self) -> None:
        self.drivers: dict[asyncio.Task[None], TaskDriver] = {}
        self.stragglers: set[asyncio.Task[Any]] = set()
        self.branches: set[asyncio.Task[Any]] = set()

    def cancel_coroutines(self) -> bool:
        """Cancel what can be stopped; whether there was any."""
        tasks = [task for task, driver in list(self.drivers.items()) if driver.thread_call is None]
        for task in tasks:
            _cancel(task)
        return bool(tasks)

    def give_up(self) -> list[ThreadCall]:
        """Wait for nothing any more, and for nobody's answer; the calls in threads that go on."""
        calls = [driver.thread_call for driver in self.drivers.values()]
        for task, driver in list(self.drivers.items()):
            driver.is_given_up = True
            _cancel(task)
        for straggler in list(self.stragglers):
            _cancel(straggler)
        return [call for call in calls if call is not None]


def _cancel(task: asyncio.Task[Any]) -> None:
    """Cancel a task of whatever loop."""
    with contextlib.suppress(RuntimeError):  # the loop was closed
        task.get_loop().call_soon_threadsafe(task.cancel)


class TaskDriver(Driver):
    """Runs one protocol, for one task."""

    def __init__(
        self, store: Store, flights: Flights, log: Log, *, committer: Committer, background: Background
    ) -> None:
        super().__init__(store, flights, log)
        self._committer = committer
        self._background = background
        self._request: Any = None
        self._joined: Joined[LoopWaiter] | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        # Nothing more may start: the caller is gone, or the task was cancelled where it could not stop.
        self._is_abandoned = False
        self._branches: dict[asyncio.Task[Any], Any] = {}
        # What a user's function came to is at hand, and not on record yet.
        self._has_result = False
        self._idle: asyncio.Future[Any] | None = None
        self._asked: TaskEntry | None = None
        self._looked_at = time.monotonic()
        self.thread_call: ThreadCall | None = None
        """The plain function that acts just now."""
        self.is_given_up = False

    async def run(self, protocol: Steps[T]) -> T:
        """What the protocol returns."""
        try:
            return await self._run(protocol)
        except (RunRaisedError, CutOffError) as raised:
            users_own = raised.error
        # The very exception of the user's function; outside the except, which would become its context.
        try:
            raise users_own
        finally:
            del users_own

    def look(self, protocol: Steps[T]) -> T:
        """What a protocol returns that only looks, at once."""
        assert not self._go(protocol)  # noqa: S101 - a bug of ours: it asked for something that must be waited for
        return cast("T", self._value)

    async def _run(self, protocol: Steps[T]) -> T:
        try:
            if not self._go(protocol):
                return cast("T", self._value)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                await self._take_cancellation(protocol)
            while not self._acts():
                if not await self._step(protocol):
                    return cast("T", self._value)
        except BaseException:
            self._end_flights()
            self._leave_joined()
            raise
        await self._run_in_background(protocol)
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # no circle through this frame, which keeps the handle
        return cast("T", self._value)

    async def _take_cancellation(self, protocol: Steps[Any]) -> None:
        """Let a caller that is cancelled already hear of it before anything is written."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            protocol.close()
            raise

    def _acts(self) -> bool:
        return any(not flight.ended for flight in self._entered)

    async def _run_in_background(self, protocol: Steps[Any]) -> None:
        has_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end(task: asyncio.Task[None]) -> None:
            del self._background.drivers[task]
            if task.cancelled():  # before its first step
                protocol.close()
                self._error = asyncio.CancelledError()
            self._end_flights()
            if not has_ended.done():
                has_ended.set_result(None)
            else:
                self._tell_nobody()

        task = asyncio.get_running_loop().create_task(self.finish(protocol), name="journal-effect")
        self._background.drivers[task] = self
        task.add_done_callback(end)
        try:
            await has_ended
        except asyncio.CancelledError:
            self._abandon()
            raise

    def _tell_nobody(self) -> None:
        """Raise on the loop what ended the call, where its caller is gone and no record tells of it."""
        error, self._error = self._error, None
        if isinstance(error, (RunRaisedError, CutOffError)):
            error = error.error
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            raise error
        if isinstance(error, Exception) and not isinstance(error, JournalError):
            message = "a call of the journal failed whose caller was cancelled"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

    async def finish(self, protocol: Steps[Any]) -> None:
        """Follow the protocol to its end, and keep what it came to."""
        try:
            while await self._step(protocol):
                pass
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's task
            self._error = error

    def _abandon(self) -> None:
        """The caller is gone: end what only waits; what acts goes on."""
        self._is_abandoned = True
        if self._idle is not None:
            self._idle.cancel()
        if self._asked is not None and self._asked.entry.withdraw():
            # An intent that waits for its turn: nothing was written, and nothing is run.
            self._asked.wake()

    async def _step(self, protocol: Steps[Any]) -> bool:
        """Wait for the answer to the request at hand, and go on; False at the protocol's end."""
        request = self._request
        try:
            answer = await self._ANSWERS[type(request)](self, request)
        except BaseException as error:  # noqa: BLE001 - the protocol decides what an exception means
            return self._go(protocol, error=error)
        return self._go(protocol, answer)

    def _go(self, protocol: Steps[Any], answer: Any = None, *, error: BaseException | None = None) -> bool:
        """Follow the protocol through all that can be answered at once; False at its end."""
        try:
            self._request = protocol.send(answer) if error is None else protocol.throw(error)
            while (answers := self._AT_ONCE.get(type(self._request))) is not None:
                try:
                    answer = answers(self, self._request)
                except BaseException as raised:  # noqa: BLE001 - as above
                    self._request = protocol.throw(raised)
                else:
                    if answer is _WAITS:
                        break
                    self._request = protocol.send(answer)
        except StopIteration as end:
            self._value = end.value
            return False
        finally:
            del error
        return True

    # --- what is answered at once -------------------------------------------------------------------------------

    def _read(self, request: requests.Read) -> Any:
        return _WAITS if request.is_long else self.read(request)

    def _enter(self, request: requests.Enter) -> Any:
        if self._store.readonly:
            raise JournalReadonlyError(self._store.directory)
        if not request.wait and self._is_abandoned:
            return None
        self._check_abandoned()
        self._elapsed_ms = None
        self._entered = [flight for flight in self._entered if not flight.ended]
        entered = self._flights.enter(request, self._entered, LoopWaiter, is_blocking=False)
        if isinstance(entered, Joined):
            self._joined = entered
            return _WAITS
        if entered is not None:
            entered.is_lost = partial(self._is_lost, asyncio.get_running_loop())
        return entered

    def _is_lost(self, loop: asyncio.AbstractEventLoop) -> bool:
        # A plain function in its thread goes on without the loop: until it ends, the effect is in flight.
        return loop.is_closed() and (self.thread_call is None or self.thread_call.is_done)

    def _spawn(self, request: requests.Spawn) -> None:
        """Run a protocol in a task of its own, which goes on when this one ends."""
        driver = TaskDriver(
            self._store, self._flights, self._log, committer=self._committer, background=self._background
        )
        branch = asyncio.get_running_loop().create_task(
            _outcome_of(lambda: driver.run(request.protocol)), name="journal-walk"
        )
        self._background.branches.add(branch)
        branch.add_done_callback(self._background.branches.discard)
        self._branches[branch] = request.tag

    _AT_ONCE: ClassVar[dict[type[Any], Callable[[TaskDriver, Any], Any]]] = {
        requests.Read: _read,
        requests.Enter: _enter,
        requests.IsAlive: Driver.is_alive,
        requests.Note: Driver.note,
        requests.Spawn: _spawn,
    }

    # --- what is waited for -------------------------------------------------------------------------------------

    async def _read_in_thread(self, request: requests.Read) -> Any:
        return await in_thread(lambda: self.read(request))

    async def _join(self, request: requests.Enter) -> Flight | None:
        joined = self._joined
        assert joined is not None  # noqa: S101 - `_enter` has just put it there
        try:
            await self._wait_idly(joined.waiter.future)
        finally:
            self._leave_joined()
        joined.check()
        return None

    def _leave_joined(self) -> None:
        joined, self._joined = self._joined, None
        if joined is not None:
            joined.leave()

    async def _commit(self, request: requests.Commit) -> Any:
        # What a run came to is recorded, whoever is cancelled; a person's decision can wait for its next try.
        must_land = request.settles and self._acts()
        waiting = self._committer.submit(
            request.decide, settles=request.settles, can_withdraw=not must_land and not self._has_result
        )
        self._asked = waiting
        cancelled: asyncio.CancelledError | None = None
        while not waiting.entry.is_done:
            try:
                await waiting.wait()
            except asyncio.CancelledError as error:
                if waiting.entry.withdraw():
                    raise
                # It is being flushed, or records what was done: no commit is half known.
                cancelled = error
                self._is_abandoned = True
            except GeneratorExit:
                waiting.entry.withdraw()
                raise
        self._asked = None
        if waiting.entry.is_withdrawn:
            raise asyncio.CancelledError
        had_result, self._has_result = self._has_result, False
        answer = self._answer_of(waiting.entry)
        if cancelled is not None and not must_land:
            raise cancelled
        if had_result and self._is_abandoned and not must_land:
            # It recorded what was done and, in a walk, began what comes next: that is taken back.
            raise asyncio.CancelledError
        return answer

    async def _call(self, request: requests.Call) -> Any:
        started = time.perf_counter()
        token = inside.set(self._inside())
        try:
            value = await call_of(request.function, (), self._in_thread)
        finally:
            _reset(token)
            self._took(started)
        self._has_result = True
        return value

    async def _decide(self, request: requests.Decide) -> Any:
        self._check_abandoned()
        if time.monotonic() - self._looked_at > TURN_SECONDS_MAX:
            # Reads are answered at once: a long walk, of which nothing else waits, lets others have their turns.
            await asyncio.sleep(0)
            self._looked_at = time.monotonic()
        token = inside.set(self._inside())
        try:
            return await call_of(request.function, request.arguments, in_thread)
        finally:
            _reset(token)

    async def _ask(self, request: requests.Ask) -> Any:
        """Ask in a task of its own, so that the deadline holds whether or not the reconcile looks at it."""
        signal = AsyncSignal(request.key, request.attempt, request.first_at, request.seconds)
        started = time.perf_counter()
        token = inside.set(self._inside())
        try:
            asking = asyncio.get_running_loop().create_task(
                _outcome_of(lambda: call_of(request.reconcile, (signal,), in_thread)), name="journal-reconcile"
            )
        finally:
            _reset(token)
        self._background.stragglers.add(asking)
        asking.add_done_callback(self._background.stragglers.discard)
        try:
            done, _ = await asyncio.wait({asking}, timeout=request.seconds)
        except asyncio.CancelledError:
            asking.cancel()
            raise
        finally:
            signal.cancel()
            self._took(started)
        if not done:
            # It was told to stop, and is stopped where it does not.
            asyncio.get_running_loop().call_later(RECONCILE_GRACE_SECONDS, asking.cancel)
            raise DeadlineError(f"the recipient did not answer within {request.seconds} seconds")
        value, error = asking.result()
        if error is not None:
            raise error
        return value

    async def _pause_for(self, request: requests.Pause) -> None:
        seconds = self._seconds_to_pause(request)
        waiter = LoopWaiter()
        timer = asyncio.get_running_loop().call_later(seconds, waiter.end)
        try:
            await self._wait_idly(waiter.future)
        finally:
            timer.cancel()

    async def _report(self, request: requests.Progress) -> None:
        progress = self._progress_of(request)
        if progress is not None:
            await self._decide(progress)

    async def _await(self, request: requests.Await) -> requests.Ended:
        done, _ = await asyncio.wait(self._branches, return_when=asyncio.FIRST_COMPLETED)
        branch = next(iter(done))
        tag = self._branches.pop(branch)
        try:
            value, error = branch.result()
        except asyncio.CancelledError as cancelled:
            return requests.Ended(tag, error=cancelled)
        return requests.Ended(tag, value, error)

    _ANSWERS: ClassVar[dict[type[Any], Callable[[TaskDriver, Any], Coroutine[Any, Any, Any]]]] = {
        requests.Read: _read_in_thread,
        requests.Enter: _join,
        requests.Commit: _commit,
        requests.Call: _call,
        requests.Decide: _decide,
        requests.Ask: _ask,
        requests.Pause: _pause_for,
        requests.Progress: _report,
        requests.Await: _await,
    }

    async def _wait_idly(self, future: asyncio.Future[None]) -> None:
        """Wait for what can be left alone when the caller is gone."""
        self._check_abandoned()
        self._idle = future
        try:
            await future
        finally:
            self._idle = None

    def _check_abandoned(self) -> None:
        if self._is_abandoned:
            raise asyncio.CancelledError

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        """Call a function that acts. It cannot be stopped, so its outcome is waited for whoever cancels this task."""
        call = self.thread_call = ThreadCall(function)
        is_cancelled = False
        while not call.is_done:
            try:
                await call.wait()
            except asyncio.CancelledError:
                if self.is_given_up:
                    call.abandon()
                    raise JournalClosedError(self._store.directory) from None
                is_cancelled = self._is_abandoned = True
        self.thread_call = None
        value = call.outcome()
        task = asyncio.current_task()
        if is_cancelled and task is not None and inspect.isawaitable(value):
            task.cancel()  # what is left to be done is done by this task, and can be cut off
        return value


def _reset(token: contextvars.Token[frozenset[Flight]]) -> None:
    with contextlib.suppress(ValueError):  # what a closed loop left behind is ended in another context
        inside.reset(token)


async def _outcome_of(begin: Callable[[], Awaitable[Any]]) -> tuple[Any, BaseException | None]:
    """What it gives and what it raises: a task that ended by `SystemExit` would end the loop before its caller."""
    try:
        return await begin(), None
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return None, error
    except GeneratorExit as error:
        return None, CutOffError(error)
    except BaseException as error:  # noqa: BLE001 - as above
        return None, error
