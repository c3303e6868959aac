"""What a cancellation ends, and what it does not."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import journal
from journal import (
    Accepted,
    AsyncJournal,
    Committed,
    EffectInFlightError,
    EffectUnresolvedError,
    Intent,
    JournalClosedError,
    Uncertain,
)

from .stepping import Door, play
from .support import Boom, Call, Clock, FileRecipient, Peer, unused

each_style = pytest.mark.parametrize("style", ["plain", "coroutine", "awaitable"])

Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


def spawn(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task of its own."""
    return asyncio.get_running_loop().create_task(coroutine)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancels a task, which must end by it."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def phases(a: AsyncJournal, key: Any = "k") -> list[str]:
    """The phases of a key's events."""
    return [event.phase for event in await a.history(key)]


# The owner and those who joined


@each_style
def test_run_of_a_cancelled_owner_goes_on(path: Path, style: str) -> None:
    """The owner hears of it at once; who calls again shares the run, and gets its outcome."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            door = Door(style)
            owner = spawn(a.effect("k", run=door.run, reconcile=unused()))
            await door.wait_until_entered()
            await cancelled(owner)
            again = spawn(a.effect("k", run=unused(), reconcile=unused()))
            await asyncio.sleep(0)
            door.open()

            assert await again == Accepted("proof", "run")
            assert (door.count, door.cancelled_count) == (1, 0)
            assert await phases(a) == ["intent", "accepted"]

    play(main())


@each_style
def test_close_waits_for_the_run_of_a_cancelled_owner(path: Path, style: str) -> None:
    """Its outcome is recorded before the files are closed."""

    async def main() -> None:
        a = await journal.open_async(path)
        door = Door(style)
        owner = spawn(a.effect("k", run=door.run, reconcile=unused()))
        await door.wait_until_entered()
        await cancelled(owner)
        closing = spawn(a.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        door.open()
        await closing
        async with journal.open_async(path) as again:
            assert await again.effect("k", run=unused(), reconcile=unused()) == Accepted("proof", "run")

    play(main())


@each_style
def test_cancelled_joiner_ends_only_its_own_wait(path: Path, style: str) -> None:
    """The run and the others that joined go on."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            door = Door(style)
            owner, gone, joiner = (spawn(a.run_effect("k", door.run)) for _ in range(3))
            await door.wait_until_entered()
            await cancelled(gone)
            door.open()

            assert (await owner, await joiner) == ("proof", "proof")
            assert (door.count, door.cancelled_count) == (1, 0)

    play(main())


@each_style
def test_thread_joins_the_run_of_a_task_that_is_cancelled(path: Path, style: str) -> None:
    """And gets its outcome."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            door = Door(style)
            owner = spawn(a.effect("k", run=door.run, reconcile=unused()))
            await door.wait_until_entered()
            joiner = Call(lambda: a.sync.effect("k", run=unused(), reconcile=unused()))
            await asyncio.to_thread(joiner.wait_until_it_waits)
            await cancelled(owner)
            assert not joiner.is_done
            door.open()

            assert await asyncio.to_thread(joiner.result) == Accepted("proof", "run")

    play(main())


def test_task_joins_the_run_of_a_thread(path: Path) -> None:
    """A task that is cancelled ends its own wait, another one has the outcome."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            door = Door("plain")
            owner = Call(lambda: a.sync.effect("k", run=door.run, reconcile=unused()))
            await door.wait_until_entered()
            gone, joiner = (spawn(a.effect("k", run=unused(), reconcile=unused())) for _ in range(2))
            await asyncio.sleep(0)
            await cancelled(gone)
            door.open()

            assert await joiner == Accepted("proof", "run")
            assert owner.result() == Accepted("proof", "run")

    play(main())


