"""What the journal hands out: frozen values, equal by what they say."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from journal.errors import Key

T = TypeVar("T")


class Cursor(int):
    """The position that a reader has reached; 0 is the start of the log. An `int` in every respect."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Cursor({int(self)})"

    __str__ = int.__repr__


class Committed(msgspec.Struct, frozen=True):
    """A committed operation.

    `sequence` and `position` start at 1, `at` is in nanoseconds since the epoch. `repeated` says that the op_id had
    been committed before: everything else is then as it was the first time. `epoch` counts the stream's resets, from 1.
    """

    stream: str
    sequence: int
    position: int
    op_id: str
    actor: str
    at: int
    operation: Any
    repeated: bool = False
    epoch: int = 1

    def effect_key(self, action: str, *subject: str | int) -> tuple[str | int, ...]:
        """The key of one effect of this operation: after a reset of the stream it is another, so new work."""
        return (self.stream, self.epoch, self.op_id, action, *subject)


class AlreadyCommitted(msgspec.Struct, frozen=True):
    """The answer to a resent operation whose content was compacted away: where it stands, without it."""

    stream: str
    sequence: int
    position: int
    op_id: str
    actor: str


class Loaded(msgspec.Struct, Generic[T], frozen=True):
    """A stream's state, the position and the sequence of its last operation; both 0 where it has none."""

    state: T
    cursor: Cursor
    sequence: int


class Accepted(msgspec.Struct, Generic[T], frozen=True):
    """The effect happened; `proof` is what the recipient named it, `via` how it is known: run, reconcile, resolve."""

    proof: T
    via: str = "resolve"


class Uncertain(msgspec.Struct, frozen=True):
    """Nobody will ever know whether the effect happened: it is never run again."""


class Found(msgspec.Struct, Generic[T], frozen=True):
    """What a `reconcile` returns when the proof itself may be `None`: the recipient has a record of the effect."""

    proof: T


class EffectRecord(msgspec.Struct, frozen=True):
    """What is on record of one effect.

    `phase` is intent, accepted, uncertain or failed; `attempts` counts the intents; times are in nanoseconds since
    the epoch; `owner` names the handle that wrote the last intent; `position` is that of the key's last event. An
    intent that its own process gave up has `reason` and `error`.
    """

    key: Key
    guarantee: str
    phase: str
    attempts: int
    first_at: int
    last_at: int
    proof: Any
    via: str | None
    reason: str | None
    error: str | None
    owner: str
    position: int


class EffectEvent(msgspec.Struct, frozen=True):
    """One event of an effect's history.

    `phase` is intent, accepted, uncertain, failed, released or cleared; `at` is in nanoseconds since the epoch.
    """

    position: int
    at: int
    key: Key
    phase: str
    attempt: int
    guarantee: str
    via: str | None
    proof: Any
    reason: str | None
    error: str | None
    owner: str


class Restored(msgspec.Struct, frozen=True):
    """What a journal says of itself that is a copy: a backup, or what `restore` made of one.

    `incarnation` is the copy's own id, 32 hexadecimal digits; `head` the last position that it was made with; `at` and
    `confirmed_at` are in nanoseconds since the epoch. Until it is confirmed, what was done after `head` is unknown.
    """

    incarnation: str
    head: int
    at: int
    confirmed_at: int | None


class Finding(msgspec.Struct, frozen=True):
    """Something that `verify` found wrong: in which table, at which position where it has one, and what."""

    table: str
    position: int | None
    problem: str


class Stats(msgspec.Struct, frozen=True):
    """The size of a journal: counts of what it holds, bytes on disk, and how this handle's commits were shared.

    `operations` counts those of the log, compacted ones and those from before a `reset` too. `effects` counts those on record,
    `pruned` those of which only that they were accepted is known.

    `commits` and `entries` count since the handle was opened; `entries / commits` is the mean size of a group.
    """

    journal_id: str
    format_version: int
    head: int
    operations: int
    streams: int
    effects: int
    unfinished: int
    uncertain: int
    steps: int
    cursors: int
    map_bytes: int
    used_bytes: int
    file_bytes: int
    commits: int
    entries: int
    pruned: int
