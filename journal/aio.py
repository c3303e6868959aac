"""`AsyncJournal`: the face for event loops, one line a method over the protocols of `journal._core`.

Its methods are those of `journal.Journal`, awaited, and are described there. Every function that it is given may be a
coroutine function; a plain one is called in a thread of its own, and an awaitable that it returns is awaited.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Self, TypeVar

from journal._core import compaction, copies, effects, pruning, queries, recovery, resolution, states, steps
from journal._core.operations import append as append_operations, cursor, save_cursor
from journal._core.queries import EffectPages, OperationPages, Pages
from journal._core.requests import Steps
from journal._core.rules import Reducer
from journal._drive.calls import LoopWaiter, ThreadCall, in_thread
from journal._drive.committing import Committer
from journal._drive.tasks import Background, TaskDriver
from journal._handle import Face, Handle
from journal.errors import Key, NotPerformed
from journal.options import (
    CLOSE_GRACE_SECONDS,
    MAP_BYTES_DEFAULT,
    PAGE_RECORDS,
    RECONCILE_TIMEOUT_SECONDS,
    WAIT_TIMEOUT_SECONDS,
)
from journal.sync import Journal
from journal.values import (
    Accepted,
    AlreadyCommitted,
    Committed,
    Cursor,
    EffectEvent,
    EffectRecord,
    Finding,
    Loaded,
    Restored,
    Stats,
    Uncertain,
)
from recovery import Intent, Settled

P = TypeVar("P")
T = TypeVar("T")


def open_async(
    path: str | os.PathLike[str],
    *,
    operation: Any = Any,
    state: Reducer | None = None,
    validate: Callable[[Any, Any], Any] | None = None,
    authorize: Callable[[str, Any, Any], bool | str] | None = None,
    upcast: Mapping[str | int, Callable[[Any], Any]] | None = None,
    readonly: bool = False,
    create: bool = True,
    map_size: int = MAP_BYTES_DEFAULT,
    max_size: int | None = None,
    wait_timeout: float = WAIT_TIMEOUT_SECONDS,
    clock: Callable[[], int] = time.time_ns,
    logger: Any = None,
) -> Opening:
    """As `journal.open`, awaited: `a = await journal.open_async(path)`, or `async with journal.open_async(path) as a`.

    Raises, when it is awaited, what `journal.open` raises.
    """
    return Opening(
        lambda: Handle(
            path,
            operation=operation,
            state=state,
            validate=validate,
            authorize=authorize,
            upcast=upcast,
            readonly=readonly,
            create=create,
            map_size=map_size,
            max_size=max_size,
            wait_timeout=wait_timeout,
            clock=clock,
            logger=logger,
        )
    )


class Opening:
    """A journal that is going to be open: awaited, or entered with `async with`."""

    def __init__(self, make_handle: Callable[[], Handle]) -> None:
        self._make_handle = make_handle
        self._opened: AsyncJournal | None = None

    def __await__(self) -> Generator[Any, None, AsyncJournal]:
        """The open journal."""
        return self._open().__await__()

    async def __aenter__(self) -> AsyncJournal:
        """The open journal."""
        self._opened = await self._open()
        return self._opened

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        assert self._opened is not None  # noqa: S101 - it was entered
        await self._opened.close()

    async def _open(self) -> AsyncJournal:
        opening = ThreadCall(self._make_handle)
        cancelled: asyncio.CancelledError | None = None
        while not opening.is_done:
            try:
                await opening.wait()
            except asyncio.CancelledError as error:
                # It cannot be stopped. Who is told that it was cancelled may open the journal at once.
                cancelled = error
        handle: Handle = opening.outcome()
        if cancelled is not None:
            handle.close()
            raise cancelled
        return AsyncJournal(handle)


class AsyncJournal(Face):
    """An open journal for event loops. Tasks share it, threads have `sync`. Made by `journal.open_async`."""

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle)
        self._committer = Committer(handle.store)
        self._background = Background()
        self._sync = _Journal(handle)

    async def __aenter__(self) -> Self:
        """The journal itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()

    @property
    def sync(self) -> Journal:
        """The `Journal` over the same handle, for other threads; on the thread of a running loop it refuses."""
        return self._sync

    async def close(self) -> None:
        """As `Journal.close`, awaited, but for a bound: runs still in flight after `wait_timeout` seconds are left.

        A coroutine `run` is cancelled then, and its intent given up. A plain one cannot be stopped: its intent stands,
        what it returns is not recorded, and other handles take it for in flight until it ends.

        Raises:
            RuntimeError: called from inside a run of this journal, for which it would wait.
        """
        if not await self._wait_for_flights(self._store.wait_timeout) and self._background.cancel_coroutines():
            await self._wait_for_flights(CLOSE_GRACE_SECONDS)
        # Nobody may take for given up what cannot be stopped.
        end_lingering = self._store.linger() if self._handle.flights.has_open() else None
        await in_thread(self._store.close)
        calls = self._background.give_up()
        if end_lingering is not None:
            self._handle.when_nothing_is_in_flight(calls, end_lingering)
        self._committer.close()

    async def aclose(self) -> None:
        """As `close`, under the name that `contextlib.aclosing` calls."""
        await self.close()

    async def _wait_for_flights(self, seconds: float) -> bool:
        waiter = LoopWaiter()
        if self._handle.begin_close(waiter, is_blocking=False):
            try:
                async with asyncio.timeout(seconds):
                    await waiter.future
            except TimeoutError:
                return False
        return True

    # --- operations --------------------------------------------------------------------------------------------

    async def append(
        self, stream: str, operation: Any, *, op_id: str, actor: str = "", expected: int | None = None
    ) -> Committed | AlreadyCommitted:
        """As `Journal.append`, awaited; cancelled while it waits it writes nothing."""
        protocol = append_operations(stream, [(op_id, operation)], actor, expected, self._handle.rules)
        return (await self._run(protocol))[0]

    async def append_all(
        self, stream: str, operations: Iterable[tuple[str, Any]], *, actor: str = "", expected: int | None = None
    ) -> list[Committed | AlreadyCommitted]:
        """As `Journal.append_all`, awaited."""
        return await self._run(append_operations(stream, operations, actor, expected, self._handle.rules))

    def read(self, stream: str | None = None, *, after: int = 0, limit: int | None = None) -> AsyncIterator[Committed]:
        """As `Journal.read`, an async iterator."""
        pages = OperationPages(stream, after, limit, self._handle.rules.schema)
        self._look(queries.check_from(stream, after))
        return self._each(pages)

    async def load(self, stream: str) -> Loaded[Any]:
        """As `Journal.load`, awaited."""
        return await self._run(states.load(stream, self._handle.rules))

    async def streams(self) -> list[str]:
        """As `Journal.streams`, awaited."""
        return await self._run(queries.streams())

    async def compact(
        self, stream: str, through: int, *, past_cursors: Collection[str] = (), past_effects: Collection[Key] = ()
    ) -> Cursor:
        """As `Journal.compact`, awaited; cancelled, it has happened or not, as `floor` says."""
        return await self._run(compaction.compact(stream, through, past_cursors, past_effects, self._handle.snapshot))

    async def floor(self, stream: str | None = None) -> Cursor:
        """As `Journal.floor`, awaited."""
        return await self._run(compaction.floor(stream))

    async def reset(self, stream: str) -> int:
        """As `Journal.reset`, awaited."""
        return await self._run(compaction.reset(stream))

    async def epoch(self, stream: str) -> int:
        """As `Journal.epoch`, awaited."""
        return await self._run(compaction.epoch(stream))

    async def head(self) -> Cursor:
        """As `Journal.head`, awaited."""
        return Cursor(await self._run(queries.head()))

    async def wait(self, after: int, timeout: float | None = None) -> Cursor:  # noqa: ASYNC109 - as `Journal.wait`
        """As `Journal.wait`, awaited."""
        return await self._run(queries.wait(after, timeout))

    async def stats(self) -> Stats:
        """As `Journal.stats`, awaited."""
        self._store.check()
        return await in_thread(self._store.stats)

    def verify(self, *, deep: bool = False) -> AsyncIterator[Finding]:
        """As `Journal.verify`, an async iterator."""
        return _in_threads(self._handle.verify(deep=deep))

    # --- the file ----------------------------------------------------------------------------------------------

    async def backup(self, directory: str | os.PathLike[str]) -> Cursor:
        """As `Journal.backup`, awaited; cancelled, the copy is made nevertheless."""
        return await in_thread(lambda: self._handle.backup(directory))

    async def vacuum(self) -> int:
        """As `Journal.vacuum`, awaited; cancelled, it goes on."""
        return await in_thread(self._store.vacuum)

    async def rebuild(self) -> None:
        """As `Journal.rebuild`, awaited; cancelled, it goes on."""
        await in_thread(self._store.rebuild)

    async def restored(self) -> Restored | None:
        """As `Journal.restored`, awaited."""
        return await self._run(copies.restored())

    async def confirm_restored(self) -> None:
        """As `Journal.confirm_restored`, awaited."""
        await self._run(copies.confirm_restored())

    # --- effects -----------------------------------------------------------------------------------------------

    async def effect(
        self,
        key: Key,
        *,
        run: Callable[[], Any],
        reconcile: Callable[..., Any],
        request: Any = None,
        returns: Any = None,
        reconcile_timeout: float = RECONCILE_TIMEOUT_SECONDS,
    ) -> Accepted[Any] | Uncertain:
        """As `Journal.effect`, awaited; cancelling it cancels neither `run` nor `reconcile`."""
        call = effects.effect_call(
            key,
            run=run,
            reconcile=effects.check_reconcile(reconcile),
            request=request,
            returns=returns,
            reconcile_timeout=reconcile_timeout,
        )
        return await self._run(effects.effect(call, self._store.owner_id, is_copy=self._store.is_copy))

    async def run_effect(
        self,
        key: Key,
        run: Callable[[], Any],
        *,
        retry_failed: bool | Callable[[EffectRecord], bool] = True,
        request: Any = None,
        returns: Any = None,
    ) -> Any:
        """As `Journal.run_effect`, awaited; cancelling it does not cancel `run`."""
        call = effects.effect_call(
            key, run=run, reconcile=None, request=request, returns=returns, retry_failed=retry_failed
        )
        return await self._run(effects.run_effect(call, self._store.owner_id, is_copy=self._store.is_copy))

    async def step(self, key: Key, body: Callable[[], Any], *, returns: Any = None) -> Any:
        """As `Journal.step`, awaited; cancelling it does not cancel `body`."""
        return await self._run(steps.step(key, body, returns))

    async def record(self, key: Key) -> EffectRecord | None:
        """As `Journal.record`, awaited."""
        return await self._run(queries.record(key))

    async def history(self, key: Key) -> list[EffectEvent]:
        """As `Journal.history`, awaited."""
        return await self._run(queries.history(key))

    async def unfinished(self, *, prefix: Key | None = None) -> list[EffectRecord]:
        """As `Journal.unfinished`, awaited."""
        return [record async for record in self._each(EffectPages.unfinished(prefix))]

    def effects(
        self,
        *,
        phase: str | None = None,
        prefix: Key | None = None,
        after: Key | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[EffectRecord]:
        """As `Journal.effects`, an async iterator."""
        pages = EffectPages(phase, prefix, after, limit)
        self._store.check()
        return self._each(pages)

    async def resolve(
        self,
        key: Key,
        outcome: Accepted[Any] | Uncertain | NotPerformed,
        *,
        expected_position: int,
        reason: str,
    ) -> None:
        """As `Journal.resolve`, awaited."""
        await self._run(resolution.resolve(key, outcome, expected_position, reason))

    async def clear_effect(self, key: Key, *, reason: str) -> None:
        """As `Journal.clear_effect`, awaited."""
        await self._run(resolution.clear_effect(key, reason, self._store.owner_id))

    async def prune_effects(self, *, settled_before: int, keep: Callable[[EffectRecord], Any] | None = None) -> int:
        """As `Journal.prune_effects`, awaited."""
        return await self._run(pruning.prune_effects(settled_before, keep))

    # --- recovery ----------------------------------------------------------------------------------------------

    async def recover(
        self,
        from_cursor: int = 0,
        *,
        intents: Callable[[Committed], Any],
        stream: str | None = None,
        on_unresolved: str | Callable[[Intent, EffectRecord | None], Any] = "retry",
        on_uncertain: str | Callable[[Intent, EffectRecord], Any] = "accept",
        concurrency: int = 1,
        limit: int | None = None,
        progress: Callable[[Cursor, Cursor], Any] | None = None,
    ) -> Settled:
        """As `Journal.recover`, awaited.

        Cancelled, it starts nothing more; the effect that is running goes on, and is recorded.
        """
        return await self._run(
            recovery.recover(
                from_cursor,
                intents=intents,
                stream=stream,
                on_unresolved=on_unresolved,
                on_uncertain=on_uncertain,
                concurrency=concurrency,
                limit=limit,
                progress=progress,
                schema=self._handle.rules.schema,
                owner=self._store.owner_id,
                is_copy=self._store.is_copy,
                check=lambda _: None,
            )
        )

    async def save_cursor(self, name: str, cursor: int, *, stream: str | None = None) -> None:
        """As `Journal.save_cursor`, awaited."""
        await self._run(save_cursor(name, cursor, stream))

    async def cursor(self, name: str) -> Cursor:
        """As `Journal.cursor`, awaited."""
        return await self._run(cursor(name))

    # --- how it is done ----------------------------------------------------------------------------------------

    def _driver(self) -> TaskDriver:
        self._store.check()
        return TaskDriver(
            self._store,
            self._handle.flights,
            self._handle.log,
            committer=self._committer,
            background=self._background,
        )

    async def _run(self, protocol: Steps[T]) -> T:
        return await self._driver().run(protocol)

    def _look(self, protocol: Steps[T]) -> T:
        """What a protocol returns that only looks, at once."""
        return self._driver().look(protocol)

    async def _each(self, pages: Pages[P, T]) -> AsyncIterator[T]:
        # In a thread: a page is many records, perhaps from the disk.
        while page := await in_thread(lambda: self._handle.run(pages.next())):
            for item in page:
                yield pages.decode(item)


async def _in_threads(items: Iterator[T]) -> AsyncIterator[T]:
    """What an iterator gives that blocks, asked for in threads, some at a time."""
    while page := await in_thread(lambda: list(islice(items, PAGE_RECORDS))):
        for item in page:
            yield item


class _Journal(Journal):
    """The `Journal` of an `AsyncJournal`, for threads that may be blocked."""

    def _check_caller(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise RuntimeError(
            "a call of the synchronous journal would block this thread's event loop, and what it waits for may need "
            "the loop; await the method of AsyncJournal, or call this one from another thread (asyncio.to_thread)"
        )
