"""`journal/_states.py`: what a handle remembers of its streams."""

from __future__ import annotations

import threading

import pytest

from journal._core.states import StateAt
from journal._states import States


def at(sequence: int, *, epoch: int = 1, size: int = 1) -> StateAt:
    return StateAt(epoch, sequence, sequence, 0, b"x" * size)


def states(bytes_max: int = 100, count_max: int = 100) -> States:
    return States(bytes_max=bytes_max, count_max=count_max)


def test_newest_state_is_remembered() -> None:
    """Of a later epoch before one of an earlier, then of the later sequence."""
    kept = states()
    kept.put_all({"s": at(2), "t": at(7)})
    kept.put("s", at(1))
    assert kept.get("s") == at(2)

    kept.put("s", at(1, epoch=2))
    kept.put("s", at(9, epoch=1))

    assert kept.get("s") == at(1, epoch=2)
    assert kept.get("t") == at(7)
    assert kept.get("none") is None


def test_count_is_bounded() -> None:
    """What was not asked for longest is forgotten."""
    kept = states(count_max=2)
    for stream in "ab":
        kept.put(stream, at(1))
    kept.get("a")
    kept.put("c", at(1))

    assert [stream for stream in "abc" if kept.get(stream)] == ["a", "c"]


def test_bytes_are_bounded() -> None:
    """Also where one stream's state grows, and where one alone is too large."""
    kept = states(bytes_max=10)
    for number in range(50):
        kept.put("a", at(number, size=4))
    kept.put("b", at(1, size=6))
    assert (kept.get("a"), kept.get("b")) == (at(49, size=4), at(1, size=6))

    kept.put("b", at(2, size=7))
    assert (kept.get("a"), kept.get("b")) == (None, at(2, size=7))

    kept.put("c", at(1, size=11))
    assert [kept.get(stream) for stream in "abc"] == [None, None, None]

    kept.put("d", at(1, size=10))
    assert kept.get("d") == at(1, size=10)


@pytest.mark.parametrize("limits", [(0, 100), (100, 0)])
def test_nothing_may_be_remembered(limits: tuple[int, int]) -> None:
    """Then nothing is."""
    kept = states(*limits)
    kept.put("s", at(1))

    assert kept.get("s") is None


def test_threads_may_share_it() -> None:
    """The count of its bytes is that of what is there."""
    kept = states(bytes_max=50)

    def work(stream: str) -> None:
        for number in range(500):
            kept.put(stream, at(number, size=number % 20))
            kept.get("a")

    threads = [threading.Thread(target=work, args=(stream,)) for stream in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert kept._bytes == sum(len(one.state) for one in kept._by_stream.values()) <= 50