def test_run_that_is_cancelled_itself_leaves_the_intent(path: Path) -> None:
    """The owner has the `CancelledError`, those who joined `EffectUnresolvedError`, and nobody runs a second time."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            door = Door(answer=asyncio.CancelledError())
            owner = spawn(a.effect("k", run=door.run, reconcile=unused()))
            await door.wait_until_entered()
            joiner = spawn(a.effect("k", run=unused(), reconcile=unused()))
            thread = Call(lambda: a.sync.effect("k", run=unused(), reconcile=unused()))
            await asyncio.to_thread(thread.wait_until_it_waits)
            door.open()

            with pytest.raises(asyncio.CancelledError):
                await owner
            for error in (
                (await asyncio.gather(joiner, return_exceptions=True))[0],
                await asyncio.to_thread(thread.error),
            ):
                assert isinstance(error, EffectUnresolvedError)
                assert error.reason == "run-failed"
            assert await phases(a) == ["intent", "released"]

    play(main())


# Cancelled before it begins


def test_cancelled_caller_gets_a_settled_effect_without_suspending(path: Path) -> None:
    """Accepted, uncertain, and the result of a step: nobody is called, and the loop does not come round."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            await a.effect("k", run=lambda: "proof", reconcile=unused())
            await a.run_effect("r", lambda: "result")
            await a.step("s", lambda: "value")

            async def ask() -> list[Any]:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                given = [
                    await a.effect("k", run=unused(), reconcile=unused()),
                    await a.run_effect("r", unused()),
                    await a.step("s", unused()),
                ]
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.sleep(0)
                return given

            assert await spawn(ask()) == [Accepted("proof", "run"), "result", "value"]
            by_hand = a.effect("k", run=unused(), reconcile=unused())
            with pytest.raises(StopIteration) as end:
                by_hand.send(None)
            assert end.value.value == Accepted("proof", "run")

    play(main())


CALLS: dict[str, Callable[[AsyncJournal], Coroutine[Any, Any, Any]]] = {
    "append": lambda a: a.append("s", 2, op_id="2"),
    "append_all": lambda a: a.append_all("s", [("2", 2)]),
    "effect": lambda a: a.effect("new", run=unused(), reconcile=unused()),
    "reconcile": lambda a: a.effect("open", run=unused(), reconcile=unused()),
    "run_effect": lambda a: a.run_effect("new", unused()),
    "step": lambda a: a.step("new", unused()),
    "resolve": lambda a: a.resolve("open", Uncertain(), expected_position=3, reason="r"),
    "clear_effect": lambda a: a.clear_effect("open", reason="r"),
    "prune_effects": lambda a: a.prune_effects(settled_before=2**63 - 1, keep=unused()),
    "recover": lambda a: a.recover(intents=lambda c: [Intent("new", run=unused())]),
    "save_cursor": lambda a: a.save_cursor("c", 1),
    "wait": lambda a: a.wait(3),
}


@pytest.mark.parametrize("name", CALLS)
def test_cancelled_caller_begins_nothing(path: Path, name: str) -> None:
    """It hears of it before anything is written, and nothing is left in flight."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            await a.append("s", 1, op_id="1")
            with pytest.raises(EffectUnresolvedError):
                await a.effect("open", run=failing, reconcile=unused())
            head = await a.head()
            assert head == 3

            async def call() -> None:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await CALLS[name](a)

            with pytest.raises(asyncio.CancelledError):
                await spawn(call())

            assert await a.head() == head
            assert await a.cursor("c") == 0
            assert not a._handle.flights.has_open()

    play(main())


async def failing() -> None:
    """A run of which nobody knows what it did."""
    raise Boom


def test_task_that_was_cancelled_once_may_clean_up(path: Path) -> None:
    """It caught its cancellation: what it then asks for is done."""

    async def main() -> None:
        async with journal.open_async(path) as a:

            async def work() -> Any:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    return await a.effect("k", run=lambda: "proof", reconcile=unused())

            task = spawn(work())
            await asyncio.sleep(0)
            task.cancel()

            assert await task == Accepted("proof", "run")

    play(main())


# Cancelled while it waits for others


def test_cancelled_wait_for_another_process_runs_nothing_later(
    path: Path, start_peer: Callable[..., Peer], recipient: FileRecipient
) -> None:
    """It waited for who had the effect; when that one dies, nobody is asked."""
    peer = start_peer("call", key="k", run=["running", "listen"])
    peer.hear("opened")
    peer.hear("running")

    async def main() -> None:
        async with journal.open_async(path) as a:
            waiting = spawn(a.effect("k", run=unused(), reconcile=unused()))
            joiner = spawn(a.effect("k", run=unused(), reconcile=unused()))
            await asyncio.sleep(0.02)
            await cancelled(joiner)
            await cancelled(waiting)
            peer.kill()
            await asyncio.sleep(0.05)

            assert not a._background.drivers
            assert await phases(a) == ["intent"]
            assert await a.effect("k", run=unused(), reconcile=lambda _: "found") == Accepted("found", "reconcile")

    play(main())


def test_timeout_ends_the_wait_and_not_the_run(path: Path) -> None:
    """As `asyncio.timeout` does with whatever it is around."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            door = Door()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await a.effect("k", run=door.run, reconcile=unused())
            door.open()

            assert await a.effect("k", run=unused(), reconcile=unused()) == Accepted("proof", "run")
            assert door.cancelled_count == 0

    play(main())


