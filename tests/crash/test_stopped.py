"""A process stands still (SIGSTOP) at a place of a protocol: what the others can do meanwhile, and what comes after.

Nobody waits without end, whoever is in the way is named, nothing is run a second time, and when the one that stood
still goes on, its call ends as if nothing had been. A handle that was refused works on.
"""

import fcntl
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgspec
import pytest

import journal
from journal import Committed, EffectInFlightError, EffectUnresolvedError, JournalBusyError
from journal._storage import turn
from journal._storage.environment import Environment
from journal._storage.turn import FLOCK
from tests.crash.support.deaths import Halt, seam_of_commits
from tests.crash.support.processes import KILLED, Process, Processes, die, hear_parent, say_parent
from tests.crash.support.service import STREAM, Delivery, Service, World, key_of, text_of
from tests.crash.support.state import check_all, recover

PATIENCE_SECONDS = 0.3
"""The `wait_timeout` of those that meet the one who stands still: long enough for any commit, and they wait it out."""


class Answers(msgspec.Struct, frozen=True):
    """What a process found while another one stood still: what each call gave, `busy` or `in flight` with whose pid."""

    append: str
    effect: str
    phase: str | None
    pids: set[int]
    ran: int


# What the one does that stands still


def append(world: World, halt: Halt) -> None:
    """Appends an operation."""
    service = Service(world, reach=halt.reach)
    with world.open() as j, halt.burning():
        service.append(j, "askable", "held")


def settle(world: World, halt: Halt) -> str | None:
    """Settles the effect of the one operation."""
    service = Service(world, reach=halt.reach, is_watched=False)
    with world.open() as j:
        (committed,) = j.read(limit=1)
        with halt.burning():
            return service.settle(j, committed)


def stand_still(world: World, act: Callable[[World, Halt], Any], place: str, length: int) -> Any:
    """Does one thing, and stops in the midst of it."""
    halt = Halt(place, length)
    seam_of_commits(halt)
    return act(world, halt)


# What the others do


def prepare(world: World) -> None:
    """One operation, whose effect nobody has begun."""
    with world.open() as j:
        Service(world).append(j, "askable", "first")


def leave_open(world: World) -> None:
    """One operation, delivered by a process that died before it could record it."""

    def reach(place: str) -> None:
        if place == "after the recipient":
            die()

    with world.open() as j:
        service = Service(world, reach=reach, is_watched=False)
        service.settle(j, service.append(j, "askable", "first"))


def meet(world: World) -> tuple[Answers, str | None]:
    """Tries everything while another one stands still, and once more, with the same handle, when it goes on."""
    with world.open(wait_timeout=PATIENCE_SECONDS) as j:
        say_parent(answers := try_all(world, j))
        hear_parent()
        (committed,) = j.read(limit=1)
        service = Service(world, is_watched=False)
        service.append(j, "askable", "mine")
        return answers, service.settle(j, committed)


def try_all(world: World, j: journal.Journal) -> Answers:
    """Reads everything, which nobody can prevent, and tries to append and to settle."""
    (committed,) = j.read(limit=1)
    key = key_of(committed)
    record = j.record(key)
    assert [event.phase for event in j.history(key)][-1:] == ([record.phase] if record else [])
    assert list(j.verify()) == []
    assert j.streams() == [STREAM]
    assert j.head() >= 1
    assert j.stats().operations >= 1
    assert [found.key for found in j.unfinished()] == ([key] if record and record.phase == "intent" else [])
    runs: list[str] = []
    pids: set[int] = set()

    def run() -> str:
        runs.append("ran")
        return world.recipient("askable").deliver(text_of(key))

    def tried(call: Callable[[], Any]) -> str:
        try:
            answer = call()
        except JournalBusyError as error:
            pids.add(error.pid or 0)
            return "busy"
        except EffectInFlightError as error:
            pids.add(error.pid)
            assert error.key == key
            return "in flight"
        except EffectUnresolvedError as error:
            assert isinstance(error.__cause__, JournalBusyError)
            pids.add(error.__cause__.pid or 0)
            return error.reason
        return type(answer).__name__

    service = Service(world, is_watched=False)
    return Answers(
        append=tried(lambda: j.append(STREAM, Delivery("proving"), op_id="tried")),
        effect=tried(lambda: j.effect(key, run=run, reconcile=lambda _: service.ask(world.recipient("askable"), key))),
        phase=record.phase if record else None,
        pids=pids,
        ran=len(runs),
    )


