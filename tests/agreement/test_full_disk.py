"""A disk that takes no more, made by the process's limit of a file's size: new work is refused, what is in flight lands."""

import resource
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from journal import Accepted, Committed, EffectUnresolvedError, Intent, Journal, JournalFullError
from journal.options import DISK_RESERVE_BYTES

from .support import PATIENCE, Call, Stub, accept, leave_open, unused

IN_FLIGHT = 64


class Disk:
    """Lets this process's files have only so many bytes."""

    def __init__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def allow(self, size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, self._before[1]))

    def allow_all(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


@pytest.fixture
def disk() -> Iterator[Disk]:
    """A disk that can be filled."""
    made = Disk()
    yield made
    made.allow_all()


def fill(j: Journal) -> list[str]:
    """Appends smaller and smaller operations until none is taken, and gives the op_ids of those that were."""
    taken: list[str] = []
    for size in (100_000, 5_000, 10):
        while True:
            op_id = f"{threading.get_ident()}-{size}-{len(taken)}"
            try:
                j.append("filler", "x" * size, op_id=op_id)
            except JournalFullError:
                break
            taken.append(op_id)
            assert len(taken) < 100_000
    return taken


def filled_up(j: Journal, disk: Disk, room: int = 1024 * 1024) -> list[str]:
    """Leaves a disk with some room and fills that."""
    accept(j, "before", "m-0")
    disk.allow(j.stats().file_bytes + room)
    return fill(j)


@pytest.mark.parametrize("room", [0, 1, 100, 4095, 4096, 4097, 50_000, 1024 * 1024])
def test_full_disk_refuses_new_work_and_reads_on(j: Journal, disk: Disk, room: int) -> None:
    """Whatever is left of it, less than a page too: `JournalFullError`, nothing runs, and what was acknowledged is there."""
    taken = filled_up(j, disk, room)
    run = unused()

    for _ in range(2):
        with pytest.raises(JournalFullError):
            j.effect("new", run=run, reconcile=unused())
        with pytest.raises(JournalFullError):
            j.step("new", lambda: 1)
        with pytest.raises(JournalFullError):
            j.append("s", 1, op_id="1")

    assert run.count == 0
    assert j.record("new") is None
    filler = list(j.read("filler"))
    assert [c.op_id for c in filler] == taken
    assert j.effect("before", run=unused(), reconcile=unused()) == Accepted("m-0", "run")
    for c in filler[-1:]:
        again = j.append("filler", c.operation, op_id=c.op_id)
        assert isinstance(again, Committed)
        assert again.repeated
    assert list(j.verify()) == []


def test_effect_in_flight_records_its_outcome(j: Journal, disk: Disk) -> None:
    """The disk fills up during its run."""

    def run() -> str:
        filled_up(j, disk)
        return "m-1" * 1000

    outcome = j.effect("k", run=run, reconcile=unused())

    assert outcome == Accepted("m-1" * 1000, "run")
    assert j.effect("k", run=unused(), reconcile=unused()) == outcome


def test_many_effects_in_flight_record_their_outcomes(j: Journal, disk: Disk) -> None:
    """All of those that had begun; each ran once, and goes on as if nothing had been."""
    begun = threading.Semaphore(0)
    is_full = threading.Event()

    def wait() -> str:
        begun.release()
        assert is_full.wait(PATIENCE)
        return "m"

    runs = [Stub(wait) for _ in range(IN_FLIGHT)]

    def settle(index: int) -> Any:
        return j.effect(("k", index), run=runs[index], reconcile=unused())

    calls = [Call(lambda index=index: settle(index)) for index in range(IN_FLIGHT)]  # type: ignore[misc]  # mypy cannot infer a default
    for _ in calls:
        assert begun.acquire(timeout=PATIENCE)
    filled_up(j, disk)
    is_full.set()

    assert [call.result() for call in calls] == [Accepted("m", "run")] * IN_FLIGHT
    assert [run.count for run in runs] == [1] * IN_FLIGHT
    assert [record.phase for record in j.effects(prefix=("k",))] == ["accepted"] * IN_FLIGHT
    assert list(j.verify()) == []


def test_open_effects_of_a_full_disk_can_be_settled(j: Journal, disk: Disk) -> None:
    """One after the other, which is a commit for each."""
    keys = [("k", index) for index in range(IN_FLIGHT)]
    for key in keys:
        leave_open(j, key)
    filled_up(j, disk)

    outcomes: list[Any] = [j.effect(key, run=unused(), reconcile=Stub("m", None)) for key in keys]

    assert outcomes == [Accepted("m", "reconcile")] * IN_FLIGHT
    assert j.unfinished() == []


def test_outcome_larger_than_the_reserve_is_unresolved(j: Journal, disk: Disk) -> None:
    """It ran and cannot be written: `outcome-unrecorded`, no second run, and it is asked about when there is room."""
    result = "x" * 2 * DISK_RESERVE_BYTES

    def run() -> str:
        filled_up(j, disk)
        return result

    with pytest.raises(EffectUnresolvedError) as caught:
        j.run_effect("k", run)
    assert caught.value.reason == "outcome-unrecorded"
    disk.allow_all()

    assert j.run_effect("k", lambda: "again") == "again"
    assert [event.phase for event in j.history("k")][-1] == "accepted"


def test_walk_stops_at_a_full_disk_and_goes_on_when_there_is_room(j: Journal, disk: Disk) -> None:
    """The outcome of the one in flight is kept though it shared a commit with the next one's intent; none runs twice."""
    j.append_all("s", [(str(index), index) for index in range(4)])
    runs = [Stub("m"), Stub(lambda: filled_up(j, disk) and "m"), Stub("m"), Stub("m")]

    def intents(committed: Any) -> list[Intent]:
        return [Intent(committed.op_id, runs[committed.operation], unused())]

    with pytest.raises(JournalFullError):
        j.recover(intents=intents, stream="s")
    assert [run.count for run in runs] == [1, 1, 0, 0]
    assert [record.phase for record in j.effects(prefix="1")] == ["accepted"]
    disk.allow_all()
    settled = j.recover(intents=intents, stream="s")

    assert (settled.stopped, settled.reused, settled.ran) == (None, 2, 2)
    assert [run.count for run in runs] == [1, 1, 1, 1]


def test_everything_goes_on_when_there_is_room(open_journal: Callable[..., Journal], j: Journal, disk: Disk) -> None:
    """By itself, and for the next handle too; nothing that was acknowledged is lost."""
    taken = filled_up(j, disk)
    with pytest.raises(JournalFullError):
        j.append("s", 1, op_id="1")
    disk.allow_all()

    assert j.append("s", 1, op_id="1").sequence == 1
    assert accept(j, "k") == Accepted("proof", "run")
    j.close()
    again = open_journal()
    assert [c.op_id for c in again.read("filler")] == taken
    assert again.append("s", 2, op_id="2").sequence == 2
    assert list(again.verify()) == []


def test_full_disk_opens(open_journal: Callable[..., Journal], j: Journal, disk: Disk) -> None:
    """Opening writes nothing, for a reader as for a writer."""
    taken = filled_up(j, disk)
    j.close()

    for options in ({"readonly": True}, {}):
        with open_journal(**options) as again:
            assert len(list(again.read("filler"))) == len(taken)
            assert again.effect("before", run=unused(), reconcile=unused()) == Accepted("m-0", "run")