def test_failing_sibling_ends_the_wait_and_not_the_run(path: Path) -> None:
    """As in a `TaskGroup` whose other task raises."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            door = Door()

            async def fail() -> None:
                await door.wait_until_entered()
                raise Boom

            with pytest.raises(ExceptionGroup) as caught:
                async with asyncio.TaskGroup() as group:
                    group.create_task(a.effect("k", run=door.run, reconcile=unused()))
                    group.create_task(fail())
            door.open()

            assert caught.group_contains(Boom)
            assert await a.effect("k", run=unused(), reconcile=unused()) == Accepted("proof", "run")

    play(main())


@each_style
@pytest.mark.parametrize("is_listed", [True, False])
def test_cancelled_walk_starts_nothing_more(path: Path, style: str, *, is_listed: bool) -> None:
    """The effect that is running is recorded, those after it have no record."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            await a.append("s", 1, op_id="1")
            await a.append("s", 2, op_id="2")
            door = Door(style)

            def intents(c: Committed) -> Any:
                made = [Intent(("k", c.op_id, n), run=door.run if n == 0 else unused()) for n in range(3)]
                return made if is_listed else iter(made)

            walk = spawn(a.recover(intents=intents))
            await door.wait_until_entered()
            await cancelled(walk)
            door.open()
            await asyncio.wait(a._background.drivers)

            assert [(r.key, r.phase) async for r in a.effects()] == [(("k", "1", 0), "accepted")]
            assert not a._handle.flights.has_open()

    play(main())


