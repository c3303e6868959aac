"""`journal/_storage/group.py`: who commits for whom, and that nobody is left waiting."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import pytest

from journal._storage import group
from journal._storage.group import Entry, GroupCommit, Party
from journal.errors import JournalBusyError
from journal.records import StepRecord
from tests.unit.support import PATIENCE, Boom, InterruptAt, InThread, lines_interrupted, until

CLOSED: Final = Boom("closed")


class Writer:
    """Commits batches, holds some of them until it is told to go on, and notes them by their times."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.threads: list[int] = []
        self.interrupts = 0
        self.group = GroupCommit(self, PATIENCE, closed_error=lambda: CLOSED, after_interrupt=self._note_interrupt)
        self._held: dict[int, threading.Event] = {}
        self._instead: dict[int, Callable[[list[Entry]], None]] = {}

    def __call__(self, entries: list[Entry]) -> None:
        number = len(self.batches)
        self.batches.append([entry.at for entry in entries])
        self.threads.append(threading.get_ident())
        if number in self._held:
            assert self._held[number].wait(PATIENCE)
        if number in self._instead:
            self._instead[number](entries)
            return
        for entry in entries:
            entry.succeed(entry.at, [])

    def hold(self, number: int) -> threading.Event:
        """Keep this batch until the event is set."""
        return self._held.setdefault(number, threading.Event())

    def instead(self, number: int, does: Callable[[list[Entry]], None]) -> None:
        """What becomes of this batch."""
        self._instead[number] = does

    def commit(self, at: int) -> Any:
        """A commit in this thread."""
        return self.entry(at).answer

    def entry(self, at: int, *, settles: bool = False) -> Entry:
        """A commit in this thread, whole."""
        entry = self.group.entry(decide, at, settles=settles)
        self.group.commit_all([entry])
        if entry.error is not None:
            raise entry.error
        return entry

    def start(self, at: int) -> InThread[Any]:
        """A commit in another thread, which is being flushed or waits when this returns."""
        call = InThread(lambda: self.commit(at))
        until(lambda: at in itertools.chain(*self.batches) or at in self.waiting())
        return call

    def waiting(self) -> list[int]:
        """The times of those in the queue."""
        return [entry.at for party in self.group._waiting for entry in party.entries]

    def lose_leader(self) -> None:
        """Leave behind the leader of a call that is gone, in this thread."""
        lost = Party([self.group.entry(decide, 0, settles=False)])
        self.group._present[lost.thread] = self.group._leader = lost

    def _note_interrupt(self) -> None:
        self.interrupts += 1


def decide(_: Any) -> None:
    """A decision that nobody takes here."""


def busy_leader(entries: list[Entry]) -> None:
    """The leader has come to its deadline, the others have time."""
    entries[0].fail(JournalBusyError("/journal", 1))


def interrupted(_: list[Entry]) -> None:
    """A signal comes while the batch is being flushed."""
    raise KeyboardInterrupt


@pytest.fixture
def writer() -> Writer:
    """An idle writer."""
    return Writer()


def test_party_whose_entries_were_all_withdrawn_commits_nothing(writer: Writer) -> None:
    """Before it leads, and between its look and its lead."""
    early = writer.group.entry(decide, 1, settles=False, can_withdraw=True)
    assert early.withdraw()
    writer.group.commit_all([early])
    late = writer.group.entry(decide, 2, settles=False, can_withdraw=True)
    party = Party([late])
    writer.group._present[party.thread] = writer.group._leader = party
    assert late.withdraw()
    writer.group._lead(party)

    assert writer.batches == []
    writer.group._leave(party)
    assert writer.commit(3) == 3


def test_entry_that_is_being_decided_cannot_be_withdrawn(writer: Writer) -> None:
    """Again and again, where its transaction is tried again; one that never could is taken as it is."""
    entry = writer.group.entry(decide, 1, settles=False, can_withdraw=True)
    firm = writer.group.entry(decide, 2, settles=True)

    assert (entry.take(), entry.take(), entry.withdraw()) == (True, True, False)
    assert (firm.withdraw(), firm.take()) == (False, True)
    withdrawn = writer.group.entry(decide, 3, settles=False, can_withdraw=True)
    assert (withdrawn.withdraw(), withdrawn.take(), withdrawn.withdraw()) == (True, False, False)


