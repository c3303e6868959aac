"""What reaches the disk: the structs that msgspec encodes, and nothing that decides.

They follow msgspec's rules of evolution: a new field goes to the end with a default, no type changes, no tag is used
again. `tests/data/` holds golden bytes of each; `docs/internals/format.md` describes them byte by byte.

Log records are made by the thousand and hold numbers, text and bytes alone, which cannot lead back to them: with
`gc=False` the garbage collector, a quarter of an effect's time when hundreds are under way, need not look at them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

FORMAT_VERSION: Final = 2
"""The format that this version writes; a newer one is refused at open."""

FORMAT_VERSION_OLDEST: Final = 1
"""The oldest format that this version reads, and makes into its own when it is opened for writing."""


class _Word(IntEnum):
    @property
    def word(self) -> str:
        """The contract's word for the number on disk."""
        return self._name_.lower()  # what `name` looks up, in half its time


class Phase(_Word):
    """What an effect's event says; `RELEASED` leaves the record in phase intent, `CLEARED` leaves none."""

    INTENT = 1
    ACCEPTED = 2
    UNCERTAIN = 3
    FAILED = 4
    RELEASED = 5
    CLEARED = 6


class Guarantee(_Word):
    """What a key's first intent promised for it."""

    AT_MOST_ONCE = 1
    IDEMPOTENT = 2


class Via(_Word):
    """How an outcome became known."""

    RUN = 1
    RECONCILE = 2
    RESOLVE = 3


class OperationRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=1):
    """One operation of a stream, without its payload, which follows it as JSON.

    The digest chain covers this head and, through `payload_hash`, the payload: compaction can drop the one and keep
    the other.
    """

    stream: str
    epoch: int
    sequence: int
    op_id: str
    actor: str
    at: int
    payload_hash: bytes
    payload_bytes: int


class EffectEntry(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=2):
    """One event of an effect, which is also the effect's whole state after it.

    `key` is the key's form (see `journal._core.keys`); `previous` is the position of the key's event before this one,
    0 for the first; `request` the fingerprint that binds the key; `proof` JSON.
    """

    phase: Phase
    key: bytes
    at: int
    previous: int
    first_at: int
    attempts: int
    guarantee: Guarantee
    owner: int
    request: bytes | None = None
    via: Via | None = None
    proof: bytes | None = None
    reason: str | None = None
    error: str | None = None


class StepRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=3):
    """One recorded result of a computation; `value` is JSON."""

    key: bytes
    at: int
    value: bytes


class CompactionRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=4):
    """From here on the payloads of a stream's operations through a position are gone.

    `through` is the position that was asked for, `floor` that of the epoch's last operation there, 0 where it has none.
    """

    stream: str
    epoch: int
    floor: int
    at: int
    through: int = 0


class ResetRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=5):
    """A stream begins anew: `epoch` is the one that begins here."""

    stream: str
    epoch: int
    at: int


class PrunedRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=6):
    """What stands in the log in the place of a pruned effect's events, at the last of the positions that it covers.

    It covers `first` up to its own position. `key` is the digest of the form of the key whose last event stood here;
    `None` where only earlier events did, whose key has such a record elsewhere, or was cleared.
    """

    first: int
    at: int
    key: bytes | None = None
    guarantee: Guarantee | None = None


LogRecord = OperationRecord | EffectEntry | StepRecord | CompactionRecord | ResetRecord | PrunedRecord


class Header(msgspec.Struct, frozen=True, array_like=True):
    """The journal's own identity, written once when it is created."""

    format_version: int
    journal_id: str
    created_at: int


class StreamRow(msgspec.Struct, frozen=True, array_like=True):
    """A stream's state outside the log's tail: its epoch, and the position after which the epoch's operations stand."""

    epoch: int
    epoch_position: int


class FloorRow(msgspec.Struct, frozen=True, array_like=True):
    """Where a stream's present epoch is compacted, as the record at `position` says."""

    floor: int
    position: int
    through: int = 0


class SnapshotRow(msgspec.Struct, frozen=True, array_like=True):
    """A stream's state after the operation at `position`, as JSON, by a reducer of that version."""

    epoch: int
    sequence: int
    position: int
    version: int
    state: bytes
    at: int


class DroppingRow(msgspec.Struct, frozen=True, array_like=True):
    """Payloads of a stream that a compaction has yet to drop: those past `after`, through `through`."""

    after: int
    through: int


class RestoredRow(msgspec.Struct, frozen=True, array_like=True):
    """Says that this file is a copy: what was done after position `head` is unknown until a person confirms it.

    `incarnation` is the copy's own id, 32 hexadecimal digits; `confirmed_at` is 0 until then.
    """

    incarnation: str
    head: int
    at: int
    confirmed_at: int = 0


class CursorRow(msgspec.Struct, frozen=True, array_like=True):
    """A saved cursor, and the one stream that it reads, or all."""

    cursor: int
    stream: str | None
    at: int


class OwnerRow(msgspec.Struct, frozen=True, array_like=True):
    """Who an owner is, for others to see whether it lives: see `journal._storage.owners`."""

    pid: int
    started: int
    boot: str
    namespace: int
    lock_inode: int
