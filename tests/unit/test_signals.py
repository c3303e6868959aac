"""`journal/_drive/signals.py`: when a reconcile is to stop, in a thread and on a loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from journal._drive.signals import AsyncSignal, Signal
from tests.unit.support import PATIENCE, InThread


@pytest.mark.parametrize("make", [Signal, AsyncSignal])
def test_signal_says_about_what_and_until_when(make: Any) -> None:
    """The deadline is in `time.monotonic()` seconds."""
    before = time.monotonic()
    signal = make(("k", 1), 3, 17, 5.0)
    after = time.monotonic()

    assert (signal.key, signal.attempt, signal.first_at) == (("k", 1), 3, 17)
    assert before + 5.0 <= signal.deadline <= after + 5.0
    assert signal.cancelled is False


@pytest.mark.parametrize("seconds", [-1.0, 0, 0.001])
def test_thread_waits_no_longer_than_it_is_told(seconds: float) -> None:
    """And says that nobody cancelled."""
    assert Signal("k", 1, 0, 5.0).wait(seconds) is False


@pytest.mark.parametrize("seconds", [PATIENCE, 1e12, float("inf")])
def test_wait_of_a_thread_ends_when_it_is_cancelled(seconds: float) -> None:
    """However long it was to be."""
    signal = Signal("k", 1, 0, 5.0)
    waiting = InThread(lambda: signal.wait(seconds))

    signal.cancel()

    assert waiting.result() is True
    assert signal.wait(0) is True
    assert signal.cancelled is True


@pytest.mark.parametrize("seconds", [-1.0, 0, 0.001])
def test_task_waits_no_longer_than_it_is_told(seconds: float) -> None:
    """And says that nobody cancelled."""

    async def main() -> Any:
        return await AsyncSignal("k", 1, 0, 5.0).wait(seconds)

    assert asyncio.run(main()) is False


def test_thread_waits_for_the_signal_of_an_asynchronous_journal() -> None:
    """Where no loop runs it blocks, as the other one does."""
    signal = AsyncSignal("k", 1, 0, 5.0)
    assert signal.wait(0.001) is False

    signal.cancel()

    assert signal.wait(PATIENCE) is True


@pytest.mark.parametrize("seconds", [PATIENCE, 1e12, float("inf")])
def test_wait_of_a_task_ends_when_it_is_cancelled(seconds: float) -> None:
    """However long it was to be, and of all who wait."""

    async def main() -> None:
        signal = AsyncSignal("k", 1, 0, 5.0)
        waiting = [asyncio.create_task(signal.wait(seconds)) for _ in range(2)]
        await asyncio.sleep(0)

        signal.cancel()

        assert await asyncio.gather(*waiting) == [True, True]
        assert await signal.wait(0) is True
        assert signal.cancelled is True

    asyncio.run(main())


def test_wait_that_is_cancelled_as_a_task_raises() -> None:
    """It is the task that is told, not the signal."""

    async def main() -> None:
        signal = AsyncSignal("k", 1, 0, 5.0)
        waiting = asyncio.create_task(signal.wait(PATIENCE))
        await asyncio.sleep(0)
        waiting.cancel()

        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert signal.cancelled is False

    asyncio.run(main())
