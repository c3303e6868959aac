"""Random operations walked one after the other and beside each other: is there any in which the two differ?

Each key behaves in one way whenever it is called, so what a walk comes to does not depend on who comes first.
"""

import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from journal import (
    Committed,
    EffectFailedError,
    EffectUnresolvedError,
    Intent,
    Journal,
    NotPerformed,
    Settled,
)

from .scripts import Boom, open_quietly

FINE = ("new", "often", "accepted", "open", "absent", "uncertain", "failed")
TROUBLED = ("refuses", "raises", "raises often", "cannot be asked")
LEFT_OPEN = ("open", "absent", "uncertain", "cannot be asked")
DEDUPLICATING = ("often", "raises often")

behaviours = st.lists(
    st.one_of(st.sampled_from(FINE), st.sampled_from(FINE), st.sampled_from(FINE + TROUBLED)), min_size=1, max_size=8
)
operations = st.lists(st.lists(st.integers(0, 7), max_size=4), max_size=10)


class Recipients:
    """What is at the other end: one behaviour for each key; counts what was done."""

    def __init__(self, kinds: list[str]) -> None:
        self.kinds = kinds
        self.done: list[int] = []
        self._lock = threading.Lock()

    def intent(self, number: int) -> Intent:
        """The effect of a key."""
        number %= len(self.kinds)
        reconcile = None if self.kinds[number] in DEDUPLICATING else lambda signal: self.find(number)
        return Intent(("k", number), lambda: self.run(number), reconcile)

    def run(self, number: int) -> str:
        kind = self.kinds[number]
        if kind == "refuses":
            raise NotPerformed("no")
        if kind in ("raises", "raises often"):
            raise Boom("no")
        with self._lock:
            self.done.append(number)
        return f"message {number}"

    def find(self, number: int) -> str | None:
        kind = self.kinds[number]
        if kind == "absent":
            raise NotPerformed("no")
        if kind in ("cannot be asked", "raises"):
            raise Boom("down")
        return None if kind == "uncertain" else f"message {number}"

    def prepare(self, j: Journal) -> None:
        """Leaves what an earlier life left."""
        for number, kind in enumerate(self.kinds):
            key = ("k", number)
            if kind == "accepted":
                j.effect(key, run=lambda: "before", reconcile=lambda signal: None)
            elif kind == "failed":
                with pytest.raises(EffectFailedError):
                    j.effect(key, run=_raising(NotPerformed("before")), reconcile=lambda signal: None)
            elif kind in LEFT_OPEN:
                with pytest.raises(EffectUnresolvedError):
                    j.effect(key, run=_raising(Boom("before")), reconcile=lambda signal: None)


def _raising(error: Exception) -> Any:
    def run() -> None:
        raise error

    return run


def walk(
    path: Path, kinds: list[str], implied: list[list[int]], concurrency: int, policies: dict[str, Any]
) -> tuple[Settled, list[list[str]], list[int]]:
    """A journal of its own, walked; what the walk came to, the phases of each key, and what was done."""
    recipients = Recipients(kinds)

    def intents(committed: Committed) -> Any:
        made = [recipients.intent(number) for number in committed.operation]
        return made if committed.sequence % 3 else iter(made)

    with open_quietly(path) as j:
        recipients.prepare(j)
        j.append_all("s", [(str(index), numbers) for index, numbers in enumerate(implied)])
        settled = j.recover(0, intents=intents, concurrency=concurrency, **policies)
        phases = [[event.phase for event in j.history(("k", number))] for number in range(len(kinds))]
        assert list(j.verify()) == []
        assert len(recipients.done) == len(set(recipients.done)), "an effect was done twice"
        return settled, phases, recipients.done


def stop_of(settled: Settled) -> tuple[Any, ...]:
    """The cursor, and where, over what and why the walk stopped."""
    stop = settled.stopped
    return (int(settled),) if stop is None else (int(settled), stop.position, stop.key, stop.reason, type(stop.error))


@settings(max_examples=60)
@given(
    kinds=behaviours,
    implied=operations,
    concurrency=st.integers(2, 5),
    on_unresolved=st.sampled_from(["retry", "retry", "retry", "pass", "skip"]),
    on_uncertain=st.sampled_from(["accept", "accept", "stop"]),
)
def test_walk_beside_comes_to_what_one_after_the_other_comes_to(
    kinds: list[str], implied: list[list[int]], concurrency: int, on_unresolved: str, on_uncertain: str
) -> None:
    """The same cursor and stop; without a stop the same counts, records and deeds, and with one no fewer."""
    policies: dict[str, Any] = {"on_unresolved": on_unresolved, "on_uncertain": on_uncertain}
    with tempfile.TemporaryDirectory() as directory:
        alone, alone_phases, alone_done = walk(Path(directory) / "alone", kinds, implied, 1, policies)
        beside, beside_phases, beside_done = walk(Path(directory) / "beside", kinds, implied, concurrency, policies)

    assert stop_of(beside) == stop_of(alone)
    if alone.stopped is None:
        assert repr(beside) == repr(alone)
        assert beside_phases == alone_phases
        assert sorted(beside_done) == sorted(alone_done)
    else:
        assert set(beside_done) >= set(alone_done)
