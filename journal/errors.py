"""What can go wrong, one class for each thing that a caller does next.

Every class keeps its facts as attributes and as ``args``, so that it survives pickling, and builds its message from
them: what happened, with the values, then the next step. Wrong use raises `TypeError` or `ValueError` instead.
"""

from __future__ import annotations

from typing import Any

Key = str | tuple[str | int, ...]
"""How a caller names an effect: a string, or a non-empty tuple of strings and integers."""


class NotPerformed(Exception):  # noqa: N818 - a statement of the recipient, not an error of ours
    """Says that an effect certainly did not happen.

    Raised by `run` or `reconcile`, it is the only exception that counts as proof of absence (a refused connection, a
    recipient that can prove it). Given to `Journal.resolve`, it is a person's decision that nothing happened.
    """

    def __init__(self, *why: object) -> None:
        super().__init__(*why)
        self.why = str(why[0]) if why else ""


class JournalError(Exception):
    """The root of everything that a journal raises of its own."""


class _OperationError(JournalError):
    """What the errors about one operation have in common."""

    def __init__(self, stream: str, op_id: str, *rest: object) -> None:
        super().__init__(stream, op_id, *rest)
        self.stream = stream
        self.op_id = op_id


class IdentityConflictError(_OperationError):
    """The op_id names another operation of this stream: take a new op_id, or resend what was sent first."""

    def __init__(self, stream: str, op_id: str, position: int) -> None:
        super().__init__(stream, op_id, position)
        self.position = position

    def __str__(self) -> str:
        where = f"was committed at position {self.position}" if self.position else "stands earlier in the same call"
        return (
            f"op_id {self.op_id!r} of stream {self.stream!r} {where} with another payload or actor; resend exactly "
            "what was sent first, or choose a new op_id"
        )


class SequenceConflictError(JournalError):
    """Somebody else appended first: read the stream again and retry."""

    def __init__(self, stream: str, sequence: int, expected: int) -> None:
        super().__init__(stream, sequence, expected)
        self.stream = stream
        self.sequence = sequence
        self.expected = expected

    def __str__(self) -> str:
        return (
            f"stream {self.stream!r} is at sequence {self.sequence}, expected {self.expected}; read it again and retry"
        )


class InvalidOperationError(_OperationError):
    """The operation cannot be kept, or is one that can no longer be read or applied: correct it, its type or the reducer.

    Of an operation that is on record, `position` is its place, and `was_read` says that its type still reads it. An empty
    `op_id` says that not an operation is at fault but what the reducer begins with.
    """

    def __init__(
        self, stream: str, op_id: str, reason: str, position: int | None = None, was_read: bool = False
    ) -> None:
        super().__init__(stream, op_id, reason, position, was_read)
        self.reason = reason
        self.position = position
        self.was_read = was_read

    def __str__(self) -> str:
        if not self.op_id:
            return f"stream {self.stream!r} has no state to begin with: {self.reason}; correct the reducer"
        if self.position is None:
            return (
                f"operation {self.op_id!r} of stream {self.stream!r} cannot be kept: {self.reason}; nothing was "
                "written, correct the operation and append it again"
            )
        which = f"operation {self.op_id!r} of stream {self.stream!r} at position {self.position}"
        if self.was_read:
            return f"{which} cannot be applied to the stream's state: {self.reason}; correct the reducer"
        return (
            f"{which} cannot be read as the declared type: {self.reason}; open the journal with a type that reads it, "
            "or with upcast= for its tag"
        )


class OperationRefusedError(_OperationError):
    """The journal's `authorize` said no: ask as somebody who may."""

    def __init__(self, stream: str, op_id: str, actor: str, reason: str) -> None:
        super().__init__(stream, op_id, actor, reason)
        self.actor = actor
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"actor {self.actor!r} may not append operation {self.op_id!r} to stream {self.stream!r}: {self.reason}; "
            "nothing was written, append it as an actor who may"
        )


