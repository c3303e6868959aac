"""`journal/_drive/tasks.py`: protocols run on an event loop, over a journal in memory."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any

import pytest

from journal._core import requests
from journal._core.effects import effect, run_effect
from journal._core.keys import key_form
from journal._core.requests import CutOffError, DeadlineError, RunRaisedError
from journal._drive import calls, tasks
from journal._drive.calls import LoopWaiter, ThreadCall, in_thread
from journal._drive.committing import Committer
from journal._drive.signals import AsyncSignal, Signal
from journal._drive.tasks import Background, TaskDriver
from journal._flights import Flights, inside
from journal._logs import Log
from journal._storage.group import Entry
from journal.errors import EffectInFlightError, EffectUnresolvedError, JournalReadonlyError
from journal.records import Guarantee, Phase
from journal.values import Accepted, Cursor
from tests.unit.support import OTHER, OTHER_PID, OWN, PATIENCE, Boom, at_most_once, idempotent, raising, until, unused
from tests.unit.test_drive import Lines, MemoryStore


class LoopStore(MemoryStore):
    """The store, and its queue, which can be held."""

    def __init__(self) -> None:
        super().__init__()
        self.group = self
        self.go_on = threading.Event()
        self.go_on.set()
        self.is_flushing = threading.Event()
        self.is_queued = threading.Event()
        self.let_begin = threading.Event()
        self.let_begin.set()

    def entry(self, decide: Callable[[Any], Any], *, settles: bool, can_withdraw: bool) -> Entry:
        self.settled.append(settles)
        return Entry(decide, 0, 0, settles=settles, can_withdraw=can_withdraw)

    def commit_all(self, entries: list[Entry]) -> None:
        self.is_queued.set()
        assert self.let_begin.wait(PATIENCE)
        taken = [entry for entry in entries if entry.take()]
        self.is_flushing.set()
        assert self.go_on.wait(PATIENCE)
        for entry in taken:
            before = self.memory.head()
            try:
                answer = self.memory.commit(entry.decide)
            except Exception as error:
                entry.fail(error)
            else:
                positions = range(before + 1, self.memory.head() + 1)
                entry.succeed(answer, [(n, self.memory.record(n)) for n in positions])

    def hold(self) -> None:
        """Let the next commit stand in its flush."""
        self.is_flushing.clear()
        self.go_on.clear()

    def hold_before(self) -> None:
        """Let the next commit wait for its turn."""
        self.is_queued.clear()
        self.let_begin.clear()


class Bench:
    """Drivers with everything around them."""

    def __init__(self) -> None:
        self.store = LoopStore()
        self.flights = Flights("/journal")
        self.lines = Lines()
        store: Any = self.store
        self.committer = Committer(store)
        self.background = Background()

    def driver(self) -> TaskDriver:
        store: Any = self.store
        return TaskDriver(
            store, self.flights, Log(self.lines, "id"), committer=self.committer, background=self.background
        )

    async def run(self, protocol: Any) -> Any:
        return await self.driver().run(protocol)

    async def ask(self, *asked: Any) -> Any:
        """The answers to some requests of one protocol."""

        def protocol() -> Generator[Any, Any, Any]:
            answers = []
            for request in asked:
                answer = yield request
                answers += [answer]
            return answers

        return await self.run(protocol())

    def phases(self, key: str = "k") -> list[str]:
        return self.store.memory.phases(key)

    async def settle(self) -> None:
        """Return when nothing acts in the background."""
        while self.background.drivers or self.background.stragglers:
            await asyncio.wait({*self.background.drivers, *self.background.stragglers})
            await asyncio.sleep(0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    """An empty journal in memory, and what drives it."""
    made = Bench()
    yield made
    made.store.go_on.set()
    made.store.let_begin.set()
    made.committer.close()


def play(main: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine gives, on a loop whose complaints are failures."""
    told: list[Any] = []
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda _, context: told.append(context))
        answer = runner.run(main)
    assert told == []
    return answer


