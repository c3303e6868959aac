"""`Journal`: the synchronous face, one line a method over the protocols of `journal._core`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from journal._core import compaction, copies, effects, operations, pruning, queries, recovery, resolution, states, steps
from journal._core.operations import append as append_operations
from journal._core.queries import EffectPages, OperationPages, Pages
from journal._core.requests import Steps
from journal._core.rules import Reducer
from journal._drive.common import is_coroutine_function
from journal._handle import Face, Handle, verify_path
from journal.errors import Key, NotPerformed
from journal.options import MAP_BYTES_DEFAULT, RECONCILE_TIMEOUT_SECONDS, WAIT_TIMEOUT_SECONDS
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


def open(  # noqa: A001 - `journal.open` is how the module is used
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
) -> Journal:
    """Open the journal in a directory, and make it where the directory is empty or missing.

    Args:
        path: The journal's directory; its parent must exist.
        operation: The type of the operations (anything that msgspec decodes). Without one, an operation is a value of
            JSON that comes back equal.
        state: How the operations of a stream come to its state. Without it `validate` and `authorize` get `None` as state.
        validate: Called with an operation that is new and the state before it; raises to refuse it.
        authorize: Called with actor, operation and state; gives True, or False or a reason to refuse it.
        upcast: For each tag that the declared type does not have any more, a function that makes the old operation, as
            JSON would be decoded, into a newer shape.
        readonly: Refuse every write.
        create: Make a journal where none is.
        map_size: Where the file's map begins, in bytes: address space, not disk. It grows by itself.
        max_size: The ceiling of the map in bytes; without one, the disk is.
        wait_timeout: How long a call waits for another process, in seconds.
        clock: The time, in nanoseconds since the epoch.
        logger: Anything with structlog's `debug`, `info`, `warning`, `error`, or a logger of the standard library;
            without one, events go to the standard library's logger `journal`.

    Raises:
        FileNotFoundError: no journal is there and `create` is false, or the parent directory is missing.
        PermissionError: its files may not be opened.
        JournalLockedError: this process has it open already.
        JournalBusyError: a process of another pid namespace has this one's pid, or one that is stopped just makes it, or
            one replaces its data file (`vacuum`, `rebuild`) for longer than `wait_timeout`.
        UnsupportedFormatError: the directory holds something else, a newer format, or a damaged data file.
        UnsupportedFilesystemError: it lies on a network file system.
    """
    return Journal(
        Handle(
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


def verify(path: str | os.PathLike[str]) -> Iterator[Finding]:
    """What is wrong with the journal in a directory, whether or not it can be opened; empty when it is sound.

    A process of its own looks at it, which a damaged file may end: that is a finding too. Changes nothing. For a journal
    that is open, `Journal.verify` is quicker.

    Raises:
        FileNotFoundError: no data file is there.
    """
    return verify_path(path)


class Journal(Face):
    """An open journal. Threads may share it; a forked child may not. Made by `journal.open`."""

    def __enter__(self) -> Self:
        """The journal itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Wait for the runs in flight, and close the files; twice is fine. Every other method then refuses.

        Raises:
            RuntimeError: called from inside a run of this journal, for which it would wait.
        """
        self._check_caller()
        self._handle.close()

    # --- operations --------------------------------------------------------------------------------------------

    def append(
        self, stream: str, operation: Any, *, op_id: str, actor: str = "", expected: int | None = None
    ) -> Committed | AlreadyCommitted:
        """Commit one operation; durable when this returns.

        An op_id that the stream has seen with the same payload and actor is answered with its first `Committed`, now
        `repeated`. Sequences of a stream and positions of the log start at 1 and have no gap; what is refused consumes
        none. The operation comes back as decoded.

        Args:
            stream: Its stream, 1 to 255 bytes of UTF-8.
            operation: A value of the type that the journal was opened with.
            op_id: Its identity within the stream, 1 to 4,096 bytes of UTF-8.
            actor: Who appends it, at most 4,096 bytes of UTF-8.
            expected: The sequence that the stream must be at; 0: it must be empty.

        Raises:
            InvalidOperationError: it could not be read back, `validate` refused it, or the reducer cannot apply it.
            OperationRefusedError: `authorize` said no.
            IdentityConflictError: the op_id was committed with another payload or actor.
            SequenceConflictError: the stream is at another sequence than expected.
            JournalFullError, JournalBusyError, CommitFailedError, JournalReadonlyError: nothing was written.
        """
        return self._run(append_operations(stream, [(op_id, operation)], actor, expected, self._handle.rules))[0]

    def append_all(
        self, stream: str, operations: Iterable[tuple[str, Any]], *, actor: str = "", expected: int | None = None
    ) -> list[Committed | AlreadyCommitted]:
        """Commit several operations of one stream in one transaction, all or nothing; durable when this returns.

        Gives one answer for each, in order; of nothing an empty list. An op_id twice in `operations` is answered as
        repeated. Raises as `append`.
        """
        return self._run(append_operations(stream, operations, actor, expected, self._handle.rules))

    def read(self, stream: str | None = None, *, after: int = 0, limit: int | None = None) -> Iterator[Committed]:
        """The operations past a position, in log order: of one stream, or of all.

        Reads in bounded pages, and what is committed meanwhile is still met. `after` is exclusive; `limit` bounds how
        many come.

        Raises:
            InvalidCursorError: `after` is outside the log; at the call.
            CompactedCursorError: an operation past `after` was compacted; at the call, or later where it is meanwhile.
            InvalidOperationError: today's type does not decode an operation; at that operation.
            CorruptRecordError: a record is damaged; at that record.
        """
        pages = OperationPages(stream, after, limit, self._handle.rules.schema)
        self._run(queries.check_from(stream, after))
        return self._each(pages)

    def load(self, stream: str) -> Loaded[Any]:
        """The state that a stream's operations come to, with the position and sequence of the last one.

        It begins with what this handle remembers or with a snapshot, and applies what came after; of an unknown stream,
        and after a reset, it is `initial()`. Everybody gets a state of his own.

        Raises:
            TypeError: the journal was opened without `state`.
            InvalidOperationError: an operation can be neither decoded nor applied; with its position.
            CorruptRecordError: a record is damaged, or what the state is made of was compacted away.
        """
        return self._run(states.load(stream, self._handle.rules))

    def streams(self) -> list[str]:
        """The names of all streams, sorted by code point; those that were reset and are empty too."""
        return self._run(queries.streams())

    def compact(
        self, stream: str, through: int, *, past_cursors: Collection[str] = (), past_effects: Collection[Key] = ()
    ) -> Cursor:
        """Drop the content of a stream's operations at or below a position; the stream's floor afterwards.

        What is left of an operation is its place, its identity and its hash: an append that repeats it is answered with
        `AlreadyCommitted`, sequences and positions go on, and the digest chain holds. From the commit of one record on
        the operations can no longer be read; their bytes then go in bounded transactions, others' writes in between.
        Where that was cut off, the next `compact`, of whatever stream, ends it. The file keeps its size and uses the
        freed pages again. Operations of epochs that have ended are dropped as well.

        Where there is nothing to drop (the floor is there already, or no operation of the stream lies between),
        nothing is written.

        Args:
            stream: The stream.
            through: A position from 1 to the head; the new floor.
            past_cursors: Names of saved cursors that may lose operations that they have yet to read.
            past_effects: Keys of unfinished effects whose operations may go.

        Raises:
            InvalidCompactionError: the stream is unknown, `through` is outside the log, or the compaction would pass an
                operation that a saved cursor has yet to read, or that has unfinished effects (by `effect_key`).
            JournalFullError, JournalBusyError, CommitFailedError: `floor` says whether the compaction has happened.
        """
        return self._run(compaction.compact(stream, through, past_cursors, past_effects, self._handle.snapshot))

    def floor(self, stream: str | None = None) -> Cursor:
        """The position through which a stream is compacted, or the highest of all streams; 0 where nothing is."""
        return self._run(compaction.floor(stream))

    def reset(self, stream: str) -> int:
        """Let a stream begin anew, in a new epoch; its number. Durable when this returns.

        The next operation has sequence 1, every op_id is new, and so are the effects that `effect_key` names; positions
        go on. Operations from before are no longer read, and remain in the log until a `compact` passes them; records of
        their effects and saved cursors stay. The stream's floor is 0 again. Of a stream that never had an operation
        nothing is written, and the epoch is 1.
        """
        return self._run(compaction.reset(stream))

    def epoch(self, stream: str) -> int:
        """The number of a stream's present epoch: 1, and 1 more for each `reset`."""
        return self._run(compaction.epoch(stream))

    def head(self) -> Cursor:
        """The last position of the log; 0 when it is empty."""
        return Cursor(self._run(queries.head()))

    def wait(self, after: int, timeout: float | None = None) -> Cursor:
        """The head, once something is committed past `after`, by any process; at the timeout the head as it is.

        A wake-up, not a transport: what was committed is to be read. It looks at least ten times a second.

        Args:
            after: A position, 0 to the head.
            timeout: Seconds; `None` waits without end.

        Raises:
            InvalidCursorError: `after` is outside the log.
            ValueError: the timeout is no number of seconds from 0 on.
        """
        return self._run(queries.wait(after, timeout))

    def stats(self) -> Stats:
        """Counts of what the journal holds, and its size; looks at every index row."""
        self._check_caller()
        return self._store.stats()

    def verify(self, *, deep: bool = False) -> Iterator[Finding]:
        """What is wrong with the file's pages, the log, its digest chain and its indexes; empty when it is sound.

        Changes nothing. Where pages are damaged, the records are looked at by a process of their own, which they may end.

        Args:
            deep: Hold each snapshot against its stream's operations, folded anew, too. Those of compacted streams and of
                other versions of the reducer cannot be.

        Raises:
            TypeError: `deep` is no bool, or the journal was opened without `state`.
        """
        self._check_caller()
        return self._handle.verify(deep=deep)

    # --- the file ----------------------------------------------------------------------------------------------

    def backup(self, directory: str | os.PathLike[str]) -> Cursor:
        """Make a copy of the journal while it is in use, and give the last position of its log.

        It is one state of the journal, verified and flushed, and gets its name when it is whole. It is a journal in its
        turn, which knows that it is a copy: see `confirm_restored`. No writer is waited for, and none waits.

        Args:
            directory: Where the copy is to be, new or empty; its parent must exist.

        Raises:
            FileExistsError: something is there.
            FileNotFoundError: its parent is missing.
            ValueError: it lies in this journal's own directory.
            CorruptRecordError: a record is damaged; nothing is left of the copy.
            JournalFullError: there is no room for it.
            JournalBusyError: another copy to the same place is being made.
        """
        self._check_caller()
        return self._handle.backup(directory)

    def vacuum(self) -> int:
        """Give the disk back what the file does not need any more; how many bytes that is.

        A compact copy is made, verified and flushed, and takes the file's place: it needs room beside it for a while.
        Readers and runs in this process go on, commits wait. No other process may have the journal open.

        Raises:
            JournalBusyError: another process has it open.
            JournalFullError: there is no room for the copy.
            CorruptRecordError: a record is damaged; the file is as it was.
            JournalReadonlyError: this handle may not write.
        """
        self._check_caller()
        return self._store.vacuum()

    def rebuild(self) -> None:
        """Make the indexes anew from the log, where `verify` finds them damaged.

        The log, the cursors and the snapshots are kept; a cursor or a snapshot that cannot be read is left out. Takes the
        file's place as `vacuum` does, and raises as that.

        Raises:
            CorruptRecordError: the log itself is damaged, at that position; restore a backup. The file is as it was.
        """
        self._check_caller()
        self._store.rebuild()

    def restored(self) -> Restored | None:
        """What the journal says of itself where it is a copy (a backup, or restored from one); else `None`."""
        return self._run(copies.restored())

    def confirm_restored(self) -> None:
        """Say of a copy that nothing was done after it was made that it does not know of; durable when this returns.

        Until then, an effect that has no record, or that was known not to have been performed when the copy was made, is
        reconciled before it is run, and refused (`EffectConflictError`) where nothing is on record and it has no
        `reconcile`. Of a journal that is no copy, or was confirmed before: nothing.
        """
        self._run(copies.confirm_restored())

    # --- effects -----------------------------------------------------------------------------------------------

    def effect(
        self,
        key: Key,
        *,
        run: Callable[[], Any],
        reconcile: Callable[..., Any],
        request: Any = None,
        returns: Any = None,
        reconcile_timeout: float = RECONCILE_TIMEOUT_SECONDS,
    ) -> Accepted[Any] | Uncertain:
        """Run an effect at most once, and settle by the recipient's own record what a crash left open.

        The intent is durable before `run` is called. What `run` returns is the proof: JSON, at most 65,536 bytes, what
        the recipient named the effect. A settled effect is answered from the record. An intent without an outcome
        whose owner is gone is never run again: `reconcile` is asked.

        Args:
            key: The effect's identity, global to the journal.
            run: Acts, and returns the proof; raises `NotPerformed` where it certainly did nothing.
            reconcile: Given a `Signal`, asks the recipient: returns the proof, `None` where the recipient has no
                record, `Found(proof)` where the proof itself may be `None`; raises `NotPerformed` where the recipient
                proves that nothing happened.
            request: What is asked for: another request under the same key is refused.
            returns: The type that the proof is decoded into; without it the proof must come back equal.
            reconcile_timeout: Seconds that `reconcile` may take.

        Raises:
            EffectUnresolvedError: nobody knows whether it happened; call again to ask the recipient.
            EffectFailedError: `run` raised `NotPerformed`; call again to try once more.
            EffectInFlightError: another process, or the caller itself, has it in its hands.
            EffectConflictError: the key is bound to another request or guarantee.
            EffectPrunedError: it was accepted, and pruned since.
            CorruptRecordError: its record is damaged, which is no evidence that it did not run.
        """
        _refuse_coroutine_functions(run=run, reconcile=reconcile)
        call = effects.effect_call(
            key,
            run=run,
            reconcile=effects.check_reconcile(reconcile),
            request=request,
            returns=returns,
            reconcile_timeout=reconcile_timeout,
        )
        return self._run(effects.effect(call, self._store.owner_id, is_copy=self._store.is_copy))

    def run_effect(
        self,
        key: Key,
        run: Callable[[], Any],
        *,
        retry_failed: bool | Callable[[EffectRecord], bool] = True,
        request: Any = None,
        returns: Any = None,
    ) -> Any:
        """Run an effect of which the recipient deduplicates by the key, until it has succeeded once; its result.

        An intent without an outcome and a failed attempt are run again under the same key. What `run` raises is
        recorded as `failed` and goes on; for such an effect that says that an attempt raised, and it may have
        happened.

        Args:
            key: The effect's identity, handed to the recipient as its idempotency key.
            run: Acts, and returns the result: at most 16 MiB as JSON.
            retry_failed: False, or a predicate over the record that says no, refuses a failed effect. One that a walk
                passed before its first attempt is no retry.
            request: As of `effect`.
            returns: As of `effect`.

        Raises:
            EffectFailedError: it failed before, and `retry_failed` says no.
            EffectUnresolvedError: the result could not be kept or recorded, or a person resolved it as uncertain.
            EffectInFlightError, EffectConflictError, EffectPrunedError, CorruptRecordError: as `effect`.
            Exception: whatever `run` raised.
        """
        _refuse_coroutine_functions(run=run, retry_failed=retry_failed)
        call = effects.effect_call(
            key, run=run, reconcile=None, request=request, returns=returns, retry_failed=retry_failed
        )
        return self._run(effects.run_effect(call, self._store.owner_id, is_copy=self._store.is_copy))

    def step(self, key: Key, body: Callable[[], Any], *, returns: Any = None) -> Any:
        """The recorded result of a computation; where there is none, run it and record what it returns.

        Steps have a key space of their own. A body that raises records nothing, and a crash after the body runs it
        again: it must not act on other systems.

        Raises:
            TypeError: the result cannot be kept; nothing was recorded.
            Exception: whatever `body` raised.
        """
        _refuse_coroutine_functions(body=body)
        return self._run(steps.step(key, body, returns))

    def record(self, key: Key) -> EffectRecord | None:
        """What is on record of an effect; `None` when there is nothing, or it was cleared.

        Raises:
            EffectPrunedError: it was accepted, and pruned since.
        """
        return self._run(queries.record(key))

    def history(self, key: Key) -> list[EffectEvent]:
        """Every event of an effect, in order, those from before a `clear_effect` too.

        Raises:
            EffectPrunedError: they were pruned.
        """
        return self._run(queries.history(key))

    def unfinished(self, *, prefix: Key | None = None) -> list[EffectRecord]:
        """The effects in phase intent or failed, by key; costs by their number. A tuple prefix matches first parts."""
        return list(self._each(EffectPages.unfinished(prefix)))

    def effects(
        self,
        *,
        phase: str | None = None,
        prefix: Key | None = None,
        after: Key | None = None,
        limit: int | None = None,
    ) -> Iterator[EffectRecord]:
        """Every record, by key: strings by code point, then tuples by their parts.

        Raises:
            ValueError: `phase` is not intent, accepted, uncertain or failed, or `limit` is below 1.
        """
        pages = EffectPages(phase, prefix, after, limit)
        self._check_caller()
        self._store.check()
        return self._each(pages)

    def resolve(
        self,
        key: Key,
        outcome: Accepted[Any] | Uncertain | NotPerformed,
        *,
        expected_position: int,
        reason: str,
    ) -> None:
        """Record a person's decision about an effect that is not accepted; an owner that runs it then returns this.

        Args:
            key: The effect's key.
            outcome: `Accepted(proof)`, `Uncertain()` or `NotPerformed(why)`.
            expected_position: The position of the record that the person decided on.
            reason: Why, for the history.

        Raises:
            EffectConflictError: it is accepted, unknown, or its record is at another position.
            EffectPrunedError: it was accepted, and pruned since.
        """
        self._run(resolution.resolve(key, outcome, expected_position, reason))

    def clear_effect(self, key: Key, *, reason: str) -> None:
        """Let the next call for a key be new work; of an unknown key nothing. The history stays.

        Of a pruned effect it takes away what refuses its key.

        Raises:
            EffectInFlightError: somebody has it in hands.
        """
        self._run(resolution.clear_effect(key, reason, self._store.owner_id))

    def prune_effects(self, *, settled_before: int, keep: Callable[[EffectRecord], Any] | None = None) -> int:
        """Forget accepted effects that were settled before a time; how many.

        What is on record of them goes, events and proof; that each was accepted stays, so that its key is refused with
        `EffectPrunedError` and never run as new work. Effects that are uncertain, failed or without an outcome stay. A
        key that was cleared before that time goes without a trace, and is not counted. Costs by the number of settled
        effects. Commits in bounded transactions; cut off, it is completed by the next call.

        Args:
            settled_before: Nanoseconds since the epoch; what was accepted at that time or later stays.
            keep: A predicate over the record: an effect of which it says yes stays.

        Raises:
            TypeError, ValueError: an argument is of no use; nothing was pruned.
            Exception: what `keep` raised; what was pruned before that is pruned.
            JournalFullError, JournalBusyError, CommitFailedError, JournalReadonlyError: nothing more was written.
            CorruptRecordError: a record is damaged, and was not pruned.
        """
        _refuse_coroutine_functions(keep=keep)
        return self._run(pruning.prune_effects(settled_before, keep))

    # --- recovery ----------------------------------------------------------------------------------------------

    def recover(
        self,
        from_cursor: int = 0,
        *,
        intents: Callable[[Committed], Iterable[Intent]],
        stream: str | None = None,
        on_unresolved: str | Callable[[Intent, EffectRecord | None], str] = "retry",
        on_uncertain: str | Callable[[Intent, EffectRecord], str] = "accept",
        concurrency: int = 1,
        limit: int | None = None,
        progress: Callable[[Cursor, Cursor], Any] | None = None,
    ) -> Settled:
        """Walk the operations after a cursor, run or reuse each one's effects, and stop before the first that failed.

        Args:
            from_cursor: Where to start, exclusive.
            intents: The `Intent` values that an operation implies, in order; each key runs once. Where it gives a list or
                tuple, the walk looks one effect ahead, into the next operation too, and the outcome of one effect shares
                the commit with the intent of the next. An iterator (a generator) is resumed only after the effects
                before are settled, and costs a commit more for each effect.
            stream: Only the operations of this stream.
            on_unresolved: "retry" (run or reconcile it), "skip" (stop before its operation) or "pass" (leave it
                unfinished and go on), or a callable of intent and record that says one.
            on_uncertain: "accept" or "stop", or a callable of intent and record that says one.
            concurrency: How many operations may be in flight. Above 1 each runs in a thread of its own: `run`,
                `reconcile`, the policies and generators that `intents` gave may then be called in several threads at
                once; `intents` and `progress` are not. The effects of one operation keep their order, those of
                different operations have none. Where one stops, those before it go on to their end, and those after it
                start no further effect.
            limit: How many operations to walk.
            progress: Called with cursor and head, at most ten times a second and once at the end.

        Raises:
            InvalidCursorError: `from_cursor` is outside the log.
            CompactedCursorError: an operation past it was compacted.
            ValueError, TypeError: an argument or a policy's answer is of no use.
            Exception: what `intents` or a policy raised, and the store's errors. An effect's own failure does not
                raise: it is `Settled.stopped`.
        """
        _refuse_coroutine_functions(
            intents=intents, on_unresolved=on_unresolved, on_uncertain=on_uncertain, progress=progress
        )
        return self._run(
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
                check=lambda intent: _refuse_coroutine_functions(run=intent.run, reconcile=intent.reconcile),
            )
        )

    def save_cursor(self, name: str, cursor: int, *, stream: str | None = None) -> None:
        """Keep a cursor under a name (1 to 255 bytes of UTF-8); durable when this returns. No log record.

        Raises:
            InvalidCursorError: it is outside the log.
        """
        self._run(operations.save_cursor(name, cursor, stream))

    def cursor(self, name: str) -> Cursor:
        """The cursor saved under a name; 0 when none was."""
        return self._run(operations.cursor(name))

    # --- how it is done ----------------------------------------------------------------------------------------

    def _check_caller(self) -> None:
        """Refuse a call that must not block where it comes from; here every call may."""

    def _run(self, protocol: Steps[T]) -> T:
        self._check_caller()
        return self._handle.run(protocol)

    def _each(self, pages: Pages[P, T]) -> Iterator[T]:
        while page := self._run(pages.next()):
            yield from map(pages.decode, page)


def _refuse_coroutine_functions(**functions: Any) -> None:
    for name, function in functions.items():
        if is_coroutine_function(function):
            raise TypeError(f"{name} is a coroutine function; this journal is synchronous: pass a plain function")
