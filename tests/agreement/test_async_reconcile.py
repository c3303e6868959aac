"""Asking recipients on an event loop: signals, deadlines, and functions that are half a coroutine."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import journal
from journal import (
    Accepted,
    AsyncJournal,
    Committed,
    EffectFailedError,
    EffectUnresolvedError,
    Found,
    Intent,
    NotPerformed,
    Uncertain,
)

from .stepping import play
from .support import START, Boom, Clock, unused, wait_for


async def failing() -> None:
    """A run of which nobody knows what it did."""
    raise Boom


async def leave_open(a: AsyncJournal, key: Any = "k") -> None:
    """Leaves an intent without outcome."""
    with pytest.raises(EffectUnresolvedError):
        await a.effect(key, run=failing, reconcile=unused())


def styled(style: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as a plain one, a coroutine function, a plain one that gives an awaitable, or an object's method."""

    async def coroutine(*given: Any) -> Any:
        await asyncio.sleep(0)
        return function(*given)

    class Callee:
        async def __call__(self, *given: Any) -> Any:
            return await coroutine(*given)

    def awaitable(*given: Any) -> Any:
        return coroutine(*given)

    styles: dict[str, Callable[..., Any]] = {"plain": function, "coroutine": coroutine, "awaitable": awaitable}
    return Callee() if style == "object" else styles[style]


each_style = pytest.mark.parametrize("style", ["plain", "coroutine", "awaitable", "object"])


@each_style
@pytest.mark.parametrize(
    "answer", ["proof", None, Found(None), NotPerformed("no")], ids=["proof", "none", "found", "absent"]
)
def test_verdict_is_recorded(path: Path, style: str, answer: Any) -> None:
    """Whatever the reconcile is made of."""

    def reconcile(_: Any) -> Any:
        if isinstance(answer, NotPerformed):
            raise answer
        return answer

    async def main() -> None:
        async with journal.open_async(path) as a:
            await leave_open(a)
            outcome = await a.effect("k", run=styled(style, lambda: "anew"), reconcile=styled(style, reconcile))
            phases = [event.phase for event in await a.history("k")][2:]

            if answer is None:
                assert (outcome, phases) == (Uncertain(), ["uncertain"])
            elif isinstance(answer, NotPerformed):
                assert (outcome, phases) == (Accepted("anew", "run"), ["failed", "intent", "accepted"])
            else:
                assert (outcome, phases) == (
                    Accepted(None if isinstance(answer, Found) else answer, "reconcile"),
                    ["accepted"],
                )

    play(main())


@each_style
def test_signal_says_about_what_and_until_when(path: Path, style: str) -> None:
    """Key, attempt, time of the first intent, and the deadline in `time.monotonic()` seconds."""
    seen: list[Any] = []

    async def main() -> None:
        async with journal.open_async(path, clock=Clock()) as a:
            await leave_open(a, ("k", 1))
            before = time.monotonic()
            await a.effect(
                ("k", 1),
                run=unused(),
                reconcile=styled(style, seen.append),
                reconcile_timeout=50,
            )
            (signal,) = seen
            assert (signal.key, signal.attempt, signal.first_at) == (("k", 1), 1, START)
            assert before + 50 <= signal.deadline <= time.monotonic() + 50
            assert signal.cancelled is True

    play(main())


def test_coroutine_that_overruns_is_told(path: Path) -> None:
    """Its wait ends; a late answer is ignored, and the next call asks again."""
    late: list[Any] = []

    async def reconcile(signal: Any) -> str:
        assert not signal.cancelled
        assert await signal.wait(0.001) is False
        late.append(await signal.wait(60))
        return "late"

    async def main() -> None:
        async with journal.open_async(path) as a:
            await leave_open(a)
            with pytest.raises(EffectUnresolvedError) as caught:
                await a.effect("k", run=unused(), reconcile=reconcile, reconcile_timeout=0.05)
            assert caught.value.reason == "reconcile-timeout"
            while not late:  # noqa: ASYNC110 - it has no other way to tell
                await asyncio.sleep(0)
            assert late == [True]
            assert [event.phase for event in await a.history("k")] == ["intent", "released"]
            again = await a.effect("k", run=unused(), reconcile=lambda _: "in time")
            assert again == Accepted("in time", "reconcile")

    play(main())


@pytest.mark.parametrize("style", ["plain", "awaitable"])
def test_plain_reconcile_that_overruns_is_told(path: Path, style: str) -> None:
    """In its thread; its late answer is ignored."""
    told = threading.Event()

    def reconcile(signal: Any) -> Any:
        assert signal.wait(60)
        told.set()
        return "late"

    async def coroutine(signal: Any) -> Any:
        while not signal.cancelled:  # noqa: ASYNC110 - a plain function has a signal for threads
            await asyncio.sleep(0.001)
        told.set()
        return "late"

    function = reconcile if style == "plain" else lambda signal: coroutine(signal)  # noqa: PLW0108 - a plain function is the point

    async def main() -> None:
        async with journal.open_async(path) as a:
            await leave_open(a)
            with pytest.raises(EffectUnresolvedError) as caught:
                await a.effect("k", run=unused(), reconcile=function, reconcile_timeout=0.05)
            assert caught.value.reason == "reconcile-timeout"
            await asyncio.to_thread(wait_for, told)
            again = await a.effect("k", run=unused(), reconcile=lambda _: "in time")
            assert again == Accepted("in time", "reconcile")

    play(main())


