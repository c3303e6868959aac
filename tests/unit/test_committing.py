"""`journal/_drive/committing.py`: the commits of tasks, over a store that keeps what is brought to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

import pytest

from journal._drive import committing
from journal._drive.committing import Committer, TaskEntry
from journal._storage.group import Entry
from tests.unit.support import PATIENCE, Boom, until

NOTHING: Final[Any] = None
"""The transaction that decisions here look at."""


class Queue:
    """A store, and its queue: keeps the parties, and settles each as it is told; held, it waits before."""

    def __init__(self) -> None:
        self.group = self
        self.parties: list[list[Entry]] = []
        self.threads: set[int] = set()
        self.error: BaseException | None = None
        self.refusal: Exception | None = None
        self._go_on = threading.Event()
        self._go_on.set()

    def entry(self, decide: Callable[[Any], Any], *, settles: bool, can_withdraw: bool) -> Entry:
        if self.refusal is not None:
            raise self.refusal
        return Entry(decide, 0, 0, settles=settles, can_withdraw=can_withdraw)

    def commit_all(self, entries: list[Entry]) -> None:
        self.parties.append(entries)
        self.threads.add(threading.get_ident())
        assert self._go_on.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        for entry in entries:
            if entry.take():
                entry.succeed(entry.decide(NOTHING), [])

    def hold(self) -> None:
        """Let the next party wait."""
        self._go_on.clear()

    def go_on(self) -> None:
        """Let it be committed, and those after it."""
        self._go_on.set()

    @property
    def answers(self) -> list[list[Any]]:
        """What the entries of each party answer, withdrawn ones too."""
        return [[entry.decide(NOTHING) for entry in party] for party in self.parties]


class Bench:
    """A committer over such a store."""

    def __init__(self) -> None:
        self.queue = Queue()
        store: Any = self.queue
        self.committer = Committer(store)

    def submit(self, answer: Any, *, can_withdraw: bool = True) -> TaskEntry:
        """Ask for a commit that answers this."""
        return self.committer.submit(lambda _: answer, settles=False, can_withdraw=can_withdraw)

    async def commit(self, answer: Any) -> Any:
        """Its answer, or the error that it ended in."""
        waiting = self.submit(answer)
        await waiting.wait()
        if waiting.entry.error is not None:
            raise waiting.entry.error
        return waiting.entry.answer

    async def begun(self, parties: int) -> None:
        """Return when so many parties have come to the queue."""
        await asyncio.to_thread(until, lambda: len(self.queue.parties) == parties)


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A committer with nothing to do."""
    made = Bench()
    yield made
    made.queue.go_on()
    made.committer.close()