def test_lone_caller_commits_in_its_own_thread(writer: Writer) -> None:
    """Without a hand-over, and without a lock to be woken by."""
    made: list[Party] = []

    def keep(entries: list[Entry]) -> None:
        made.extend(writer.group._batch)
        entries[0].succeed("answer", [])

    writer.instead(0, keep)

    answer = writer.commit(1)

    assert answer == "answer"
    assert (writer.batches, writer.threads) == ([[1]], [threading.get_ident()])
    assert made[0]._wake is None


def test_callers_that_arrive_during_a_flush_share_the_next_one(writer: Writer) -> None:
    """The first that waited leads it for all, in its own thread."""
    go_on = writer.hold(0)
    calls = [writer.start(at) for at in (1, 2, 3, 4)]

    go_on.set()

    assert [call.result() for call in calls] == [1, 2, 3, 4]
    assert writer.batches == [[1], [2, 3, 4]]
    assert writer.threads == [calls[0]._thread.ident, calls[1]._thread.ident]
    assert (writer.group.batch_count, writer.group.entry_count) == (2, 4)


def test_batch_is_bounded(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest waits for the next one, so that nobody waits for too many."""
    monkeypatch.setattr(group, "BATCH_ENTRIES_MAX", 2)
    go_on = writer.hold(0)
    calls = [writer.start(at) for at in (1, 2, 3, 4, 5, 6)]

    go_on.set()

    assert [call.result() for call in calls] == [1, 2, 3, 4, 5, 6]
    assert writer.batches == [[1], [2, 3], [4, 5], [6]]


def test_refused_entry_fails_alone(writer: Writer) -> None:
    """Its caller has its own exception, the others their answers."""
    error = Boom("refused")

    def refuse_one(entries: list[Entry]) -> None:
        for entry in entries:
            if entry.at == 3:
                entry.fail(error)
            else:
                entry.succeed(entry.at, [])

    go_on = writer.hold(0)
    writer.instead(1, refuse_one)
    calls = [writer.start(at) for at in (1, 2, 3, 4)]
    go_on.set()

    assert [call.join().raised for call in calls] == [None, None, error, None]
    assert [call.returned for call in calls] == [1, 2, None, 4]


def test_entry_carries_its_decision_and_its_records(writer: Writer) -> None:
    """What the writer is given, and what it gives back."""
    record = StepRecord(b"k", 1, b"1")
    seen: list[Entry] = []

    def keep(entries: list[Entry]) -> None:
        seen.extend(entries)
        entries[0].succeed(None, [(7, record)])

    writer.instead(0, keep)

    entry = writer.entry(5, settles=True)

    assert entry is seen[0]
    assert (entry.decide, entry.at, entry.settles, entry.records) == (decide, 5, True, [(7, record)])


def test_chore_is_done_alone_in_its_place(writer: Writer) -> None:
    """Who came before has committed, who comes after commits afterwards, and it is no commit."""
    go_on = writer.hold(0)
    order: list[Any] = []
    first = writer.start(1)
    before = writer.start(2)
    chore = InThread(lambda: writer.group.run_alone(lambda: order.append(list(writer.batches))))
    until(lambda: 0 in writer.waiting())
    after = writer.start(3)

    go_on.set()

    for call in (first, before, after):
        call.result()
    chore.result()
    assert order == [[[1], [2]]]
    assert writer.batches == [[1], [2], [3]]
    assert (writer.group.batch_count, writer.group.entry_count) == (3, 3)


def test_chore_that_raises_is_its_callers_own(writer: Writer) -> None:
    """Those behind it go on."""
    go_on = writer.hold(0)
    first = writer.start(1)

    def raise_it() -> None:
        raise Boom

    chore = InThread(lambda: writer.group.run_alone(raise_it))
    until(lambda: 0 in writer.waiting())
    after = writer.start(2)
    go_on.set()

    with pytest.raises(Boom):
        chore.result()
    assert (first.result(), after.result()) == (1, 2)


def test_closed_queue_takes_no_chore(writer: Writer) -> None:
    """As it takes no commit."""
    writer.group.close()

    with pytest.raises(Boom):
        writer.group.run_alone(lambda: None)


def test_what_a_leaders_deadline_left_is_for_the_next_leader(writer: Writer) -> None:
    """In its order, before those that came later."""
    writer.instead(1, busy_leader)
    first, second = writer.hold(0), writer.hold(1)
    calls = [writer.start(at) for at in (1, 2, 3, 4)]
    first.set()
    until(lambda: len(writer.batches) == 2)
    calls.append(writer.start(5))

    second.set()

    assert isinstance(calls[1].join().raised, JournalBusyError)
    assert [calls[index].result() for index in (0, 2, 3, 4)] == [1, 3, 4, 5]
    assert writer.batches == [[1], [2, 3, 4], [3, 4, 5]]


def test_bug_of_the_writer_is_each_leaders_own(writer: Writer) -> None:
    """Who leads has the exception; the others are tried again without it."""
    go_on = writer.hold(0)
    writer.instead(1, lambda entries: entries[len(entries)].fail(Boom()))
    calls = [writer.start(at) for at in (1, 2, 3)]
    go_on.set()

    assert isinstance(calls[1].join().raised, IndexError)
    assert calls[2].result() == 3
    assert writer.batches == [[1], [2, 3], [3]]
    assert writer.commit(4) == 4


def test_leader_that_is_woken_before_it_is_named_waits_on_no_more(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who hands over wakes the next leader first: that one looks again under the lock, and does not miss its turn.

    Here it may run between the two as far as it can.
    """
    woken: list[Party] = []
    looked: list[Party] = []
    wait, wake, is_leader = Party.wait, Party.wake, GroupCommit._is_leader

    def wait_and_tell(party: Party, seconds: float) -> bool:
        is_woken = wait(party, seconds)
        if is_woken:
            woken.append(party)
        return is_woken

    def wake_and_let_run(party: Party) -> None:
        wake(party)
        if party._wake is not None and not party.is_done:
            until(lambda: party in looked)
            for _ in range(1_000):
                os.sched_yield()

    def look(own: GroupCommit, party: Party) -> bool:
        if party in woken:
            looked.append(party)
        return is_leader(own, party)

    monkeypatch.setattr(Party, "wait", wait_and_tell)
    monkeypatch.setattr(Party, "wake", wake_and_let_run)
    monkeypatch.setattr(GroupCommit, "_is_leader", look)
    go_on = writer.hold(0)
    calls = [writer.start(at) for at in (1, 2, 3)]

    go_on.set()

    assert [call.result() for call in calls] == [1, 2, 3]
    assert writer.batches == [[1], [2, 3]]


# Interrupts


class Waits:
    """Replaces `Party.wait` for some entries: an interrupt comes instead of what they wait for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._gates: dict[int, list[threading.Event]] = {}
        self._wait = Party.wait

        def wait(party: Party, seconds: float) -> bool:
            return self._wait_or_raise(party, seconds)

        monkeypatch.setattr(Party, "wait", wait)

    def interrupt(self, at: int) -> threading.Event:
        """An event that interrupts this entry's next wait when it is set."""
        event = threading.Event()
        self._gates.setdefault(at, []).append(event)
        return event

    def _wait_or_raise(self, party: Party, seconds: float) -> bool:
        if self._gates.get(party.entries[0].at):
            assert self._gates[party.entries[0].at].pop(0).wait(PATIENCE)
            raise KeyboardInterrupt
        return self._wait(party, seconds)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Waits that can be interrupted."""
    return Waits(monkeypatch)


def test_interrupt_while_waiting_withdraws_the_entry(writer: Writer, waits: Waits) -> None:
    """Nothing of it is committed, and the others go on."""
    go_on = writer.hold(0)
    interrupt = waits.interrupt(2)
    calls = [writer.start(at) for at in (1, 2, 3)]

    interrupt.set()
    assert isinstance(calls[1].join().raised, KeyboardInterrupt)
    go_on.set()

    assert (calls[0].result(), calls[2].result()) == (1, 3)
    assert writer.batches == [[1], [3]]


def test_interrupt_of_who_was_just_made_leader_hands_the_lead_on(writer: Writer, waits: Waits) -> None:
    """It was woken and interrupted at once: somebody else leads."""
    go_on = writer.hold(0)
    interrupt = waits.interrupt(2)
    calls = [writer.start(at) for at in (1, 2, 3)]
    go_on.set()
    assert calls[0].result() == 1

    interrupt.set()

    assert isinstance(calls[1].join().raised, KeyboardInterrupt)
    assert calls[2].result() == 3
    assert writer.batches == [[1], [3]]


def test_interrupt_during_the_flush_is_raised_after_it(writer: Writer, waits: Waits) -> None:
    """No commit is half known: the entry is durable when its caller hears of the interrupt."""
    first, second = writer.hold(0), writer.hold(1)
    interrupt = waits.interrupt(3)
    calls = [writer.start(at) for at in (1, 2, 3)]
    first.set()
    until(lambda: len(writer.batches) == 2)

    interrupt.set()
    until(lambda: not waits._gates[3])
    assert calls[2]._thread.is_alive()
    second.set()

    assert isinstance(calls[2].join().raised, KeyboardInterrupt)
    assert (calls[1].result(), writer.batches) == (2, [[1], [2, 3]])


def test_interrupted_entry_that_its_batch_left_undone_does_not_hold_up_the_others(writer: Writer, waits: Waits) -> None:
    """It was put back and made leader: it goes, and the next one leads."""
    writer.instead(1, busy_leader)
    first, second = writer.hold(0), writer.hold(1)
    interrupt = waits.interrupt(3)
    calls = [writer.start(at) for at in (1, 2, 3, 4)]
    first.set()
    until(lambda: len(writer.batches) == 2)
    interrupt.set()
    until(lambda: not waits._gates[3])

    second.set()

    assert isinstance(calls[2].join().raised, KeyboardInterrupt)
    assert calls[3].result() == 4
    assert writer.commit(5) == 5


def test_second_interrupt_during_the_flush_does_not_hold_up_the_others(writer: Writer, waits: Waits) -> None:
    """Who is in a hurry leaves at once; where its batch left it undone, it is not waited for."""
    writer.instead(1, busy_leader)
    first, second = writer.hold(0), writer.hold(1)
    interrupts = [waits.interrupt(3), waits.interrupt(3)]
    calls = [writer.start(at) for at in (1, 2, 3, 4)]
    first.set()
    until(lambda: len(writer.batches) == 2)
    for interrupt in interrupts:
        interrupt.set()
    assert isinstance(calls[2].join().raised, KeyboardInterrupt)

    second.set()

    assert calls[3].result() == 4
    assert writer.commit(5) == 5


def test_interrupt_of_the_leader_leaves_the_others_to_the_next(writer: Writer) -> None:
    """What it held is given back, and what it did not come to is committed by somebody else."""
    go_on = writer.hold(0)
    writer.instead(1, interrupted)
    calls = [writer.start(at) for at in (1, 2, 3)]
    go_on.set()

    assert isinstance(calls[1].join().raised, KeyboardInterrupt)
    assert calls[2].result() == 3
    assert writer.batches == [[1], [2, 3], [3]]
    assert writer.interrupts == 1


def test_signal_ends_the_wait_of_the_main_thread(writer: Writer) -> None:
    """A real one, to which the operating system wakes the thread."""
    go_on = writer.hold(0)
    first = writer.start(1)

    def send() -> None:
        until(lambda: writer.waiting() == [2])
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    sender = InThread(send)
    with pytest.raises(KeyboardInterrupt):
        writer.commit(2)
    sender.result()
    go_on.set()

    assert first.result() == 1
    assert writer.commit(3) == 3


@pytest.mark.parametrize("does", [lambda writer: writer.commit(9), lambda writer: writer.group.close()])
def test_handler_of_a_signal_may_not_wait_for_its_own_thread(writer: Writer, does: Callable[[Writer], Any]) -> None:
    """While its thread commits, it is refused at once, and the commit goes on."""
    refused: list[str] = []

    def handled(entries: list[Entry]) -> None:
        with pytest.raises(RuntimeError, match="it would wait for itself") as caught:
            does(writer)
        refused.append(str(caught.value))
        entries[0].succeed("answer", [])

    writer.instead(0, handled)

    assert writer.commit(1) == "answer"
    assert len(refused) == 1
    assert writer.commit(2) == 2


@pytest.mark.parametrize("does", [lambda writer: writer.commit(9), lambda writer: writer.group.close()])
def test_handler_of_a_signal_may_not_queue_behind_its_own_thread(
    writer: Writer, does: Callable[[Writer], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its thread waits for its turn, too: the turn would come to the thread that waits for the handler."""
    handled: list[str] = []
    wait = Party.wait

    def handle_and_wait(party: Party, seconds: float) -> bool:
        if party.entries[0].at == 2 and not handled:
            handled.append("by the thread that waits")
            with pytest.raises(RuntimeError, match="it would wait for itself"):
                does(writer)
        return wait(party, seconds)

    monkeypatch.setattr(Party, "wait", handle_and_wait)
    go_on = writer.hold(0)
    first, second = writer.start(1), writer.start(2)
    until(lambda: handled)
    go_on.set()

    assert (first.result(), second.result()) == (1, 2)
    assert writer.commit(3) == 3


@pytest.mark.parametrize("is_enabled", [True, False])
def test_collector_does_not_come_in_while_threads_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, *, is_enabled: bool
) -> None:
    """CPython would wait for its own lock; afterwards the collector is as it was."""
    seen: list[bool] = []
    real = sys._current_frames

    def look() -> dict[int, Any]:
        seen.append(gc.isenabled())
        return real()

    monkeypatch.setattr(sys, "_current_frames", look)
    if not is_enabled:
        gc.disable()
    try:
        frame = group._frame_of(threading.get_ident())
        assert gc.isenabled() is is_enabled
    finally:
        gc.enable()

    assert seen == [False]
    assert frame is not None