class InvalidCursorError(JournalError):
    """The cursor lies outside the log: start from one that this journal gave."""

    def __init__(self, cursor: int, head: int) -> None:
        super().__init__(cursor, head)
        self.cursor = cursor
        self.head = head

    def __str__(self) -> str:
        return f"cursor {self.cursor} is outside the log, which ends at {self.head}; pass one from 0 to {self.head}"


class CompactedCursorError(JournalError):
    """What follows the cursor was compacted away: start from a state, or from the floor."""

    def __init__(self, cursor: int, floor: int, stream: str | None = None) -> None:
        super().__init__(cursor, floor, stream)
        self.cursor = cursor
        self.floor = floor
        self.stream = stream

    def __str__(self) -> str:
        where = "the log" if self.stream is None else f"stream {self.stream!r}"
        return f"cursor {self.cursor} is below the floor {self.floor} of {where}; start from {self.floor} or later"


class InvalidCompactionError(JournalError):
    """The compaction would drop what is still needed: move the cursor or settle the effect first."""

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(stream, reason)
        self.stream = stream
        self.reason = reason

    def __str__(self) -> str:
        return f"stream {self.stream!r} cannot be compacted: {self.reason}"


class _EffectError(JournalError):
    """What the errors about one effect have in common."""

    def __init__(self, key: Key, *facts: object) -> None:
        super().__init__(key, *facts)
        self.key = key


class EffectUnresolvedError(_EffectError):
    """Nobody knows whether the effect happened: its intent stands, and the next call asks the recipient."""

    def __init__(self, key: Key, reason: str, record: Any = None) -> None:
        super().__init__(key, reason, record)
        self.reason = reason
        self.record = record

    def __str__(self) -> str:
        if self.reason == "uncertain":
            return (
                f"effect {self.key!r} was resolved as uncertain by a person and has no result; resolve it as accepted "
                "or not performed, or clear it"
            )
        again = "run it once more under the same key" if self._is_idempotent() else "ask the recipient"
        return (
            f"effect {self.key!r} is unresolved ({self.reason}): it may or may not have happened; call again to "
            f"{again}, or resolve it"
        )

    def _is_idempotent(self) -> bool:
        return getattr(self.record, "guarantee", None) == "idempotent"


class EffectFailedError(_EffectError):
    """The effect is known not to have been performed, or its last attempt raised: call again to try it anew."""

    def __init__(self, key: Key, reason: str, record: Any = None) -> None:
        super().__init__(key, reason, record)
        self.reason = reason
        self.record = record

    def __str__(self) -> str:
        return f"effect {self.key!r} failed: {self.reason}; call again to try once more"


class EffectConflictError(_EffectError):
    """The key is bound to something else, or its record moved on: read the record before deciding again."""

    def __init__(self, key: Key, reason: str, record: Any = None) -> None:
        super().__init__(key, reason, record)
        self.reason = reason
        self.record = record

    def __str__(self) -> str:
        return f"effect {self.key!r}: {self.reason}; nothing was written, read its record and decide again"


class EffectPrunedError(_EffectError):
    """The effect was accepted, and what was on record of it has been pruned: it is not run as new work."""

    def __init__(self, key: Key, position: int) -> None:
        super().__init__(key, position)
        self.position = position

    def __str__(self) -> str:
        return (
            f"effect {self.key!r} was accepted and then pruned (position {self.position}): its proof is gone, and it is "
            "not run again; look it up at the recipient, or clear it to make the next call new work"
        )


class EffectInFlightError(_EffectError):
    """A living process has the effect in its hands: wait for it, or ask again later."""

    def __init__(self, key: Key, pid: int, record: Any = None) -> None:
        super().__init__(key, pid, record)
        self.pid = pid
        self.record = record

    def __str__(self) -> str:
        return (
            f"effect {self.key!r} is in flight in process {self.pid}; call again when it has ended, and not from inside "
            "its own run or reconcile"
        )


