"""What a protocol asks of its driver, and what the store offers to its decisions.

A protocol is a generator: it yields one of these requests and is sent the answer, or has the exception thrown in. It
reads from top to bottom like the guarantee that it keeps, and knows neither threads nor event loops.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from journal.options import POLL_SECONDS_MAX

if TYPE_CHECKING:
    from journal._core.ledger import EffectState, Tombstone
    from journal._core.states import StateAt
    from journal.errors import Key
    from journal.records import (
        CursorRow,
        DroppingRow,
        EffectEntry,
        FloorRow,
        Guarantee,
        LogRecord,
        OperationRecord,
        Phase,
        RestoredRow,
        SnapshotRow,
        StepRecord,
        StreamRow,
    )
    from journal.values import Cursor

T = TypeVar("T")


class StoredOperation(msgspec.Struct, frozen=True):
    """An operation's head with its position, and its payload as JSON."""

    position: int
    head: OperationRecord
    payload: bytes


class OperationPage(msgspec.Struct, frozen=True):
    """Operations in log order, the position through which was looked, and whether the log ended there."""

    operations: list[StoredOperation]
    through: int
    ended: bool


class EffectPage(msgspec.Struct, frozen=True):
    """Effects by key, and the form through which was looked; `None` where nothing is left."""

    states: list[EffectState]
    through: bytes | None


class View(Protocol):
    """The journal as one transaction sees it. Every answer was checked against its record's checksum.

    Raises `CorruptRecordError` where a record or an index row is damaged.
    """

    def head(self) -> int:
        """The last position of the log; 0 when it is empty."""

    def effect(self, form: bytes) -> EffectState | None:
        """The last event of an effect's key, cleared ones included."""

    def glance(self, form: bytes) -> EffectState | None:
        """As `effect`, but `None` proves nothing yet: for who asks `effect` in a transaction before anything follows."""

    def effect_entry(self, position: int) -> EffectEntry:
        """The effect's event at this position."""

    def effects(self, phases: frozenset[Phase], *, prefix: bytes, after: bytes, limit: int) -> EffectPage:
        """Last events, in these phases, of the keys whose form begins with `prefix` and comes after `after`, by form.

        A page ends early, and may be empty, where many keys in other phases were passed.
        """

    def pruned(self, form: bytes) -> Tombstone | None:
        """What is left of a pruned effect; `None` where the key never was, or stands in the log."""

    def step(self, form: bytes) -> StepRecord | None:
        """The recorded result of a step."""

    def stream(self, name: str) -> StreamRow | None:
        """A stream's row; `None` where nothing was ever appended to it."""

    def streams(self) -> list[str]:
        """The names of all streams, by code point."""

    def floor(self, name: str) -> FloorRow | None:
        """Through which position a stream's epoch is compacted; `None` where it is not."""

    def floors(self) -> list[tuple[str, FloorRow]]:
        """The streams that are compacted, by code point, and through where."""

    def dropping(self, name: str) -> DroppingRow | None:
        """The payloads of a stream that a compaction has yet to drop."""

    def droppings(self) -> list[str]:
        """The streams of which payloads are yet to be dropped."""

    def snapshot(self, name: str) -> SnapshotRow | None:
        """A stream's kept state; `None` where none was kept, or its row is damaged: it can be made anew."""

    def last_operation(self, name: str, through: int) -> int:
        """The position of a stream's last operation up to a position, in whatever epoch; 0 where there is none."""

    def sequence(self, name: str) -> int:
        """The last sequence of the stream's epoch; 0 when it is empty."""

    def identity(self, name: str, epoch: int, op_id: str) -> StoredOperation | None:
        """The operation that has this op_id in an epoch of the stream."""

    def operations(self, stream: str | None, after: int, limit: int) -> OperationPage:
        """A bounded page of operations past a position, in log order: of each stream those of its present epoch.

        Raises:
            CompactedCursorError: one of them was compacted.
        """

    def cursor(self, name: str) -> CursorRow | None:
        """A saved cursor."""

    def saved_cursors(self) -> list[tuple[str, CursorRow]]:
        """All saved cursors, by name."""

    def restored(self) -> RestoredRow | None:
        """What a copy's file says of itself; `None` in a journal that is none."""