def test_walk_that_is_cancelled_while_it_is_told_what_to_do_starts_nothing(path: Path) -> None:
    """Its `intents` is a coroutine function that comes to its end."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            await a.append("s", 1, op_id="1")
            await a.append("s", 2, op_id="2")
            door = Door()

            async def intents(c: Committed) -> Any:
                if c.op_id == "2":
                    await door.run()
                return iter([Intent(c.op_id, run=(lambda: "result") if c.op_id == "1" else unused())])

            walk = spawn(a.recover(intents=intents))
            await door.wait_until_entered()
            await cancelled(walk)
            door.open()
            await asyncio.wait(a._background.drivers)

            assert [r.key async for r in a.effects()] == ["1"]
            assert not a._handle.flights.has_open()

    play(main())


# The end of a loop


def test_end_of_the_loop_cuts_off_a_coroutine(path: Path) -> None:
    """The intent stands, given up on record: the next call asks, in the same process too."""
    door = Door()

    async def main() -> AsyncJournal:
        a = await journal.open_async(path)
        owner = spawn(a.effect("k", run=door.run, reconcile=unused()))
        await door.wait_until_entered()
        await cancelled(owner)
        return a

    a: AsyncJournal = play(main())

    async def after() -> None:
        assert door.cancelled_count == 1
        assert await phases(a) == ["intent", "released"]
        assert await a.effect("k", run=unused(), reconcile=lambda _: "found") == Accepted("found", "reconcile")
        await a.close()

    play(after())


def test_end_of_the_loop_waits_for_a_plain_run(path: Path) -> None:
    """It cannot be stopped: it comes to its end, and its outcome is recorded."""
    door = Door("plain")

    async def main() -> AsyncJournal:
        a = await journal.open_async(path)
        spawn(a.effect("k", run=door.run, reconcile=unused()))
        await door.wait_until_entered()
        asyncio.get_running_loop().call_later(0.02, door.open)
        return a

    a: AsyncJournal = play(main())

    assert a.sync.effect("k", run=unused(), reconcile=unused()) == Accepted("proof", "run")
    a.sync.close()


def test_one_handle_is_used_by_one_loop_after_the_other(path: Path) -> None:
    """Without being closed in between; nothing is bound to the first."""

    async def use(a: AsyncJournal, n: int) -> Any:
        await a.append("s", n, op_id=str(n))
        await a.effect(n_of(n), run=door_of(n), reconcile=unused())
        return [c.operation async for c in a.read()]

    def n_of(n: int) -> Any:
        return ("k", n)

    def door_of(n: int) -> Callable[[], Any]:
        async def run() -> int:
            await asyncio.sleep(0)
            return n

        return run

    async def begin() -> AsyncJournal:
        return await journal.open_async(path)

    a: AsyncJournal = play(begin())
    assert play(use(a, 1)) == [1]
    assert play(use(a, 2)) == [1, 2]
    play(a.close())
    with pytest.raises(JournalClosedError):
        play(use(a, 3))


def test_one_path_is_opened_by_one_loop_after_the_other(path: Path) -> None:
    """`asyncio.run` twice."""

    async def main(n: int) -> int:
        async with journal.open_async(path) as a:
            await a.append("s", n, op_id=str(n))
            return await a.head()

    assert [play(main(n)) for n in (1, 2)] == [1, 2]


# What is no exception


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["run", "reconcile", "intents", "body"])
@each_style
def test_what_ends_the_process_comes_out_as_itself(
    path: Path, error: type[BaseException], where: str, style: str
) -> None:
    """Out of the `await`, and out of `asyncio.run`; the intent stands."""
    raised = error("now")
    seen: list[BaseException] = []
    door = Door(style, raised)
    door.open()

    async def main() -> None:
        a = await journal.open_async(path)
        handles.append(a)
        await a.append("s", 1, op_id="1")
        if where == "reconcile":
            with pytest.raises(EffectUnresolvedError):
                await a.effect("k", run=failing, reconcile=unused())
        try:
            if where == "run":
                await a.effect("k", run=door.run, reconcile=unused())
            elif where == "reconcile":
                await a.effect("k", run=unused(), reconcile=door.run)
            elif where == "body":
                await a.step("k", door.run)
            else:
                await a.recover(intents=door.run)
        except BaseException as caught:
            seen.append(caught)
            raise

    handles: list[AsyncJournal] = []
    with pytest.raises(error) as out:
        play(main())

    assert seen == [raised]
    assert out.value is raised
    j = handles[0].sync
    expected = {"run": ["intent", "released"], "reconcile": ["intent", "released"], "intents": [], "body": []}
    assert [event.phase for event in j.history("k")] == expected[where]
    j.close()


@each_style
def test_what_ends_the_process_is_not_lost_with_the_caller(path: Path, style: str) -> None:
    """The run of a cancelled owner raises `SystemExit`: `asyncio.run` does."""
    raised = SystemExit(3)
    handles: list[AsyncJournal] = []

    async def main() -> None:
        a = await journal.open_async(path)
        handles.append(a)
        door = Door(style, raised)
        owner = spawn(a.effect("k", run=door.run, reconcile=unused()))
        await door.wait_until_entered()
        await cancelled(owner)
        door.open()
        await asyncio.Event().wait()

    with pytest.raises(SystemExit) as out:
        play(main())

    assert out.value is raised
    handles[0].sync.close()


@each_style
@pytest.mark.parametrize("guarantee", ["effect", "run_effect"])
def test_generator_exit_of_a_run_is_the_users_own(path: Path, style: str, guarantee: str) -> None:
    """It is not taken for the end of the protocol: the intent is given up on record."""
    raised = GeneratorExit("odd")

    async def main() -> None:
        async with journal.open_async(path) as a:
            door = Door(style, raised)
            door.open()
            with pytest.raises(GeneratorExit) as caught:
                if guarantee == "effect":
                    await a.effect("k", run=door.run, reconcile=unused())
                else:
                    await a.run_effect("k", door.run)

            assert caught.value is raised
            assert await phases(a) == ["intent", "released"]

    play(main())


# Calls from inside


@each_style
def test_call_from_inside_its_own_run_is_refused(path: Path, style: str) -> None:
    """From tasks that it starts, too."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            errors: list[Any] = []

            async def call() -> None:
                try:
                    await a.effect("k", run=unused(), reconcile=unused())
                except EffectInFlightError as error:
                    errors.append(error)

            async def coroutine() -> str:
                await call()
                await spawn(call())
                return "proof"

            def plain() -> str:
                with pytest.raises(EffectInFlightError) as caught:
                    a.sync.effect("k", run=unused(), reconcile=unused())
                errors.append(caught.value)
                return "proof"

            run = {"plain": plain, "coroutine": coroutine, "awaitable": lambda: coroutine()}[style]  # noqa: PLW0108 - a plain function is the point
            assert await a.effect("k", run=run, reconcile=unused()) == Accepted("proof", "run")
            assert errors
            assert {type(error) for error in errors} == {EffectInFlightError}

    play(main())