class CorruptRecordError(JournalError):
    """A record is damaged: stop, run `verify`, and restore. It is never evidence that nothing happened."""

    def __init__(self, position: int | None, reason: str, key: Key | None = None, stream: str | None = None) -> None:
        super().__init__(position, reason, key, stream)
        self.position = position
        self.reason = reason
        self.key = key
        self.stream = stream

    def __str__(self) -> str:
        where = "" if self.position is None else f" at position {self.position}"
        whose = f" of effect {self.key!r}" if self.key is not None else ""
        whose = f" of stream {self.stream!r}" if self.stream is not None else whose
        return f"the record{where}{whose} is damaged: {self.reason}; run verify and restore from a backup"


class _HandleError(JournalError):
    """What the errors about the journal as a whole have in common."""

    def __init__(self, path: str, *facts: object) -> None:
        super().__init__(path, *facts)
        self.path = path


class JournalFullError(_HandleError):
    """There is no room: free some, or raise `max_size`. The journal stays readable."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"journal {self.path!r} is full: {self.reason}; nothing was written, make room and try again"


class JournalLockedError(_HandleError):
    """This process has the journal open already: pass that handle on."""

    def __init__(self, path: str, pid: int) -> None:
        super().__init__(path, pid)
        self.pid = pid

    def __str__(self) -> str:
        return f"journal {self.path!r} is already open in this process ({self.pid}); pass that handle on, or close it"


class JournalClosedError(_HandleError):
    """The handle is closed: open the journal again."""

    def __init__(self, path: str, reason: str = "it was closed") -> None:
        super().__init__(path, reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"this handle of journal {self.path!r} no longer works: {self.reason}; open the journal again"


class JournalForkedError(_HandleError):
    """The handle belongs to the parent process: open the journal in the child."""

    def __init__(self, path: str, pid: int) -> None:
        super().__init__(path, pid)
        self.pid = pid

    def __str__(self) -> str:
        return f"journal {self.path!r} was opened by process {self.pid} before a fork; open it again in this process"


class JournalReadonlyError(_HandleError):
    """The handle may not write: open the journal without `readonly`."""

    def __str__(self) -> str:
        return f"journal {self.path!r} is open read-only; open it without readonly=True to write"


class JournalBusyError(_HandleError):
    """Another process was in the way too long, with the writer's turn mostly: look at it, then try again."""

    def __init__(
        self,
        path: str,
        pid: int | None,
        reason: str = "the writer's turn is held",
        advice: str = "see whether a process is stopped, then try again",
    ) -> None:
        super().__init__(path, pid, reason, advice)
        self.pid = pid
        self.reason = reason
        self.advice = advice

    def __str__(self) -> str:
        by = "" if self.pid is None else f" by process {self.pid}"
        return f"journal {self.path!r} is busy: {self.reason}{by}; nothing was written, {self.advice}"


class UnsupportedFormatError(_HandleError):
    """The path holds no journal that this version can read: check the path, or the version.

    `found` is the number of a format that is not supported, or says what lies there instead of a journal.
    """

    def __init__(self, path: str, found: int | str, supported: int | str) -> None:
        super().__init__(path, found, supported)
        self.found = found
        self.supported = supported

    def __str__(self) -> str:
        found = f"a journal of format {self.found}" if isinstance(self.found, int) else self.found
        return (
            f"{self.path!r} is not a journal that can be opened: found {found}, supported is format {self.supported}; "
            "nothing was changed, check the path and the version of effect-journal"
        )


class UnsupportedFilesystemError(_HandleError):
    """The path lies on a network file system, where the locks do not hold: move the journal to a local disk."""

    def __init__(self, path: str, filesystem: str) -> None:
        super().__init__(path, filesystem)
        self.filesystem = filesystem

    def __str__(self) -> str:
        return (
            f"journal {self.path!r} lies on a network file system ({self.filesystem}), where its locks do not hold; "
            "move it to a local disk"
        )


class CommitFailedError(_HandleError):
    """The disk refused a commit: nothing of it counts as recorded. Look at the disk, then open the journal again."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"a commit of journal {self.path!r} failed: {self.reason}; check the disk and open the journal again"