def test_leader_whose_call_is_gone_is_replaced(writer: Writer) -> None:
    """Two interrupts in a row can end a call before it has left the queue; neither its thread nor another is held up."""
    writer.lose_leader()

    assert writer.commit(2) == 2

    writer.lose_leader()
    assert InThread(lambda: writer.commit(4)).result() == 4
    assert writer.waiting() == []


def commit_alone(interrupt: InterruptAt) -> None:
    """A commit that is interrupted, and another one after it."""
    writer = Writer()
    with interrupt, contextlib.suppress(KeyboardInterrupt):
        writer.commit(1)
    assert InThread(lambda: writer.commit(2)).result() == 2
    assert writer.commit(3) == 3
    assert writer.waiting() == []


def test_lone_commit_may_be_interrupted_before_any_line() -> None:
    """Whatever it was about to do, the next commit finds the writer idle."""
    assert lines_interrupted(group, commit_alone) > 10


def commit_behind_another(interrupt: InterruptAt) -> None:
    """A commit that waits, is interrupted somewhere, and two others with it."""
    writer = Writer()
    go_on = writer.hold(0)
    first = writer.start(1)

    def interruptible() -> Any:
        with interrupt:
            return writer.commit(2)

    second = InThread(interruptible)
    until(lambda: writer.waiting() == [2] or second.raised)
    third = writer.start(3)
    go_on.set()
    second.join()

    assert second.returned == 2 or isinstance(second.raised, KeyboardInterrupt)
    assert (first.result(), third.result()) == (1, 3)
    assert InThread(lambda: writer.commit(4)).result() == 4
    assert writer.waiting() == []