def test_coroutine_that_minds_no_deadline_is_stopped(path: Path) -> None:
    """After a grace; the caller has heard at the deadline."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            await leave_open(a)
            stopped = asyncio.Event()

            async def reconcile(_: Any) -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    stopped.set()

            with pytest.raises(EffectUnresolvedError):
                await a.effect("k", run=unused(), reconcile=reconcile, reconcile_timeout=0.01)
            assert not stopped.is_set()
            await stopped.wait()

    play(main())


@each_style
def test_reconcile_that_raises_records_nothing(path: Path, style: str) -> None:
    """Could not ask is not "not there"."""
    error = Boom("503")

    def reconcile(_: Any) -> None:
        raise error

    async def main() -> None:
        async with journal.open_async(path) as a:
            await leave_open(a)
            with pytest.raises(EffectUnresolvedError) as caught:
                await a.effect("k", run=unused(), reconcile=styled(style, reconcile))
            assert caught.value.reason == "reconcile-failed"
            assert caught.value.__cause__ is error
            assert [event.phase for event in await a.history("k")] == ["intent", "released"]

    play(main())


@each_style
def test_reconcile_of_a_cancelled_caller_goes_on(path: Path, style: str) -> None:
    """Its verdict is recorded."""
    asked, go_on = threading.Event(), threading.Event()

    def reconcile(_: Any) -> str:
        return "found"

    def plain(signal: Any) -> str:
        asked.set()
        wait_for(go_on)
        return reconcile(signal)

    async def coroutine(signal: Any) -> str:
        return await asyncio.to_thread(plain, signal)

    def awaitable(signal: Any) -> Any:
        return coroutine(signal)

    function = {"plain": plain, "coroutine": coroutine, "awaitable": awaitable, "object": coroutine}[style]

    async def main() -> None:
        async with journal.open_async(path) as a:
            await leave_open(a)
            owner = asyncio.get_running_loop().create_task(a.effect("k", run=unused(), reconcile=function))
            await asyncio.to_thread(wait_for, asked)
            owner.cancel()
            with pytest.raises(asyncio.CancelledError):
                await owner
            go_on.set()
            again = await a.effect("k", run=unused(), reconcile=unused())
            assert again == Accepted("found", "reconcile")

    play(main())


@each_style
def test_every_function_of_a_user_may_be_of_any_style(path: Path, style: str) -> None:
    """`run`, `body`, `intents`, both policies, `retry_failed` and `progress`."""
    seen: set[str] = set()

    def note(name: str, answer: Any) -> Callable[..., Any]:
        def function(*_: Any) -> Any:
            seen.add(name)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return styled(style, function)

    def intents(c: Committed) -> Any:
        seen.add("intents")
        return [
            Intent((c.op_id, "new"), run=note("run", "proof"), reconcile=note("reconcile", None)),
            Intent("uncertain", run=unused(), reconcile=note("reconcile", None)),
        ]

    async def main() -> None:
        async with journal.open_async(path) as a:
            await a.append("s", 1, op_id="1")
            await leave_open(a, "uncertain")
            assert await a.step("step", note("body", "value")) == "value"
            with pytest.raises(EffectFailedError):
                await a.effect("failed", run=note("run", NotPerformed("no")), reconcile=unused())
            with pytest.raises(Boom):
                await a.run_effect("again", note("run", Boom()))
            with pytest.raises(EffectFailedError):
                await a.run_effect("again", unused(), retry_failed=note("retry_failed", answer=False))
            settled = await a.recover(
                intents=styled(style, intents),
                on_unresolved=note("on_unresolved", "retry"),
                on_uncertain=note("on_uncertain", "accept"),
                progress=note("progress", None),
            )
            assert (settled, settled.stopped, settled.ran, settled.uncertain) == (1, None, 1, 1)

    play(main())

    assert seen == {"run", "reconcile", "body", "intents", "on_unresolved", "on_uncertain", "retry_failed", "progress"}


def test_functions_of_the_synchronous_journal_are_no_coroutines(path: Path) -> None:
    """Of `sync` neither, where a loop would be at hand: nothing is written."""

    async def main() -> None:
        async with journal.open_async(path) as a:
            for call in (
                lambda: a.sync.effect("k", run=failing, reconcile=unused()),
                lambda: a.sync.effect("k", run=unused(), reconcile=failing),
                lambda: a.sync.run_effect("k", failing),
                lambda: a.sync.step("k", failing),
                lambda: a.sync.recover(intents=failing),  # type: ignore[arg-type]  # that is what is refused
            ):
                with pytest.raises(TypeError, match="coroutine function"):
                    await asyncio.to_thread(call)
            assert await a.head() == 0

    play(main())
