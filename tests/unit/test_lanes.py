"""`recovery/lanes.py`: every order in which a few operations can end, however each ends, against a slow model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from recovery.intents import Settled, Stop
from recovery.lanes import WINDOW_PER_LANE, Lanes
from tests.unit.support import Boom

FROM: Final = 5
COUNTS: Final = {"ran": 1, "reused": 2, "reconciled": 3, "uncertain": 4, "passed": 5}
ENDS: Final = ("settles", "stops", "raises", "interrupts")


def at(index: int) -> int:
    """The position of an operation."""
    return FROM + 10 * (index + 1)


def index_of(position: int) -> int:
    """The operation at a position."""
    return (position - FROM) // 10 - 1


def stop_at(position: int) -> Stop:
    """The stop of an operation."""
    return Stop(position, "s", f"op-{position}", "k", "failed")


def counts(settled: Settled) -> dict[str, int]:
    """What the walk counted."""
    return {name: getattr(settled, name) for name in COUNTS}


class Run:
    """One order of ends, replayed from the start, and what the obvious model says at each of its moments.

    A moment is the index of the operation in flight that ends next, and whether it is held to a halt: one that settles
    may be halted before it has, or have done its last effect already.
    """

    def __init__(self, count: int, ends: tuple[str, ...], moments: list[tuple[int, bool]]) -> None:
        self.ends = ends
        self.lanes = Lanes(FROM, count)
        self.count = count
        self.flying: list[int] = []
        self.begun = 0
        self.known: list[int] = []
        """Operations that have ended in a stop or an error, in the order in which that was known."""
        self.settled: set[int] = set()
        self.walked = 0
        self.errors: dict[int, BaseException] = {}
        self._start()
        for index, is_held in moments:
            self._end(index, is_held=is_held)
            self._start()

    def _start(self) -> None:
        while self.lanes.may_start:
            assert len(self.flying) < self.count
            assert not self.known
            if self.begun == len(self.ends):
                self.lanes.has_no_more()
                break
            self.lanes.start(at(self.begun))
            self.flying.append(self.begun)
            self.begun += 1
        assert self.lanes.in_flight == len(self.flying)
        assert self.known or self.begun == len(self.ends) or len(self.flying) == self.count
        for index in self.flying:
            assert self.lanes.is_halted(at(index)) is self.is_halted(index)

    def is_halted(self, index: int) -> bool:
        """What somebody would say who sees all that has ended."""
        return any(known < index or self.ends[known] == "interrupts" for known in self.known)

    def _end(self, index: int, *, is_held: bool) -> None:
        self.flying.remove(index)
        how, position, before = self.ends[index], at(index), self.lanes.cursor
        moved = False
        if how == "settles":
            self.walked += 1
            if not is_held:
                self.settled.add(index)
            moved = self.lanes.settle(position, Settled(position - 1 if is_held else position, None, **COUNTS))
        elif how == "stops":
            self.walked += 1
            self.known.append(index)
            moved = self.lanes.settle(position, Settled(position - 1, stop_at(position), **COUNTS))
        else:
            self.known.append(index)
            self.errors[index] = Boom(str(index)) if how == "raises" else KeyboardInterrupt(str(index))
            self.lanes.fail(position, self.errors[index])
        prefix = list(itertools.takewhile(lambda one: one in self.settled, range(len(self.ends))))
        assert self.lanes.cursor == (at(prefix[-1]) if prefix else FROM)
        assert moved is (self.lanes.cursor != before)

    def check_result(self) -> None:
        """Hold the result against the walk that goes one after the other."""
        interrupts = [index for index in self.known if self.ends[index] == "interrupts"]
        first = interrupts[0] if interrupts else min(self.known, default=None)
        if first is not None and first in self.errors:
            with pytest.raises(type(self.errors[first])) as caught:
                self.lanes.result()
            assert caught.value is self.errors[first]
            return
        settled = self.lanes.result()
        one_after_the_other = list(
            itertools.takewhile(lambda index: self.ends[index] == "settles", range(len(self.ends)))
        )
        assert settled == (at(one_after_the_other[-1]) if one_after_the_other else FROM)
        assert settled.stopped == (None if first is None else stop_at(at(len(one_after_the_other))))
        assert counts(settled) == {name: self.walked * count for name, count in COUNTS.items()}


def runs(count: int, ends: tuple[str, ...], moments: list[tuple[int, bool]]) -> Iterator[Run]:
    """Every run to its end that begins with these moments."""
    run = Run(count, ends, moments)
    if not run.flying:
        yield run
    for index in run.flying:
        yield from runs(count, ends, [*moments, (index, False)])
        if ends[index] == "settles" and run.is_halted(index):
            yield from runs(count, ends, [*moments, (index, True)])


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("operations", [0, 1, 2, 3, 4])
def test_every_order_of_ends_comes_to_what_one_after_the_other_comes_to(count: int, operations: int) -> None:
    """The same cursor and the same stop or error, whoever ends first; nothing begins once an end is known."""
    for ends in itertools.product(ENDS, repeat=operations):
        for run in runs(count, ends, []):
            run.check_result()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_slow_operation_holds_up_the_others_at_the_window(count: int) -> None:
    """What has begun past the oldest unsettled one is bounded; when that one ends, the walk goes on."""
    lanes = Lanes(0, count)
    lanes.start(1)
    begun = 1
    while lanes.may_start:
        begun += 1
        lanes.start(begun)
        lanes.settle(begun, Settled(begun))

    assert begun == (1 if count == 1 else count * WINDOW_PER_LANE)
    assert lanes.cursor == 0
    assert lanes.settle(1, Settled(1)) is True
    assert lanes.cursor == begun
    assert lanes.may_start


@pytest.mark.parametrize("end", [stop_at(5), Boom(), None])
def test_error_of_what_could_not_begin_comes_after_those_in_flight(end: Stop | Boom | None) -> None:
    """They are all before it: they go on to their end, and one that stops or raises is what the walk came to."""
    lanes = Lanes(0, 2)
    lanes.start(5)
    error = KeyError("intents")
    lanes.fail_next(error)

    assert not lanes.may_start
    assert not lanes.is_halted(5)
    if isinstance(end, Boom):
        lanes.fail(5, end)
    else:
        lanes.settle(5, Settled(5 if end is None else 4, end))
    assert outcome_of(lanes.result) is (error if end is None else end)
    assert lanes.cursor == (5 if end is None else 0)


def outcome_of(function: Callable[[], Settled]) -> Any:
    """The stop that a walk came to, or what it raised."""
    try:
        return function().stopped
    except Exception as error:
        return error


def test_error_of_the_settled_prefix_comes_before_all_in_flight() -> None:
    """What `progress` raises halts them, and is raised whatever they come to."""
    lanes = Lanes(0, 3)
    for position in (1, 2, 3):
        lanes.start(position)
    lanes.settle(1, Settled(1))
    error = Boom("progress")
    lanes.fail_here(error)
    lanes.settle(2, Settled(1, stop_at(2)))
    lanes.fail(3, KeyError())

    assert lanes.is_halted(2)
    assert lanes.in_flight == 0
    with pytest.raises(Boom) as caught:
        lanes.result()
    assert caught.value is error


def test_halt_is_for_all() -> None:
    """Nothing begins, and what is in flight starts nothing more."""
    lanes = Lanes(0, 2)
    lanes.start(1)

    lanes.halt()

    assert lanes.is_halted(1)
    assert not lanes.may_start


def test_stop_is_known_before_its_walk_has_ended() -> None:
    """Whoever finds it says so at once: what comes after is halted, what comes before is not."""
    lanes = Lanes(0, 3)
    for position in (1, 2, 3):
        lanes.start(position)

    lanes.halt_after(2)

    assert [lanes.is_halted(position) for position in (1, 2, 3)] == [False, False, True]
    assert not lanes.may_start


@pytest.mark.parametrize("error, halted", [(Boom(), [False, False, True]), (KeyboardInterrupt(), [True, True, True])])
def test_error_is_known_before_its_walk_has_ended(error: BaseException, halted: list[bool]) -> None:
    """What is no `Exception` halts what comes before it, too."""
    lanes = Lanes(0, 3)
    for position in (1, 2, 3):
        lanes.start(position)

    lanes.halt_by(2, error)

    assert [lanes.is_halted(position) for position in (1, 2, 3)] == halted