def play(main: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine gives, on a loop that counts how often it is woken from another thread."""
    with asyncio.Runner(debug=True) as runner:
        return runner.run(main)


class Wakes:
    """Counts the wake-ups that a loop gets for commits."""

    def __init__(self) -> None:
        loop: Any = asyncio.get_running_loop()
        self.count = 0
        original = loop.call_soon_threadsafe

        def call_soon_threadsafe(callback: Any, *arguments: Any, **options: Any) -> Any:
            self.count += callback is committing._wake_all
            return original(callback, *arguments, **options)

        loop.call_soon_threadsafe = call_soon_threadsafe


def test_entries_of_one_turn_go_as_one_party(bench: Bench) -> None:
    """From one thread, which is not the loop's; the loop is woken once."""

    async def main() -> None:
        wakes = Wakes()
        answers = await asyncio.gather(*(bench.commit(n) for n in range(10)))

        assert answers == list(range(10))
        assert bench.queue.answers == [list(range(10))]
        assert wakes.count == 1

    play(main())

    assert threading.get_ident() not in bench.queue.threads


def test_entries_that_come_during_a_flush_share_the_next_one(bench: Bench) -> None:
    """Whenever in it they came."""

    async def main() -> None:
        wakes = Wakes()
        bench.queue.hold()
        first = asyncio.create_task(bench.commit("first"))
        await bench.begun(1)
        later = []
        for n in range(3):
            later.append(asyncio.create_task(bench.commit(n)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        bench.queue.go_on()

        assert await first == "first"
        assert await asyncio.gather(*later) == [0, 1, 2]
        assert bench.queue.answers == [["first"], [0, 1, 2]]
        assert wakes.count == 2

    play(main())

    assert len(bench.queue.threads) == 1


def test_party_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too many for one goes with the next, in order."""
    monkeypatch.setattr(committing, "BATCH_ENTRIES_MAX", 4)

    async def main() -> None:
        wakes = Wakes()
        assert await asyncio.gather(*(bench.commit(n) for n in range(10))) == list(range(10))
        assert wakes.count == 3

    play(main())

    assert bench.queue.answers == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_one_commit_after_the_other_is_answered(bench: Bench) -> None:
    """The thread rests in between."""

    async def main() -> None:
        for n in range(20):
            assert await bench.commit(n) == n

    play(main())

    assert bench.queue.answers == [[n] for n in range(20)]


def test_withdrawn_entry_is_not_decided(bench: Bench) -> None:
    """Those that were asked for with it are."""

    async def main() -> None:
        bench.queue.hold()
        gone, stays = bench.submit("gone"), bench.submit("stays")
        await bench.begun(1)
        assert gone.entry.withdraw()
        bench.queue.go_on()
        await stays.wait()
        await gone.wait()

        assert (stays.entry.answer, gone.entry.answer) == ("stays", None)

    play(main())


def test_entry_that_must_stand_cannot_be_withdrawn(bench: Bench) -> None:
    """It settles what was done."""

    async def main() -> None:
        stands = bench.submit("stands", can_withdraw=False)
        assert not stands.entry.withdraw()
        await stands.wait()
        assert stands.entry.answer == "stands"
        assert not stands.entry.withdraw()

    play(main())


def test_wait_that_was_cancelled_can_be_begun_again(bench: Bench) -> None:
    """It is woken all the same."""

    async def main() -> None:
        bench.queue.hold()
        waiting = bench.submit("answer")
        task = asyncio.create_task(waiting.wait())
        await bench.begun(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        again = asyncio.create_task(waiting.wait())
        await asyncio.sleep(0)
        bench.queue.go_on()
        await again

        assert waiting.entry.answer == "answer"

    play(main())


def test_entry_that_nobody_waits_for_is_committed(bench: Bench) -> None:
    """Waking nobody is fine, before a wait and after one was cancelled."""

    async def main() -> None:
        bench.queue.hold()
        never = bench.submit("never")
        gone = bench.submit("gone")
        task = asyncio.create_task(gone.wait())
        await bench.begun(1)
        task.cancel()
        bench.queue.go_on()
        await bench.commit("last")

        assert (never.entry.answer, gone.entry.answer) == ("never", "gone")

    play(main())


@pytest.mark.parametrize("error", [Boom("bug"), SystemExit(3)])
def test_error_of_the_queue_is_told_to_all_who_wait(bench: Bench, error: BaseException) -> None:
    """Whatever it is; the thread goes on with the next party."""

    async def main() -> None:
        bench.queue.error = error
        told = await asyncio.gather(*(outcome(bench.commit(n)) for n in range(3)))
        bench.queue.error = None

        assert [repr(one) for one in told] == [repr(error)] * 3
        assert len({id(one) for one in (*told, error)}) == 4
        assert await bench.commit(4) == 4

    play(main())


async def outcome(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What it gives or raises: a task that raises `SystemExit` ends its loop."""
    try:
        return await coroutine
    except BaseException as error:
        return error


def test_error_of_the_queue_leaves_answers_as_they_are(bench: Bench) -> None:
    """What was done already before it raised has its answer, or was taken back."""

    async def main() -> None:
        bench.queue.hold()
        done, gone, undone = bench.submit(1), bench.submit(2), bench.submit(3)
        await bench.begun(1)
        done.entry.succeed("durable", [])
        assert gone.entry.withdraw()
        bench.queue.error = Boom()
        bench.queue.go_on()
        await undone.wait()

        assert (done.entry.answer, done.entry.error) == ("durable", None)
        assert gone.entry.error is None
        assert isinstance(undone.entry.error, Boom)

    play(main())


def test_refused_entry_asks_for_nothing(bench: Bench) -> None:
    """The store is closed, say."""

    async def main() -> None:
        bench.queue.refusal = Boom("closed")
        with pytest.raises(Boom):
            bench.submit("refused")
        bench.queue.refusal = None
        assert await bench.commit("next") == "next"

    play(main())

    assert bench.queue.answers == [["next"]]


def test_two_loops_are_each_woken_once(bench: Bench) -> None:
    """They share a party, and each wakes its own tasks in its own thread."""
    both = threading.Barrier(2)

    async def main(name: str) -> tuple[list[Any], int]:
        wakes = Wakes()
        waiting = [asyncio.create_task(bench.commit((name, n))) for n in range(3)]
        await asyncio.sleep(0)
        await asyncio.to_thread(both.wait, PATIENCE)
        if name == "a":
            await asyncio.to_thread(until, lambda: sum(map(len, bench.queue.parties)) + len(pending()) == 7)
            bench.queue.go_on()
        return await asyncio.gather(*waiting), wakes.count

    def pending() -> list[Any]:
        return list(bench.committer._pending)

    async def first() -> None:
        await bench.commit("first")

    bench.queue.hold()
    results: dict[str, Any] = {}
    threads = [threading.Thread(target=play, args=(first(),))]
    threads[0].start()
    until(lambda: bench.queue.parties)
    for name in "ab":
        threads.append(threading.Thread(target=lambda name=name: results.update({name: play(main(name))})))
        threads[-1].start()
    for thread in threads:
        thread.join(PATIENCE)

    assert results == {name: ([(name, n) for n in range(3)], 1) for name in "ab"}
    assert [len(party) for party in bench.queue.parties] == [1, 6]


def test_closed_loop_is_woken_no_more(bench: Bench) -> None:
    """It ended while its entry was flushed: the thread goes on for others."""

    async def leave() -> None:
        bench.submit("left")
        await bench.begun(1)

    bench.queue.hold()
    play(leave())
    bench.queue.go_on()

    assert play(bench.commit("other")) == "other"
    assert bench.queue.answers[-1] == ["other"]


def test_entry_of_a_loop_that_ended_before_its_turn_goes_with_the_next(bench: Bench) -> None:
    """The loop was closed before it came round: what it asked for was not taken back, and holds up nobody."""
    loop = asyncio.new_event_loop()

    async def leave() -> None:
        bench.submit("left")
        loop.stop()

    task = loop.create_task(leave())
    loop.run_forever()  # for one turn
    loop.close()

    assert task.done()
    assert bench.queue.parties == []
    assert play(bench.commit("other")) == "other"
    assert bench.queue.answers == [["left", "other"]]


def test_nothing_is_begun_where_another_took_all(bench: Bench) -> None:
    """The thread took what one loop asked for before that came round."""

    async def main() -> None:
        bench.queue.hold()
        first = asyncio.create_task(bench.commit("first"))
        await bench.begun(1)
        second = bench.submit("second")
        bench.queue.go_on()
        until(lambda: second.entry.is_done)
        until(lambda: not bench.committer._is_working)
        await second.wait()
        await first

    play(main())

    assert bench.queue.answers == [["first"], ["second"]]


def test_entry_that_comes_round_after_the_end_of_the_thread_is_told(bench: Bench) -> None:
    """The handle was closed on another loop in between: the store says what becomes of it, and nobody waits on."""

    async def main() -> None:
        waiting = bench.submit("late")
        bench.committer.close()
        bench.queue.error = Boom("closed")
        await waiting.wait()

        assert isinstance(waiting.entry.error, Boom)

    play(main())