def open_and_look(world: World, *, readonly: bool) -> int:
    """Opens the journal, which waits for nobody, and reads it."""
    with world.open(readonly=readonly, create=False, wait_timeout=PATIENCE_SECONDS) as j:
        return len(list(j.read()))


def meet_one_that_stands_still(
    processes: Processes, world: World, act: Callable[[World, Halt], Any], place: str, length: int = 1
) -> Answers:
    """One stops at a place, another one tries everything; then the one goes on, and all is as it should be."""
    first = processes.start(stand_still, world, act, place, length)
    assert first.hear() == place
    first.wait_until_stopped()
    other: Process[tuple[Answers, str | None]] = processes.start(meet, world)
    other.hear()
    assert processes.run(open_and_look, world, readonly=True) >= 1
    assert processes.run(open_and_look, world, readonly=False) >= 1

    first.go_on()
    held = first.value()
    other.say("go on")
    answers, message = other.value()

    assert answers.pids <= {first.pid}
    assert answers.ran == 0
    walk, state = processes.run(recover, world, is_watched=False)
    check_all(world, walk, state)
    (sent,) = [sent for key, sent in state.sent.items() if '"first"' in key]
    assert (sent.deliveries, sent.message) == (1, message)
    assert act is append or held == message
    return answers


TURN_PLACES = ["before begin", "after begin", "after a put", "before LMDB's commit", "after LMDB's commit"]
"""With the writer's turn in hand; from the second on LMDB's own lock as well."""


@pytest.mark.parametrize("place", [*TURN_PLACES, "after the transaction"])
def test_others_are_told_who_holds_the_turn(processes: Processes, world: World, place: str) -> None:
    """Who would write is refused after `wait_timeout` with the pid, and no effect is begun."""
    processes.run(prepare, world)

    answers = meet_one_that_stands_still(processes, world, append, place)

    assert (answers.append, answers.effect, answers.phase) == ("busy", "busy", None)
    assert len(answers.pids) == 1


@pytest.mark.parametrize(
    "place, length, expected",
    [
        ("before begin", 1, ("busy", "busy", None)),
        ("before LMDB's commit", 1, ("busy", "busy", None)),
        ("after LMDB's commit", 1, ("busy", "in flight", "intent")),
        ("before the recipient", 1, ("Committed", "in flight", "intent")),
        ("after the recipient", 1, ("Committed", "in flight", "intent")),
        ("before begin", 2, ("busy", "in flight", "intent")),
        ("after begin", 2, ("busy", "in flight", "intent")),
        ("before LMDB's commit", 2, ("busy", "in flight", "intent")),
        ("after LMDB's commit", 2, ("busy", "Accepted", "accepted")),
    ],
)
def test_effect_in_the_hands_of_one_that_stands_still_is_left_to_it(
    processes: Processes, world: World, place: str, length: int, expected: tuple[str, str, str | None]
) -> None:
    """At each step, the commit of the intent, the run, the commit of the outcome: it may still act, so nobody else does."""
    processes.run(prepare, world)

    answers = meet_one_that_stands_still(processes, world, settle, place, length)

    assert (answers.append, answers.effect, answers.phase) == expected


@pytest.mark.parametrize("place", ["after the answer", "before begin", "before LMDB's commit"])
def test_who_stands_still_while_it_asks_owns_nothing(processes: Processes, world: World, place: str) -> None:
    """The intent's owner is dead and the asker is stopped: another one asks, unless the asker has the turn."""
    assert processes.start(leave_open, world).wait() == KILLED

    answers = meet_one_that_stands_still(processes, world, settle, place)

    if place == "after the answer":
        assert (answers.append, answers.effect, answers.pids) == ("Committed", "Accepted", set())
    else:
        # It asked, and could not write down the answer: nothing is recorded, and nothing runs.
        assert (answers.append, answers.effect) == ("busy", "outcome-unrecorded")


