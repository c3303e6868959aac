"""Which operations of a walk may begin beside each other, and what their ends come to: ends in, verdicts out.

Operations begin in log order and end in any. The cursor follows the settled prefix; the first stop or error, by
position, is what the walk came to, since one after the other it would have come no further. It must not know what an
operation is, nor who carries it out: `recovery.walker` walks each.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from recovery.intents import Settled, Stop

WINDOW_PER_LANE: Final = 64
"""Operations past the oldest unsettled one that may have begun, for each that may be in flight: beside a slow one the
others go on, and what is kept of them is bounded."""

_BEFORE_ALL: Final = -1


class Lanes:
    """The operations in flight of one walk, at most `count` of them.

    One thread begins and ends operations; what halts and asks for a halt may be called by any.
    """

    def __init__(self, from_cursor: int, count: int) -> None:
        self.cursor = from_cursor
        """Everything through this position is settled."""
        self.in_flight = 0
        self._count = count
        self._last = from_cursor
        self._has_more = True
        self._begun: deque[int] = deque()
        self._settled: set[int] = set()
        # Only ever appended to, which threads may do beside each other.
        self._halts: list[int] = []
        self._first: tuple[int, Stop | BaseException] | None = None
        self._counts = dict.fromkeys(("ran", "reused", "reconciled", "uncertain", "passed"), 0)

    @property
    def may_start(self) -> bool:
        """Whether the next operation may begin now."""
        is_free = self.in_flight < self._count and len(self._begun) < self._count * WINDOW_PER_LANE
        return is_free and self._has_more and not self._halts

    def start(self, position: int) -> None:
        """The next operation has begun."""
        self._last = position
        self._begun.append(position)
        self.in_flight += 1

    def has_no_more(self) -> None:
        """No operation is left to begin."""
        self._has_more = False

    def settle(self, position: int, walked: Settled) -> bool:
        """An operation's own walk has ended; whether the cursor moved.

        One that was halted has no stop, and a cursor before its position.
        """
        self.in_flight -= 1
        for how in self._counts:
            self._counts[how] += getattr(walked, how)
        if walked.stopped is not None:
            self._end(position, walked.stopped)
        elif walked == position:
            self._settled.add(position)
        before = self.cursor
        while self._begun and self._begun[0] in self._settled:
            self.cursor = self._begun.popleft()
            self._settled.remove(self.cursor)
        return self.cursor != before

    def fail(self, position: int, error: BaseException) -> None:
        """An operation's own walk has raised; what is no `Exception` counts before everything else."""
        self.in_flight -= 1
        self._end(_place_of(position, error), error)

    def fail_next(self, error: Exception) -> None:
        """The next operation could not begin: those in flight are all before it."""
        self._end(self._last + 1, error)

    def fail_here(self, error: Exception) -> None:
        """What follows the settled prefix raised: those in flight are all after it."""
        self._end(self.cursor, error)

    def halt_after(self, position: int) -> None:
        """An operation is known to end in a stop or an error: nothing after it starts."""
        self._halts.append(position)

    def halt_by(self, position: int, error: BaseException) -> None:
        """An operation is known to raise: nothing after it starts, and for what is no `Exception` nothing anywhere."""
        self.halt_after(_place_of(position, error))

    def halt(self) -> None:
        """Nothing more starts anywhere."""
        self.halt_after(_BEFORE_ALL)

    def is_halted(self, position: int) -> bool:
        """Whether an operation in flight may start no further effect."""
        return any(halt < position for halt in self._halts)

    def result(self) -> Settled:
        """What the walk came to, when nothing is in flight any more.

        Raises:
            BaseException: what ended the walk, where no operation before that stopped it.
        """
        stop = None if self._first is None else self._first[1]
        if isinstance(stop, BaseException):
            raise stop
        return Settled(self.cursor, stop, **self._counts)

    def _end(self, position: int, end: Stop | BaseException) -> None:
        self.halt_after(position)
        if self._first is None or position < self._first[0]:
            self._first = (position, end)


def _place_of(position: int, error: BaseException) -> int:
    return position if isinstance(error, Exception) else _BEFORE_ALL