def spawn(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task of its own."""
    return asyncio.get_running_loop().create_task(coroutine)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task, which must end by it."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def entering(key: str = "k", *, wait: bool = True) -> requests.Enter:
    """A request for a flight."""
    return requests.Enter("effect", key, key_form(key), Guarantee.AT_MOST_ONCE, None, wait=wait)


def committing(answer: Any = "answer", *, settles: bool = False) -> requests.Commit:
    """A commit that answers this."""
    return requests.Commit(lambda _: answer, settles=settles)


class Pass:
    """A run that goes on when it is let."""

    def __init__(self, answer: Any = "proof") -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self._answer = answer

    def plain(self, *_: Any) -> Any:
        self.entered.set()
        assert self.opened.wait(PATIENCE)
        return self._answer

    async def coroutine(self, *_: Any) -> Any:
        self.entered.set()
        await asyncio.to_thread(until, self.opened.is_set)
        return self._answer

    async def wait_until_entered(self) -> None:
        await asyncio.to_thread(until, self.entered.is_set)


# Protocols


def test_protocol_gives_what_it_returns(bench: Bench) -> None:
    """A whole one; the second time without a task or a commit."""

    async def main() -> None:
        assert await bench.run(effect(at_most_once(), OWN)) == Accepted("proof", "run")
        by_hand = bench.run(effect(at_most_once(run=unused), OWN))
        with pytest.raises(StopIteration) as end:
            by_hand.send(None)
        assert end.value.value == Accepted("proof", "run")
        assert await bench.ask() == []

    play(main())

    assert bench.store.settled == [False, True]


@pytest.mark.parametrize("carrier", [RunRaisedError, CutOffError])
def test_exception_that_is_carried_out_is_raised(bench: Bench, carrier: Any) -> None:
    """The very same, with no other context."""
    error = Boom("500")

    def protocol() -> Generator[Any, Any, None]:
        yield requests.Read(lambda view: view.head())
        raise carrier(error)

    with pytest.raises(Boom) as caught:
        play(bench.run(protocol()))

    assert caught.value is error
    assert error.__context__ is None


def test_exception_is_thrown_into_the_protocol_at_its_place(bench: Bench) -> None:
    """Out of what is answered at once, and out of what is waited for."""
    caught: list[BaseException] = []

    def protocol() -> Generator[Any, Any, str]:
        for request in (
            requests.Read(raising(Boom("read"))),
            requests.Commit(raising(Boom("commit"))),
            requests.Decide(raising(Boom("decide")), ()),
        ):
            try:
                yield request
            except Boom as error:
                caught.append(error)
        return "end"

    assert play(bench.run(protocol())) == "end"
    assert [str(error) for error in caught] == ["read", "commit", "decide"]


def test_long_look_lets_the_loop_go_on(bench: Bench) -> None:
    """It is done in a thread, and answered or raised like any other."""
    seen: list[int] = []

    def look(view: Any) -> int:
        seen.append(threading.get_ident())
        head: int = view.head()
        return head

    def protocol() -> Generator[Any, Any, int]:
        with pytest.raises(Boom):
            yield requests.Read(raising(Boom("read")), is_long=True)
        head: int = yield requests.Read(look, is_long=True)
        return head

    assert play(bench.run(protocol())) == 0
    assert seen != [threading.get_ident()]


def test_protocol_that_only_looks_is_answered_at_once(bench: Bench) -> None:
    """Without a loop."""

    def protocol() -> Generator[Any, Any, int]:
        head: int = yield requests.Read(lambda view: view.head())
        return head

    assert bench.driver().look(protocol()) == 0


def test_flights_that_a_protocol_leaves_are_ended(bench: Bench) -> None:
    """Nobody waits for them for ever."""
    play(bench.ask(entering("a"), entering("b"), committing()))

    assert not bench.flights.has_open()


def test_readonly_handle_enters_no_flight(bench: Bench) -> None:
    """It could not write the intent."""
    bench.store.readonly = True

    with pytest.raises(JournalReadonlyError):
        play(bench.ask(entering()))


@pytest.mark.parametrize("owner, pid", [(OTHER, OTHER_PID), (OWN, None)])
def test_life_of_an_owner_is_the_stores_to_tell(bench: Bench, owner: int, pid: int | None) -> None:
    """By its pid."""
    bench.store.memory.alive[OTHER] = OTHER_PID

    assert play(bench.ask(requests.IsAlive(owner))) == [pid]


# A caller that is cancelled


def test_cancelled_caller_begins_nothing(bench: Bench) -> None:
    """What it had entered is let go."""

    async def main() -> None:
        async def call() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await bench.run(effect(at_most_once(run=unused), OWN))

        with pytest.raises(asyncio.CancelledError):
            await spawn(call())
        assert not bench.flights.has_open()

    play(main())

    assert bench.store.settled == []


def test_caller_that_has_heard_of_its_cancellation_goes_on(bench: Bench) -> None:
    """It cleans up."""

    async def main() -> None:
        async def call() -> Any:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return await bench.run(effect(at_most_once(), OWN))

        task = spawn(call())
        await asyncio.sleep(0)
        task.cancel()
        assert await task == Accepted("proof", "run")

    play(main())


@pytest.mark.parametrize("style", ["plain", "coroutine"])
def test_run_of_a_cancelled_caller_goes_on(bench: Bench, style: str) -> None:
    """And is recorded."""

    async def main() -> None:
        passing = Pass()
        owner = spawn(bench.run(effect(at_most_once(run=getattr(passing, style)), OWN)))
        await passing.wait_until_entered()
        await cancelled(owner)
        passing.opened.set()
        await bench.settle()

    play(main())

    assert bench.phases() == ["intent", "accepted"]


def test_what_ends_the_process_is_raised_on_the_loop_where_the_caller_is_gone(bench: Bench) -> None:
    """By the callback of the task that acted."""

    async def main() -> None:
        passing = Pass()

        async def run() -> None:
            await passing.coroutine()
            raise SystemExit(3)

        owner = spawn(bench.run(effect(at_most_once(run=run), OWN)))
        await passing.wait_until_entered()
        await cancelled(owner)
        passing.opened.set()
        await asyncio.Event().wait()

    with pytest.raises(SystemExit):
        play(main())

    assert bench.phases() == ["intent", "released"]


def test_task_that_is_cancelled_before_its_first_step_writes_nothing(bench: Bench) -> None:
    """Its caller has the `CancelledError`, and the flight is over."""

    async def main() -> None:
        owner = spawn(bench.run(effect(at_most_once(run=unused), OWN)))
        await asyncio.sleep(0)
        (task,) = bench.background.drivers
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner
        assert not bench.flights.has_open()
        assert not bench.background.drivers

    play(main())

    assert bench.phases() == []


def test_wait_for_another_process_ends_with_the_caller(bench: Bench) -> None:
    """And runs nothing later."""
    bench.store.memory.put_effect("k", Phase.INTENT, owner=OTHER)
    bench.store.memory.alive[OTHER] = OTHER_PID

    async def main() -> None:
        owner = spawn(bench.run(effect(at_most_once(run=unused, reconcile=unused), OWN)))
        await asyncio.sleep(0.005)
        await cancelled(owner)
        await bench.settle()
        assert not bench.flights.has_open()

    play(main())


def test_wait_for_another_process_has_its_end(bench: Bench) -> None:
    """After `wait_timeout` the caller hears who has it."""
    bench.store.memory.put_effect("k", Phase.INTENT, owner=OTHER)
    bench.store.memory.alive[OTHER] = OTHER_PID
    bench.store.wait_timeout = 0.01

    with pytest.raises(EffectInFlightError) as caught:
        play(bench.run(effect(at_most_once(run=unused, reconcile=unused), OWN)))

    assert caught.value.pid == OTHER_PID


@pytest.mark.parametrize(
    "request_",
    [requests.Pause(object(), 5.0), requests.Decide(unused, ()), entering("next")],
    ids=["pause", "decide", "enter"],
)
def test_nothing_starts_after_the_caller_is_gone(bench: Bench, request_: Any) -> None:
    """A walk's next function, wait, or effect; one that need not be is left out."""
    seen: list[Any] = []

    async def main() -> None:
        passing = Pass()

        def protocol() -> Generator[Any, Any, None]:
            yield entering()
            yield requests.Call(passing.coroutine)
            seen.append((yield entering("ahead", wait=False)))
            try:
                yield request_
            except asyncio.CancelledError as error:
                seen.append(type(error))
                raise

        owner = spawn(bench.run(protocol()))
        await passing.wait_until_entered()
        await cancelled(owner)
        passing.opened.set()
        await bench.settle()

    play(main())

    assert seen == [None, asyncio.CancelledError]


# Joining


def test_joiner_reads_again_when_the_flight_ended_well(bench: Bench) -> None:
    """One that is cancelled ends its own wait."""

    async def main() -> None:
        passing = Pass()
        owner = spawn(bench.run(effect(at_most_once(run=passing.coroutine), OWN)))
        await passing.wait_until_entered()
        joiner, gone = (spawn(bench.run(effect(at_most_once(run=unused), OWN))) for _ in range(2))
        await asyncio.sleep(0)
        await cancelled(gone)
        passing.opened.set()
        assert await owner == await joiner == Accepted("proof", "run")

    play(main())


def test_joiner_has_the_error_in_which_the_flight_ended(bench: Bench) -> None:
    """Its own copy."""

    async def main() -> None:
        passing = Pass()

        async def run() -> None:
            await passing.coroutine()
            raise Boom

        owner = spawn(bench.run(run_effect(idempotent(run=run), OWN)))
        await passing.wait_until_entered()
        joiner = spawn(bench.run(run_effect(idempotent(run=unused), OWN)))
        await asyncio.sleep(0)
        passing.opened.set()
        first: Any
        second: Any
        first, second = await asyncio.gather(owner, joiner, return_exceptions=True)
        assert type(first) is type(second) is Boom
        assert first is not second

    play(main())


def test_caller_that_is_cancelled_as_it_joins_leaves_nothing_behind(bench: Bench) -> None:
    """It waits for nobody in the registry's eyes."""

    async def main() -> None:
        passing = Pass()
        owner = spawn(bench.run(effect(at_most_once(run=passing.coroutine), OWN)))
        await passing.wait_until_entered()

        async def call() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await bench.run(effect(at_most_once(run=unused), OWN))

        with pytest.raises(asyncio.CancelledError):
            await spawn(call())
        passing.opened.set()
        assert await owner == Accepted("proof", "run")

    play(main())


# Commits


def test_commit_that_is_cancelled_before_its_turn_is_taken_back(bench: Bench) -> None:
    """Nothing of it is written."""

    async def main() -> None:
        bench.store.hold_before()
        task = spawn(bench.ask(requests.Commit(unused)))
        await asyncio.to_thread(until, bench.store.is_queued.is_set)
        await cancelled(task)
        bench.store.let_begin.set()

    play(main())


def test_commit_that_is_cancelled_while_it_is_flushed_is_waited_for(bench: Bench) -> None:
    """It is known what became of it when the caller hears of it."""

    async def main() -> None:
        bench.store.hold()
        task = spawn(bench.ask(committing()))
        await asyncio.to_thread(until, bench.store.is_flushing.is_set)
        task.cancel()
        await asyncio.sleep(0.005)
        assert not task.done()
        bench.store.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    play(main())

    assert bench.store.memory.commits == 1


def test_refused_commit_that_was_cancelled_tells_why(bench: Bench) -> None:
    """The refusal says more."""

    async def main() -> None:
        bench.store.hold()
        task = spawn(bench.ask(requests.Commit(raising(Boom()))))
        await asyncio.to_thread(until, bench.store.is_flushing.is_set)
        task.cancel()
        await asyncio.sleep(0)
        bench.store.go_on.set()
        with pytest.raises(Boom):
            await task

    play(main())


@pytest.mark.parametrize("settles", [True, False])
def test_outcome_is_recorded_though_its_task_is_cancelled(bench: Bench, *, settles: bool) -> None:
    """What a run came to cannot be taken back; where the commit does more, the protocol hears of the cancellation."""
    seen: list[Any] = []

    def protocol() -> Generator[Any, Any, str]:
        yield entering()
        yield requests.Call(lambda: "proof")
        bench.store.hold_before()
        try:
            seen.append((yield committing(settles=settles)))
        except asyncio.CancelledError:
            seen.append("cancelled")
        return "end"

    async def main() -> None:
        bench.store.is_queued.clear()
        owner = spawn(bench.run(protocol()))
        await asyncio.to_thread(until, bench.store.is_queued.is_set)
        (task,) = bench.background.drivers
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        bench.store.let_begin.set()
        assert await owner == "end"

    play(main())

    assert bench.store.memory.commits == 1
    assert seen == ["answer" if settles else "cancelled"]


def test_coroutine_that_is_closed_takes_its_commit_back(bench: Bench) -> None:
    """Its loop is gone, and nobody would hear of it."""

    async def main() -> None:
        bench.store.hold_before()
        call = bench.ask(requests.Commit(unused))
        call.send(None)
        call.close()
        await asyncio.to_thread(until, bench.store.is_queued.is_set)
        bench.store.let_begin.set()

    play(main())

    assert bench.store.memory.commits == 0


# Users' functions


async def coroutine_of(value: Any) -> Any:
    """It, awaited."""
    await asyncio.sleep(0)
    return value


@pytest.mark.parametrize(
    "make",
    [
        requests.Call,
        lambda function: requests.Decide(function, ()),
        lambda function: requests.Ask(function, "k", 1, 0, PATIENCE),
        lambda function: requests.Progress(function, 0, is_last=True),
    ],
    ids=["call", "decide", "ask", "progress"],
)
@pytest.mark.parametrize("style", ["plain", "coroutine", "awaitable"])
def test_users_function_runs_inside_of_the_flights_of_its_call(bench: Bench, make: Any, style: str) -> None:
    """Whatever it is; with the caller's context, and without leaving a trace in it."""
    colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour")
    seen: list[Any] = []

    def plain(*_: Any) -> str:
        seen.append((len(inside.get()), colour.get()))
        return "value"

    async def coroutine(*_: Any) -> str:
        await asyncio.sleep(0)
        return plain()

    def awaitable(*_: Any) -> Any:
        return coroutine()

    async def main() -> None:
        colour.set("red")
        answers = await bench.ask(
            entering("a"), entering("b"), make({"plain": plain, "coroutine": coroutine, "awaitable": awaitable}[style])
        )
        assert answers[-1] in ("value", None)
        assert inside.get() == frozenset()

    play(main())

    assert seen == [(2, "red")]


def test_plain_functions_that_act_are_called_in_threads(bench: Bench) -> None:
    """One that decides, too; a coroutine function is called on the loop."""
    threads: dict[str, int] = {}

    def note(name: str) -> Callable[..., None]:
        return lambda *_: threads.update({name: threading.get_ident()})

    async def noting(*_: Any) -> None:
        note("coroutine")()

    async def main() -> None:
        await bench.ask(
            entering(),
            requests.Call(note("call")),
            requests.Ask(note("ask"), "k", 1, 0, PATIENCE),
            requests.Decide(note("decide"), ()),
            requests.Call(noting),
        )

    play(main())

    here = threading.get_ident()
    assert {name for name, thread in threads.items() if thread == here} == {"coroutine"}


@pytest.mark.parametrize("style", ["plain", "coroutine"])
@pytest.mark.parametrize("error", [Boom("500"), GeneratorExit("odd"), SystemExit(3)])
@pytest.mark.parametrize("kind", ["call", "ask"])
def test_what_a_users_function_raises_comes_out(bench: Bench, style: str, error: BaseException, kind: str) -> None:
    """A `GeneratorExit` is carried past the protocol, which could not tell it from its own end."""
    seen: list[BaseException] = []

    def plain(*_: Any) -> None:
        raise error

    async def coroutine(*_: Any) -> None:
        raise error

    function = {"plain": plain, "coroutine": coroutine}[style]

    def protocol() -> Generator[Any, Any, None]:
        try:
            yield requests.Call(function) if kind == "call" else requests.Ask(function, "k", 1, 0, PATIENCE)
        except BaseException as caught:
            seen.append(caught)
            raise

    async def main() -> None:
        with pytest.raises(type(error)) as caught:
            await bench.run(protocol())
        assert caught.value is error

    play(main())

    assert isinstance(seen[0], CutOffError) == isinstance(error, GeneratorExit)


@pytest.mark.parametrize("has_loop", [True, False])
def test_coroutine_that_is_closed_in_a_run_ends_its_flight(bench: Bench, *, has_loop: bool) -> None:
    """Its loop was closed under it: the intent stands, and nothing is asked for any more."""
    driver = bench.driver()

    async def wait() -> None:
        await asyncio.Event().wait()

    async def begin() -> Any:
        protocol = effect(at_most_once(run=wait), OWN)
        assert driver._go(protocol)
        finishing = driver.finish(protocol)
        task = spawn(coroutine_of(None))
        finishing.send(None)
        await task
        await asyncio.to_thread(until, lambda: bench.phases() == ["intent"])
        finishing.send(None)
        return finishing

    async def close() -> None:
        finishing.close()

    finishing = play(begin())
    if has_loop:
        play(close())
    else:
        finishing.close()

    assert bench.phases() == ["intent"]
    assert not bench.flights.has_open()
    assert isinstance(driver._error, GeneratorExit)


def test_run_in_a_thread_is_waited_for_though_its_task_is_cancelled(bench: Bench) -> None:
    """Again and again; its outcome is recorded."""

    async def main() -> None:
        passing = Pass()
        owner = spawn(bench.run(effect(at_most_once(run=passing.plain), OWN)))
        await passing.wait_until_entered()
        (task,) = bench.background.drivers
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert not task.done()
        passing.opened.set()
        assert await owner == Accepted("proof", "run")

    play(main())


def test_awaitable_of_a_thread_whose_task_is_cancelled_is_cut_off(bench: Bench) -> None:
    """It is awaited by the task that was cancelled."""
    seen: list[Any] = []

    async def main() -> None:
        passing = Pass()

        async def rest() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cut off")
                raise

        def run() -> Any:
            passing.plain()
            return rest()

        owner = spawn(bench.run(effect(at_most_once(run=run), OWN)))
        await passing.wait_until_entered()
        (task,) = bench.background.drivers
        task.cancel()
        await asyncio.sleep(0)
        passing.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await owner

    play(main())

    assert seen == ["cut off"]
    assert bench.phases() == ["intent", "released"]


# Asking the recipient


@pytest.mark.parametrize("is_coroutine", [True, False])
def test_reconcile_is_told_about_what_and_until_when(bench: Bench, *, is_coroutine: bool) -> None:
    """A plain one and a coroutine function."""
    seen: list[Any] = []

    def plain(signal: Any) -> str:
        seen.append(signal)
        assert not signal.cancelled
        return "found"

    async def coroutine(signal: Any) -> str:
        return plain(signal)

    ask = requests.Ask(coroutine if is_coroutine else plain, ("k", 1), 3, 17, PATIENCE)
    assert play(bench.ask(ask)) == ["found"]
    (signal,) = seen
    assert isinstance(signal, AsyncSignal)
    assert (signal.key, signal.attempt, signal.first_at, signal.cancelled) == (("k", 1), 3, 17, True)


def test_reconcile_that_overruns_is_told_and_then_stopped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its late answer is ignored; one that does not stop by itself is cancelled after the grace."""
    monkeypatch.setattr(tasks, "RECONCILE_GRACE_SECONDS", 0.01)
    seen: list[Any] = []

    async def minds(signal: AsyncSignal) -> str:
        seen.append(await signal.wait(PATIENCE))
        return "late"

    async def sleeps(_: AsyncSignal) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("stopped")
            raise

    async def main() -> None:
        for reconcile in (minds, sleeps):
            with pytest.raises(DeadlineError):
                await bench.ask(requests.Ask(reconcile, "k", 1, 0, 0.001))
        await bench.settle()

    play(main())

    assert seen == [True, "stopped"]


def test_plain_reconcile_that_overruns_is_told(bench: Bench) -> None:
    """Its thread cannot be stopped, and its late answer is ignored."""
    late = threading.Event()

    def reconcile(signal: Signal) -> str:
        assert signal.wait(PATIENCE)
        late.set()
        return "late"

    async def main() -> None:
        with pytest.raises(DeadlineError):
            await bench.ask(requests.Ask(reconcile, "k", 1, 0, 0.001))
        await bench.settle()

    play(main())

    assert late.is_set()


def test_cancelled_reconcile_records_nothing(bench: Bench) -> None:
    """It is stopped, and told."""
    bench.store.memory.put_effect("k", Phase.INTENT)
    seen: list[Any] = []

    async def reconcile(signal: AsyncSignal) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(signal.cancelled)

    async def main() -> None:
        owner = spawn(bench.run(effect(at_most_once(run=unused, reconcile=reconcile), OWN)))
        await asyncio.to_thread(until, lambda: bench.background.stragglers)
        await asyncio.sleep(0)
        (task,) = bench.background.drivers
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner
        await bench.settle()

    play(main())

    assert seen == [True]
    assert bench.phases() == ["intent"]


def test_reconcile_that_ends_as_cancelled_itself_records_nothing(bench: Bench) -> None:
    """Something that it waited for was cancelled; so is the caller's answer."""
    bench.store.memory.put_effect("k", Phase.INTENT)

    async def reconcile(_: AsyncSignal) -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await bench.run(effect(at_most_once(run=unused, reconcile=reconcile), OWN))

    play(main())

    assert bench.phases() == ["intent"]


def test_reconcile_that_is_cancelled_before_its_first_step_is_never_begun(bench: Bench) -> None:
    """No coroutine is left behind that nobody awaits."""
    bench.store.memory.put_effect("k", Phase.INTENT)

    async def main() -> None:
        owner = spawn(bench.run(effect(at_most_once(run=unused, reconcile=coroutine_of), OWN)))
        while not bench.background.stragglers:  # noqa: ASYNC110 - its first step must not come before
            await asyncio.sleep(0)
        for task in bench.background.stragglers:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner

    play(main())


# Progress


def test_progress_is_told_with_cursor_and_head(bench: Bench) -> None:
    """Where it is time to."""
    seen: list[Any] = []

    def tell(*told: Any) -> None:
        seen.append(told)

    play(bench.ask(*(requests.Progress(tell, n, is_last=n == 3) for n in range(4))))

    assert seen == [(Cursor(0), Cursor(0)), (Cursor(3), Cursor(0))]


# What acts in the background


def test_what_can_be_stopped_is_cancelled(bench: Bench) -> None:
    """A run in a thread cannot; given up, it is no longer waited for."""

    async def main() -> None:
        plain, coroutine = Pass(), Pass()
        stays = spawn(bench.run(effect(at_most_once("stays", run=plain.plain), OWN)))
        await plain.wait_until_entered()
        assert not bench.background.cancel_coroutines()
        goes = spawn(bench.run(effect(at_most_once("goes", run=coroutine.coroutine), OWN)))
        await coroutine.wait_until_entered()

        assert bench.background.cancel_coroutines()
        with pytest.raises(asyncio.CancelledError):
            await goes
        assert bench.phases("goes") == ["intent", "released"]
        assert not stays.done()
        (call,) = bench.background.give_up()
        with pytest.raises(EffectUnresolvedError):
            await stays
        assert not call.is_done
        plain.opened.set()
        coroutine.opened.set()

    play(main())


def test_answer_that_nobody_waits_for_is_given_up(bench: Bench) -> None:
    """The straggler is cancelled."""

    async def main() -> None:
        async def reconcile(_: AsyncSignal) -> None:
            await asyncio.Event().wait()

        with pytest.raises(DeadlineError):
            await bench.ask(requests.Ask(reconcile, "k", 1, 0, 0.001))
        assert bench.background.stragglers
        bench.background.give_up()
        await bench.settle()

    play(main())


def test_task_of_a_closed_loop_is_left_alone() -> None:
    """It runs no more."""
    background = Background()

    async def leave() -> None:
        background.stragglers.add(spawn(coroutine_of(None)))

    play(leave())
    background.give_up()


# Waiting


def test_waiter_may_be_released_twice_and_after_its_loop() -> None:
    """From any thread."""

    async def main() -> LoopWaiter:
        waiter = LoopWaiter()
        await asyncio.to_thread(waiter.release)
        waiter.release()
        await waiter.future
        await asyncio.sleep(0)
        return waiter

    play(main()).release()


def test_call_in_a_thread_can_be_waited_for_again() -> None:
    """After a wait that was cancelled."""

    async def main() -> None:
        passing = Pass("value")
        call = ThreadCall(passing.plain)
        first = spawn(call.wait())
        await passing.wait_until_entered()
        await cancelled(first)
        passing.opened.set()
        await call.wait()
        assert call.outcome() == "value"
        assert await in_thread(lambda: "other") == "other"
        with pytest.raises(Boom):
            await in_thread(raising(Boom()))

    play(main())


def test_current_task_is_none_without_a_loop() -> None:
    """As where a coroutine is closed after its loop."""
    assert calls._current_task() is None


def test_unresolved_effect_is_the_callers_to_know(bench: Bench) -> None:
    """What a run raised is the cause, on a loop too."""
    error = Boom("500")

    async def run() -> None:
        raise error

    with pytest.raises(EffectUnresolvedError) as caught:
        play(bench.run(effect(at_most_once(run=run), OWN)))

    assert caught.value.__cause__ is error
    assert bench.phases() == ["intent", "released"]