def walk_past(world: World) -> tuple[str | None, str, int]:
    """Walks while the owner of the one effect stands still; gives where it stopped, and at whom."""
    with world.open(wait_timeout=PATIENCE_SECONDS) as j:
        settled = j.recover(intents=Service(world, is_watched=False).intents)
        stop = settled.stopped
        assert stop is not None
        assert isinstance(stop.error, EffectInFlightError)
        return stop.op_id, stop.reason, stop.error.pid


def test_walk_stops_before_an_effect_whose_owner_stands_still(processes: Processes, world: World) -> None:
    """It does not run it, and does not wait for ever; the next walk, when the owner has gone on, reuses the outcome."""
    processes.run(prepare, world)
    owner = processes.start(stand_still, world, settle, "after the recipient", 1)
    owner.hear()
    owner.wait_until_stopped()

    stopped = processes.run(walk_past, world)
    owner.go_on()
    owner.value()

    assert stopped == ("first", "in_flight", owner.pid)
    walk, state = processes.run(recover, world, is_watched=False)
    check_all(world, walk, state)
    assert (walk.reused, walk.ran, walk.reconciled) == (1, 0, 0)


# Places that no step names


SYSTEM_CALLS_OF_A_FLUSH = {"x86_64": 75, "aarch64": 83}
"""`fdatasync`, by its number."""

MEETING_SECONDS = 120
"""How long a flush is waited for; one comes every fraction of a millisecond of the writer's own time."""


def append_without_end(world: World) -> None:
    """Commits again and again, each time acknowledged."""
    with world.open() as j:
        say_parent("open")
        for index in range(1_000_000):
            Service(world).append(j, "askable", f"flood {index}")


def is_in_a_flush(process: Process[None]) -> bool:
    """Whether a process waits for a flush, or was stopped in one."""
    call = pathlib.Path(f"/proc/{process.pid}/syscall").read_text(encoding="ascii").split()[0]
    return call == str(SYSTEM_CALLS_OF_A_FLUSH[os.uname().machine])


def stop_inside_a_flush(process: Process[None]) -> None:
    """Stops a process that commits without end, between LMDB's flush of the pages and its write of the meta page.

    It is only looked at until it is in one: stopped again and again, it would never come to its next commit.
    """
    deadline = time.monotonic() + MEETING_SECONDS
    while time.monotonic() < deadline:
        if not is_in_a_flush(process):
            continue
        process.stop()
        if is_in_a_flush(process):
            return
        process.go_on()
    raise AssertionError("never met it inside a flush")


def test_who_stands_still_inside_a_flush_is_named(processes: Processes, world: World) -> None:
    """The pages are on the disk and nothing says that they count: nobody sees them, and nobody writes beside it."""
    processes.run(prepare, world)
    writer = processes.start(append_without_end, world)
    writer.hear()
    stop_inside_a_flush(writer)
    before = len(world.acknowledged("append"))
    other: Process[tuple[Answers, str | None]] = processes.start(meet, world)
    other.hear()
    seen = processes.run(open_and_look, world, readonly=True)

    writer.go_on()
    other.say("go on")
    answers, _ = other.value()
    writer.kill()

    assert (answers.append, answers.effect, answers.pids) == ("busy", "busy", {writer.pid})
    assert seen == before
    walk, state = processes.run(recover, world, is_watched=False)
    check_all(world, walk, state)


def read_slowly(world: World) -> list[str]:
    """Reads the journal, and stops inside LMDB's read transaction."""
    halt = Halt("inside a read")
    read = Environment.read

    def slow_read(environment: Environment, body: Callable[[Any], Any]) -> Any:
        def slow_body(txn: Any) -> Any:
            value = body(txn)
            halt.reach("inside a read")
            assert body(txn) == value, "the snapshot changed"
            return value

        return read(environment, slow_body)

    with world.open() as j:
        Environment.read = slow_read  # type: ignore[method-assign, assignment]  # in this child alone
        with halt.burning():
            return [committed.op_id for committed in j.read()]


def append_many(world: World, number: int) -> None:
    """Appends, with contents that take pages."""
    with world.open() as j:
        for index in range(number):
            committed = j.append(STREAM, Delivery("askable", "x" * 10_000), op_id=f"more {index}")
            assert isinstance(committed, Committed)


