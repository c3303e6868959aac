"""An embedded, event-sourced journal for services whose work reaches into other systems.

It records the intent of an effect before the effect runs and its outcome after, in one append-only log in LMDB, and
`Journal.recover` settles after a crash what the crash left open, without ever running an effect twice on a guess.

Open one with `journal.open`, append operations with `Journal.append`, act with `Journal.effect` (at most once, with a
`reconcile`) or `Journal.run_effect` (where the recipient deduplicates), and call `Journal.recover` at start-up.
"""

from journal._core.rules import Reducer
from journal._drive.signals import AsyncSignal, Signal
from journal._handle import restore
from journal.aio import AsyncJournal, open_async
from journal.errors import (
    CommitFailedError,
    CompactedCursorError,
    CorruptRecordError,
    EffectConflictError,
    EffectFailedError,
    EffectInFlightError,
    EffectPrunedError,
    EffectUnresolvedError,
    IdentityConflictError,
    InvalidCompactionError,
    InvalidCursorError,
    InvalidOperationError,
    JournalBusyError,
    JournalClosedError,
    JournalError,
    JournalForkedError,
    JournalFullError,
    JournalLockedError,
    JournalReadonlyError,
    Key,
    NotPerformed,
    OperationRefusedError,
    SequenceConflictError,
    UnsupportedFilesystemError,
    UnsupportedFormatError,
)
from journal.sync import Journal, open, verify  # noqa: A004 - `journal.open` is how the module is used
from journal.values import (
    Accepted,
    AlreadyCommitted,
    Committed,
    Cursor,
    EffectEvent,
    EffectRecord,
    Finding,
    Found,
    Loaded,
    Restored,
    Stats,
    Uncertain,
)
from recovery import Intent, Settled, Stop

__all__ = [
    "Accepted",
    "AlreadyCommitted",
    "AsyncJournal",
    "AsyncSignal",
    "CommitFailedError",
    "Committed",
    "CompactedCursorError",
    "CorruptRecordError",
    "Cursor",
    "EffectConflictError",
    "EffectEvent",
    "EffectFailedError",
    "EffectInFlightError",
    "EffectPrunedError",
    "EffectRecord",
    "EffectUnresolvedError",
    "Finding",
    "Found",
    "IdentityConflictError",
    "Intent",
    "InvalidCompactionError",
    "InvalidCursorError",
    "InvalidOperationError",
    "Journal",
    "JournalBusyError",
    "JournalClosedError",
    "JournalError",
    "JournalForkedError",
    "JournalFullError",
    "JournalLockedError",
    "JournalReadonlyError",
    "Key",
    "Loaded",
    "NotPerformed",
    "OperationRefusedError",
    "Reducer",
    "Restored",
    "SequenceConflictError",
    "Settled",
    "Signal",
    "Stats",
    "Stop",
    "Uncertain",
    "UnsupportedFilesystemError",
    "UnsupportedFormatError",
    "open",
    "open_async",
    "restore",
    "verify",
]
