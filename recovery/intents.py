"""What an operation implies (`Intent`), and what a walk over operations came to (`Settled`, `Stop`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import msgspec

Key = str | tuple[str | int, ...]


class Intent(msgspec.Struct, frozen=True):
    """One effect that an operation implies.

    With `reconcile` it settles as by `Journal.effect` (at most once), without as by `Journal.run_effect` (the
    recipient deduplicates by the key). `request`, `returns` and `reconcile_timeout` (seconds) are those of the call.
    """

    key: Key
    run: Callable[[], Any]
    reconcile: Callable[..., Any] | None = None
    request: Any = None
    returns: Any = None
    reconcile_timeout: float = 30.0


class Stop(msgspec.Struct, frozen=True):
    """Why a walk ended before an operation: at which one, over which effect.

    `reason` is skipped, failed, unresolved, uncertain, in_flight, conflict or corrupt; `error` is what the direct call
    for the effect would have raised, `None` where it would have raised nothing.
    """

    position: int
    stream: str
    op_id: str
    key: Key
    reason: str
    error: BaseException | None = None


class Settled(int):
    """The cursor through which everything settled, and what the walk did.

    It is an `int`: the position of the last operation all of whose effects are settled, or the cursor from which the
    walk started. The counts are of effects: `ran` (after a proved absence too), `reused` from the record, answered by
    `reconciled`, `uncertain` (found so, or become so), and `passed` over.
    """

    stopped: Stop | None
    ran: int
    reused: int
    reconciled: int
    uncertain: int
    passed: int

    def __new__(
        cls,
        cursor: int,
        stopped: Stop | None = None,
        *,
        ran: int = 0,
        reused: int = 0,
        reconciled: int = 0,
        uncertain: int = 0,
        passed: int = 0,
    ) -> Self:
        """A settled cursor with its counts."""
        self = super().__new__(cls, cursor)
        facts = {
            "stopped": stopped,
            "ran": ran,
            "reused": reused,
            "reconciled": reconciled,
            "uncertain": uncertain,
            "passed": passed,
        }
        self.__dict__.update(facts)
        return self

    def __setattr__(self, name: str, value: object) -> None:
        """Frozen, like every value that the journal hands out."""
        raise AttributeError(f"Settled is frozen: {name!r} cannot be set")

    def __reduce__(self) -> tuple[Callable[..., Settled], tuple[Any, ...]]:
        """Pickled with everything that it says."""
        counts = (self.ran, self.reused, self.reconciled, self.uncertain, self.passed)
        return _settled, (int(self), self.stopped, counts)

    def __repr__(self) -> str:
        return (
            f"Settled({int(self)}, stopped={self.stopped!r}, ran={self.ran}, reused={self.reused}, "
            f"reconciled={self.reconciled}, uncertain={self.uncertain}, passed={self.passed})"
        )

    __str__ = int.__repr__


def _settled(cursor: int, stopped: Stop | None, counts: tuple[int, int, int, int, int]) -> Settled:
    ran, reused, reconciled, uncertain, passed = counts
    return Settled(cursor, stopped, ran=ran, reused=reused, reconciled=reconciled, uncertain=uncertain, passed=passed)