def test_runs_that_would_wait_for_each_other_are_refused(path: Path) -> None:
    """One of the two has the error, and both come to an end."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            both = asyncio.Barrier(2)

            def run(other: str) -> Callable[[], Any]:
                async def call() -> str:
                    await both.wait()
                    try:
                        await a.effect(other, run=unused(), reconcile=unused())
                    except EffectInFlightError:
                        return "refused"
                    return "waited"

                return call

            async with asyncio.timeout(30):
                one, two = await asyncio.gather(
                    a.effect("one", run=run("two"), reconcile=unused()),
                    a.effect("two", run=run("one"), reconcile=unused()),
                )

            assert sorted([one, two], key=repr) == [Accepted("refused", "run"), Accepted("waited", "run")]

    play(main())


def test_synchronous_journal_refuses_the_thread_of_the_loop(path: Path) -> None:
    """Every call of it, with nothing done; from another thread it is the same journal."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            j = a.sync
            calls: list[Callable[[], Any]] = [
                lambda: j.append("s", 1, op_id="1"),
                lambda: j.append_all("s", []),
                j.read,
                j.streams,
                j.head,
                lambda: j.wait(0),
                j.stats,
                j.verify,
                lambda: j.effect("k", run=unused(), reconcile=unused()),
                lambda: j.run_effect("k", unused()),
                lambda: j.step("k", unused()),
                lambda: j.record("k"),
                lambda: j.history("k"),
                j.unfinished,
                j.effects,
                lambda: j.clear_effect("k", reason="r"),
                lambda: j.resolve("k", Uncertain(), expected_position=1, reason="r"),
                lambda: j.recover(intents=unused()),
                lambda: j.save_cursor("c", 0),
                lambda: j.cursor("c"),
                j.close,
            ]
            for call in calls:
                with pytest.raises(RuntimeError, match="event loop"):
                    call()
            assert await a.head() == 0
            assert (await asyncio.to_thread(lambda: j.append("s", 1, op_id="1"))).position == 1
            assert isinstance(j, journal.Journal)
            assert j.journal_id == a.journal_id

    play(main())


# The surroundings of a call


def test_functions_see_the_context_of_the_caller(path: Path) -> None:
    """Its context variables, in a thread too."""
    import contextvars

    colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")
    seen: dict[str, str] = {}

    def look(name: str) -> Callable[..., Any]:
        def plain(*_: Any) -> Any:
            seen[name] = colour.get()
            return [Intent("i", run=lambda: "result")] if name.startswith("intents") else name

        async def coroutine(*_: Any) -> Any:
            return plain()

        return coroutine if name.endswith("coroutine") else plain

    async def main() -> None:
        async with journal.open_async(path) as a:
            await a.append("s", 1, op_id="1")
            colour.set("red")
            for kind in ("plain", "coroutine"):
                await a.effect(kind, run=look(f"run {kind}"), reconcile=unused())
                with pytest.raises(EffectUnresolvedError):
                    await a.effect(f"open {kind}", run=failing, reconcile=unused())
                await a.effect(f"open {kind}", run=unused(), reconcile=look(f"reconcile {kind}"))
                await a.step(kind, look(f"body {kind}"))
                await a.recover(intents=look(f"intents {kind}"))

    play(main())

    assert len(seen) == 8
    assert set(seen.values()) == {"red"}


class RaisingLogger:
    """A logger that always raises."""

    def debug(self, event: str, **_: Any) -> None:
        raise Boom

    info = warning = error = debug


def test_logger_that_raises_breaks_nothing(path: Path) -> None:
    """As on the other face."""

    async def main() -> None:
        async with journal.open_async(path, logger=RaisingLogger(), clock=Clock()) as a:
            door = Door()
            owner = spawn(a.effect("k", run=door.run, reconcile=unused()))
            await door.wait_until_entered()
            await cancelled(owner)
            door.open()
            assert await a.effect("k", run=unused(), reconcile=unused()) == Accepted("proof", "run")
            assert (await a.append("s", 1, op_id="1")).position == 3

    play(main())


def test_sync_call_in_a_run_of_a_thread_is_not_one_on_the_loop(path: Path) -> None:
    """A plain run may use `sync`, for another key."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            threads: list[int] = []

            def run() -> Any:
                threads.append(threading.get_ident())
                return a.sync.run_effect("other", lambda: "inner")

            assert await a.effect("k", run=run, reconcile=unused()) == Accepted("inner", "run")
            assert threads != [threading.get_ident()]

    play(main())
