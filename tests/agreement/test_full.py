"""A journal that is full: new work is refused, what is in flight gets its outcome, and everything can be read."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from journal import Accepted, Journal, JournalFullError

from .support import Call, Peer, Stub, accept, leave_open, unused

MIB = 1024 * 1024


def test_readers_go_on_while_the_map_grows(open_journal: Callable[..., Journal]) -> None:
    """Threads read all the time while appends make the map grow many times over."""
    j = open_journal(map_size=MIB)
    accept(j, "k", "m-1")
    is_over = threading.Event()

    def read() -> int:
        count = 0
        while not is_over.is_set():
            sequences = [c.sequence for c in j.read("s", limit=3)]
            assert sequences == list(range(1, len(sequences) + 1))
            assert j.effect("k", run=unused(), reconcile=unused()) == Accepted("m-1", "run")
            count += 1
        return count

    readers = [Call(read) for _ in range(2)]
    for index in range(6):
        j.append("s", "x" * MIB, op_id=str(index))
    is_over.set()

    assert all(reader.result() for reader in readers)
    assert [len(c.operation) for c in j.read()] == [MIB] * 6


def test_map_that_another_process_made_grow_is_taken_up(
    open_journal: Callable[..., Journal], start_peer: Callable[..., Peer]
) -> None:
    """A handle whose map has become too small reads and writes on."""
    j = open_journal(map_size=MIB)
    j.append("s", "before", op_id="before")
    peer = start_peer("grow")
    assert peer.hear("grown")["head"] == 41

    assert len(list(j.read("large"))) == 40
    assert j.append("s", "after", op_id="after").position == 42
    assert accept(j, "k") == Accepted("proof", "run")


@pytest.fixture
def small(open_journal: Callable[..., Journal]) -> Journal:
    """A journal with a low ceiling."""
    return open_journal(map_size=4 * MIB, max_size=16 * MIB)


def fill(j: Journal) -> int:
    """Appends until the journal is full, smaller and smaller operations, and gives how many there were."""
    count = 0
    for size in (100_000, 1_000, 10):
        while True:
            try:
                j.append("filler", "x" * size, op_id=str(count))
            except JournalFullError:
                break
            count += 1
            assert count < 100_000
    return count


def test_map_grows_by_itself_up_to_its_ceiling(small: Journal) -> None:
    """More is written than the map was at first; then `JournalFullError`, and what was acknowledged is there."""
    count = fill(small)

    assert [c.sequence for c in small.read("filler")] == list(range(1, count + 1))
    assert sum(len(c.operation) for c in small.read()) > 4 * MIB
    assert small.head() == count


def test_full_journal_refuses_new_effects_before_they_run(small: Journal) -> None:
    """No intent, no run."""
    fill(small)
    run = unused()

    with pytest.raises(JournalFullError):
        small.effect("k", run=run, reconcile=unused())

    assert run.count == 0
    assert small.record("k") is None


def test_outcome_of_an_effect_in_flight_is_written(small: Journal) -> None:
    """A reserve is kept for outcomes: the journal fills up during the run, and the outcome is recorded."""

    def run() -> str:
        fill(small)
        return "m-1" * 1000

    outcome = small.effect("k", run=run, reconcile=unused())

    assert outcome == Accepted("m-1" * 1000, "run")
    assert small.effect("k", run=unused(), reconcile=unused()) == outcome


def test_open_effects_of_a_full_journal_can_be_settled(small: Journal) -> None:
    """What was in flight when it filled up is reconciled as ever."""
    keys = [("k", index) for index in range(20)]
    for key in keys:
        leave_open(small, key)
    fill(small)

    outcomes: list[Any] = [small.effect(key, run=unused(), reconcile=Stub("m", None)) for key in keys]

    assert outcomes == [Accepted("m", "reconcile")] * 20
    assert small.unfinished() == []


def test_full_journal_is_readable_and_opens(open_journal: Callable[..., Journal], small: Journal) -> None:
    """Reading, reuse and reopening need no room; a higher ceiling makes room."""
    accept(small, "k", "m-1")
    count = fill(small)

    assert len(list(small.read())) == count
    assert small.effect("k", run=unused(), reconcile=unused()) == Accepted("m-1", "run")
    small.close()
    again = open_journal()
    assert again.append("filler", "more", op_id="more").sequence == count + 1
    assert again.effect("u", run=lambda: 1, reconcile=unused()) == Accepted(1, "run")


@pytest.mark.parametrize("size", [3_000, 100])
def test_full_journal_is_made_room_in_by_compaction(small: Journal, size: int) -> None:
    """It needs next to nothing, and what it frees takes new work; small operations free no whole page."""
    count = 0
    while True:
        try:
            small.append_all("s", [(str(count + index), "x" * size) for index in range(20)])
        except JournalFullError:
            break
        count += 20
    fill(small)
    head = small.head()

    assert small.compact("s", head) == head

    if size > 100:
        for index in range(count // 40):
            small.append("s", "x" * 100, op_id=f"new-{index}")
        assert accept(small, "k") == Accepted("proof", "run")
    assert list(small.verify()) == []