class Transaction(View, Protocol):
    """The one write transaction in which decisions are taken.

    A decision looks first and appends last: one that raises after it has appended costs its whole batch a retry.
    """

    at: int
    """The time of this decision, in nanoseconds since the epoch."""

    states: dict[str, StateAt]
    """What this commit's decisions have come to, by stream, for those after them; remembered when it is durable."""

    def append(self, record: LogRecord, payload: bytes = b"") -> int:
        """Put a record at the end of the log, with all index rows that follow from it; its position."""

    def save_cursor(self, name: str, row: CursorRow) -> None:
        """Put a cursor's row."""

    def save_snapshot(self, name: str, row: SnapshotRow) -> None:
        """Put a stream's kept state in the place of the one before."""

    def prune(self, state: EffectState) -> int:
        """Put what is left of a key into the place of its events, of which this is the last; how many there were."""

    def forget(self, tombstone: Tombstone) -> None:
        """Let what is left of a pruned effect name no key any more."""

    def save_dropping(self, name: str, row: DroppingRow | None) -> None:
        """Note which payloads of a stream are yet to be dropped; `None`: no more."""

    def drop_payloads(self, name: str, after: int, through: int, count: int) -> int:
        """Drop the payloads of a stream's next operations past `after`, at most `count`; the position reached.

        That is `through` where none is left. A record that is damaged is left as it is.
        """

    def save_restored(self, row: RestoredRow) -> None:
        """Put what a copy says of itself."""


class Read(msgspec.Struct, frozen=True):
    """Look at the journal in a short read transaction; answered with what `look` returns.

    `is_long` marks a page of many records, for which no event loop should stand still.
    """

    look: Callable[[View], Any]
    is_long: bool = False


class Commit(msgspec.Struct, frozen=True):
    """Decide and write in a write transaction, shared with others; answered when it is durable.

    `decide` may be called more than once (when the map grows); what it answered last holds. `settles` marks what ends
    an effect that is in flight, for which the store keeps a reserve, and what makes room.
    """

    decide: Callable[[Transaction], Any]
    settles: bool = False


class Call(msgspec.Struct, frozen=True):
    """Call a user's function that acts for an effect."""

    function: Callable[[], Any]


class Decide(msgspec.Struct, frozen=True):
    """Call a user's function that decides and acts on nothing: an `intents`, a policy, a predicate, a `progress`."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class Ask(msgspec.Struct, frozen=True):
    """Call a `reconcile` with its signal and a deadline.

    Answered with what it returns; `DeadlineError` past the deadline, after which its answer is ignored.
    """

    reconcile: Callable[..., Any]
    key: Key
    attempt: int
    first_at: int
    seconds: float


class Enter(msgspec.Struct, frozen=True):
    """Take the one flight of a key in this process.

    Answered with a `Flight` to this call alone, which ends it. Where another call has it, answered with `None` when
    that has ended well (read again), or with the error in which it ended. `wait=False` answers `None` at once.

    Raises:
        EffectConflictError: the flight is for another guarantee or request.
        EffectInFlightError: the call comes from inside that flight, or would wait for one that waits for it.
    """

    space: str
    key: Key
    form: bytes
    guarantee: Guarantee | None
    request: bytes | None
    wait: bool = True


class Flight(Protocol):
    """The right to act for a key in this process."""

    def end(self, error: BaseException | None = None) -> None:
        """Let the calls that joined read again, or have this error each."""


class IsAlive(msgspec.Struct, frozen=True):
    """Ask whether an owner may still have an intent in its hands; answered with its pid, or `None`."""

    owner: int


class Pause(msgspec.Struct, frozen=True):
    """Wait a little for another process; `DeadlineError` when this wait has taken its seconds.

    Where none are said, they are the handle's `wait_timeout`.
    """

    wait: object
    seconds: float | None = None
    step_seconds_max: float = POLL_SECONDS_MAX
    """The longest time between two looks."""


class Progress(msgspec.Struct, frozen=True):
    """Tell a walk's `progress` how far it is, where it is time to, or it is the last."""

    function: Callable[[Cursor, Cursor], Any]
    cursor: int
    is_last: bool


class Note(msgspec.Struct, frozen=True):
    """Log what is no record: an answer from the record, a stopped walk."""

    level: str
    event: str
    facts: dict[str, Any]


class Spawn(msgspec.Struct, frozen=True):
    """Begin to run another protocol beside this one; answered with `None` at once.

    It runs by a driver of its own, under a copy of this one's context, and is not ended with this one.
    """

    protocol: Steps[Any]
    tag: Any


class Await(msgspec.Struct, frozen=True):
    """Wait until one of the protocols that were spawned has ended; answered with its `Ended`, each once."""


class Ended(msgspec.Struct, frozen=True):
    """A spawned protocol has returned a value, or raised."""

    tag: Any
    value: Any = None
    error: BaseException | None = None


class DeadlineError(Exception):
    """A wait that a request bounds took too long."""


class RunRaisedError(Exception):
    """Carries out of a protocol the very exception that a user's function raised; drivers raise that one instead.

    A generator cannot raise every exception as it is: a `StopIteration` would become a `RuntimeError`.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class CutOffError(BaseException):
    """Carries a `GeneratorExit` of a user's function into a protocol, which could not tell it from its own end."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


Request = Read | Commit | Call | Decide | Ask | Enter | IsAlive | Pause | Progress | Note | Spawn | Await

Steps = Generator[Any, Any, T]
"""A protocol that returns a `T`."""