def test_reader_that_stands_still_keeps_its_snapshot_and_stops_nobody(processes: Processes, world: World) -> None:
    """Writers go on; the pages that it reads are not used again, though nobody knows when it will go on."""
    processes.run(prepare, world)
    reader = processes.start(read_slowly, world)
    assert reader.hear() == "inside a read"
    reader.wait_until_stopped()

    processes.run(append_many, world, 300)
    reader.go_on()

    assert reader.value()[0] == "first"
    assert processes.run(open_and_look, world, readonly=True) == 301


def make_the_table_and_stop(world: World) -> None:
    """Stands still as LMDB does that opens a journal first, with the reader table for itself alone."""
    descriptor = os.open(world.path / "lock.mdb", os.O_RDWR)
    fcntl.fcntl(descriptor, fcntl.F_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    say_parent("alone")
    os.kill(os.getpid(), signal.SIGSTOP)
    os.close(descriptor)


def open_in_vain(world: World) -> int | None:
    """Tries to open; gives who is in the way."""
    with pytest.raises(JournalBusyError) as caught:
        world.open(wait_timeout=PATIENCE_SECONDS)
    return caught.value.pid


def test_opening_waits_a_bounded_time_for_one_that_stands_still_while_it_opens(
    processes: Processes, world: World
) -> None:
    """LMDB would wait for it without end; when it goes on, the next try opens."""
    processes.run(prepare, world)
    opener = processes.start(make_the_table_and_stop, world)
    opener.hear()
    opener.wait_until_stopped()

    named = processes.run(open_in_vain, world)
    opener.go_on()
    opener.value()

    assert named == opener.pid
    assert processes.run(open_and_look, world, readonly=False) == 1


def open_and_close_slowly(world: World, length: int) -> int:
    """Opens and closes, and stops at a line of that; gives how many lines there are."""
    folder = str(pathlib.Path(journal.__file__).parent / "_storage")
    halt = Halt("a line", length)

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        # The kernel's list of locks is as long as the machine is busy.
        if not frame.f_code.co_filename.startswith(folder) or frame.f_code is turn._holders.__code__:
            return None
        if event == "line":
            halt.reach("a line")
        return trace

    sys.settrace(trace)
    with halt.burning():
        world.open().close()
    sys.settrace(None)
    return halt.count


def use_all(world: World, name: str) -> None:
    """Opens, reads, appends and closes, each of which has a bounded time."""
    with world.open(wait_timeout=PATIENCE_SECONDS) as j:
        assert len(list(j.read())) >= 1
        Service(world).append(j, "askable", name)


LINES_TRIED = 15


def make_beside(world: World) -> int:
    """Opens the journal while another one may be making it; gives who is in the way, 0 where nobody is."""
    try:
        world.open(wait_timeout=PATIENCE_SECONDS).close()
    except JournalBusyError as error:
        return error.pid or -1
    return 0


@pytest.mark.slow
def test_who_stands_still_while_it_makes_the_journal_is_named(
    processes: Processes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """At lines spread over it: the others make the journal themselves, or are told who does; then all open the same."""
    number = processes.run(open_and_close_slowly, World(str(tmp_path_factory.mktemp("whole"))), 0)
    answers = set()

    for length in range(1, number + 1, number // LINES_TRIED):
        world = World(str(tmp_path_factory.mktemp("made")))
        slow = processes.start(open_and_close_slowly, world, length)
        slow.hear()
        slow.wait_until_stopped()
        answers.add(processes.run(make_beside, world) == slow.pid)
        assert processes.run(make_beside, world) in {0, slow.pid}
        slow.go_on()
        slow.value()
        processes.run(prepare, world)
        assert processes.run(open_and_look, world, readonly=True) == 1
        processes.forget(slow)

    assert answers == {True, False}


@pytest.mark.slow
def test_who_stands_still_while_it_opens_or_closes_is_in_nobodys_way(processes: Processes, world: World) -> None:
    """At lines spread over both, others open, read and append: opening and closing take no turn."""
    processes.run(prepare, world)
    number = processes.run(open_and_close_slowly, world, 0)

    for length in range(1, number + 1, number // LINES_TRIED):
        slow = processes.start(open_and_close_slowly, world, length)
        slow.hear()
        slow.wait_until_stopped()
        processes.run(use_all, world, f"beside line {length}")
        slow.go_on()
        assert slow.value() >= length
        processes.forget(slow)
