"""Whoever is cancelled, at whatever step: what is on record is what the recipient saw."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import journal
from journal import Accepted, AsyncJournal, Committed, EffectUnresolvedError, Intent, NotPerformed, Uncertain

from .stepping import Cancelling, run, settle, silence
from .support import Boom, Clock, unused

pytestmark = pytest.mark.slow

STEPS_MAX = 60
"""No call here has so many: a search that goes on for ever is a failure."""


class Books:
    """A recipient that keeps what was delivered to it; it is told and asked by coroutines or plain functions."""

    def __init__(self, style: str) -> None:
        self._style = style
        self.delivered: list[Any] = []
        self.returned: list[Any] = []
        self.asked: list[Any] = []

    def run(self, key: Any) -> Callable[[], Any]:
        """A run that delivers, and tells where it returned."""

        def plain() -> str:
            self.delivered.append(key)
            self.returned.append(key)
            return f"proof of {key}"

        async def coroutine() -> str:
            await asyncio.sleep(0)
            self.delivered.append(key)
            await asyncio.sleep(0)
            self.returned.append(key)
            return f"proof of {key}"

        return self._styled(plain, coroutine)

    def find(self, key: Any) -> Callable[[Any], Any]:
        """A reconcile that proves absence."""

        def plain(_: Any) -> str:
            self.asked.append(key)
            if key not in self.delivered:
                raise NotPerformed("no record")
            return f"proof of {key}"

        async def coroutine(signal: Any) -> str:
            await asyncio.sleep(0)
            return plain(signal)

        return self._styled(plain, coroutine)

    def _styled(self, plain: Callable[..., Any], coroutine: Callable[..., Any]) -> Callable[..., Any]:
        def awaitable(*given: Any) -> Awaitable[Any]:
            return coroutine(*given)  # type: ignore[no-any-return]  # by its name it is one

        return {"plain": plain, "coroutine": coroutine, "awaitable": awaitable}[self._style]


Act = Callable[[AsyncJournal, str], Awaitable[Any]]


class Scene:
    """One life of the service after the other: each looks at what the one before left, and is cancelled a step later.

    The name that an act is given is another one in each life.
    """

    def __init__(self, path: Path, who: str, *, is_late: bool) -> None:
        self._path = path
        self._who = who
        self._is_late = is_late
        self.outcome: Any = None
        """What the last act gave or raised."""

    def each_step(self, act: Act, look: Act, before: Act | None = None) -> None:
        """Do it, cancelled at each of its steps, on the loop of an `asyncio.run` of its own."""
        step = 0
        has_come = True
        while has_come:
            cancelling = Cancelling(step, self._who, is_late=self._is_late)
            with silence() as told:
                run(self._live(step, cancelling, act, look, before), told)
            has_come = cancelling.has_come
            step += 1
            assert step < STEPS_MAX
        with silence() as told:
            run(self._live(step, None, act, look, before), told)

    async def _live(self, step: int, cancelling: Cancelling | None, act: Act, look: Act, before: Act | None) -> None:
        async with journal.open_async(self._path, clock=Clock()) as a:
            if step:
                try:
                    await look(a, f"n{step - 1}")
                except AssertionError as error:
                    error.add_note(f"after step {step - 1}, where it came to {self.outcome!r}")
                    raise
            if cancelling is None:
                assert [finding async for finding in a.verify()] == []
                return
            if before is not None:
                await before(a, f"n{step}")
            cancelling.install()

            async def called() -> Any:
                return await act(a, f"n{step}")

            task = asyncio.get_running_loop().create_task(called())
            await asyncio.wait({task})
            await settle()
            self.outcome = "cancelled" if task.cancelled() else task.exception() or task.result()
            assert cancelling.has_come or not task.cancelled()


WHEN = [(who, is_late) for who in ("caller", "background", "all") for is_late in (False, True)]


@pytest.fixture(params=WHEN, ids=lambda when: f"{when[0]}-{'late' if when[1] else 'early'}")
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    """Who is cancelled: the caller, what acts in the background, or all, as at the end of a loop."""
    return Scene(tmp_path / "journal", request.param[0], is_late=request.param[1])


@pytest.fixture(params=["plain", "coroutine", "awaitable"])
def books(request: pytest.FixtureRequest) -> Books:
    """A recipient, and by what it is reached."""
    return Books(request.param)


async def failing() -> None:
    """A run of which nobody knows what it did."""
    raise Boom


async def leave_open(a: AsyncJournal, name: str) -> None:
    """Leaves an intent without outcome."""
    with pytest.raises(EffectUnresolvedError):
        await a.effect(name, run=failing, reconcile=unused())


def test_effect_that_is_cancelled_says_what_the_recipient_saw(scene: Scene, books: Books) -> None:
    """Accepted where it returned; else the recipient is asked, and it is delivered once."""

    async def look(a: AsyncJournal, name: str) -> None:
        record = await a.record(name)
        is_accepted = record is not None and record.phase == "accepted"
        assert is_accepted == (name in books.returned)
        assert is_accepted or scene.outcome == "cancelled"
        again = await a.effect(name, run=books.run(name), reconcile=books.find(name))
        assert isinstance(again, Accepted)
        assert again.proof == f"proof of {name}"
        assert books.delivered.count(name) == 1

    scene.each_step(lambda a, name: a.effect(name, run=books.run(name), reconcile=unused()), look)


@pytest.mark.parametrize("has_arrived", [True, False])
def test_reconcile_that_is_cancelled_records_nothing(scene: Scene, books: Books, *, has_arrived: bool) -> None:
    """The next call asks again; what it proved absent runs once."""

    async def before(a: AsyncJournal, name: str) -> None:
        await leave_open(a, name)
        books.delivered.extend([name] * has_arrived)

    async def look(a: AsyncJournal, name: str) -> None:
        record = await a.record(name)
        assert record is not None
        if record.phase == "accepted":
            assert name in (books.asked if has_arrived else books.returned)
        else:
            assert record.phase in ("intent", "failed")
            assert name not in books.returned
            assert scene.outcome == "cancelled"
        again = await a.effect(name, run=books.run(name), reconcile=books.find(name))
        assert isinstance(again, Accepted)
        assert books.delivered.count(name) == 1

    scene.each_step(
        lambda a, name: a.effect(name, run=books.run(name), reconcile=books.find(name)), look, before=before
    )


def test_run_effect_that_is_cancelled_is_run_again(scene: Scene, books: Books) -> None:
    """Accepted where it returned, and no more deliveries than attempts."""

    async def look(a: AsyncJournal, name: str) -> None:
        record = await a.record(name)
        is_accepted = record is not None and record.phase == "accepted"
        assert is_accepted == (name in books.returned)
        assert is_accepted or scene.outcome == "cancelled"
        assert await a.run_effect(name, books.run(name)) == f"proof of {name}"
        record = await a.record(name)
        assert record is not None
        assert books.delivered.count(name) <= record.attempts
        assert books.returned.count(name) == 1

    scene.each_step(lambda a, name: a.run_effect(name, books.run(name)), look)


def test_step_that_is_cancelled_is_recorded_where_it_returned(scene: Scene, books: Books) -> None:
    """Or computed by the next call."""

    async def look(a: AsyncJournal, name: str) -> None:
        assert name in books.returned or scene.outcome == "cancelled"
        assert await a.step(name, books.run(name)) == f"proof of {name}"
        assert books.returned.count(name) == 1

    scene.each_step(lambda a, name: a.step(name, books.run(name)), look)


def test_append_that_is_cancelled_is_there_or_not(scene: Scene) -> None:
    """A resend is answered rightly."""

    async def look(a: AsyncJournal, name: str) -> None:
        found = [c async for c in a.read(name)]
        assert found or scene.outcome == "cancelled"
        again = await a.append(name, {"n": 1}, op_id="one")
        assert isinstance(again, Committed)
        assert (again.sequence, again.repeated) == (1, bool(found))

    scene.each_step(lambda a, name: a.append(name, {"n": 1}, op_id="one"), look)


def test_persons_decision_that_is_cancelled_is_there_or_not(scene: Scene) -> None:
    """Each whole, and in their order."""

    async def decide(a: AsyncJournal, name: str) -> None:
        record = await a.record(name)
        assert record is not None
        await a.resolve(name, Uncertain(), expected_position=record.position, reason="asked")
        await a.clear_effect(name, reason="anew")

    async def look(a: AsyncJournal, name: str) -> None:
        all_of_them = ["intent", "released", "uncertain", "cleared"]
        phases = [event.phase for event in await a.history(name)]
        assert phases == all_of_them[: len(phases)]
        assert phases == all_of_them or (len(phases) >= 2 and scene.outcome == "cancelled")

    scene.each_step(decide, look, before=leave_open)


@pytest.mark.parametrize("is_listed", [True, False])
def test_recover_that_is_cancelled_says_what_the_recipients_saw(scene: Scene, books: Books, *, is_listed: bool) -> None:
    """Every effect is accepted where it returned, none is in flight, and the next walk settles the rest."""

    async def append(a: AsyncJournal, name: str) -> None:
        await a.append_all(name, [("one", 1), ("two", 2)])

    def intents(c: Committed) -> Any:
        ask, again = c.effect_key("ask"), c.effect_key("again")
        made = [Intent(ask, run=books.run(ask), reconcile=books.find(ask)), Intent(again, run=books.run(again))]
        return made if is_listed else iter(made)

    async def look(a: AsyncJournal, name: str) -> None:
        records = [record async for record in a.effects(prefix=(name,))]
        for record in records:
            assert (record.phase == "accepted") == (record.key in books.returned), record
            assert record.phase != "intent" or record.reason, record
        assert len(records) == 4 or scene.outcome == "cancelled"
        settled = await a.recover(intents=intents, stream=name)
        assert settled.stopped is None
        for c in [c async for c in a.read(name)]:
            assert books.delivered.count(c.effect_key("ask")) == 1
            assert books.returned.count(c.effect_key("again")) == 1

    scene.each_step(lambda a, name: a.recover(intents=intents, stream=name), look, before=append)


def test_compaction_and_reset_that_are_cancelled_have_happened_or_not(scene: Scene) -> None:
    """The floor and the epoch say which, what is read agrees, and the next compaction ends it."""

    async def append(a: AsyncJournal, name: str) -> None:
        await a.append_all(name, [(str(number), number) for number in range(1, 4)])

    async def shorten(a: AsyncJournal, name: str) -> None:
        await a.compact(name, await a.head() - 1)
        await a.reset(name)

    async def look(a: AsyncJournal, name: str) -> None:
        floor, epoch = await a.floor(name), await a.epoch(name)
        left = [c.operation async for c in a.read(name, after=floor)]
        assert left == ([] if epoch == 2 else [3] if floor else [1, 2, 3])
        assert epoch == 2 or scene.outcome == "cancelled"
        assert [finding async for finding in a.verify()] == []
        head = await a.head()
        assert await a.compact(name, head) == head
        assert [finding async for finding in a.verify()] == []

    scene.each_step(shorten, look, before=append)