def test_waiting_commit_may_be_interrupted_before_any_line() -> None:
    """Whether it had come into the queue, waited, or led: nobody waits for it."""
    assert lines_interrupted(group, commit_behind_another) > 20


# Closing


def test_closed_group_takes_no_more(writer: Writer) -> None:
    """With the handle's own error; closing again is fine."""
    writer.group.close()
    writer.group.close()

    with pytest.raises(Boom) as caught:
        writer.commit(1)

    assert caught.value is CLOSED
    assert writer.batches == []


def test_closing_waits_for_those_that_are_there(writer: Writer) -> None:
    """Who is in the queue is committed; who comes later is refused at once."""
    go_on = writer.hold(0)
    calls = [writer.start(at) for at in (1, 2)]
    closing = InThread(writer.group.close)
    until(lambda: len(writer.waiting()) == 2)
    with pytest.raises(Boom):
        writer.commit(3)

    go_on.set()
    closing.result()

    assert [call.result() for call in calls] == [1, 2]
    assert writer.batches == [[1], [2, 0]]


def test_closing_that_is_interrupted_can_be_done_again(writer: Writer, waits: Waits) -> None:
    """And leaves nobody behind."""
    go_on = writer.hold(0)
    interrupt = waits.interrupt(0)
    first = writer.start(1)
    closing = InThread(writer.group.close)
    until(lambda: len(writer.waiting()) == 1)
    interrupt.set()
    assert isinstance(closing.join().raised, KeyboardInterrupt)

    go_on.set()
    assert first.result() == 1
    InThread(writer.group.close).result()
