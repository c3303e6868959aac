"""`journal/_storage/turn.py`: the writer's turn, between descriptors as between processes."""

from __future__ import annotations

import fcntl
import io
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from journal._storage import turn
from journal._storage.turn import FLOCK, Turn, holder_of, sharers_of_first_byte
from journal.errors import JournalBusyError
from journal.options import DISTRUST_SECONDS, POLL_SECONDS_MAX, POLL_SECONDS_MIN
from tests.unit.support import Boom, raising

PATIENCE: Final = 30.0
"""Seconds after which a wait that must end is a failure."""


@pytest.fixture
def descriptors(tmp_path: Path) -> Iterator[list[int]]:
    """Three descriptors of one file, as three handles have them."""
    found = [os.open(tmp_path / "turn.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) for _ in range(3)]
    yield found
    for descriptor in found:
        os.close(descriptor)


@pytest.fixture
def turns(descriptors: list[int]) -> list[Turn]:
    """The turns of three handles."""
    return [Turn("/journal", descriptor) for descriptor in descriptors]


def later(seconds: float = PATIENCE) -> float:
    """A deadline."""
    return time.monotonic() + seconds


def is_free(descriptor: int) -> bool:
    """Whether another handle could take turn and place at once."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 1, 0))


def test_turn_is_held_for_the_body_alone(turns: list[Turn], descriptors: list[int]) -> None:
    """Nobody else has it meanwhile; afterwards anybody may."""
    seen: list[bool] = []

    turns[0].run(lambda: seen.append(is_free(descriptors[1])), later())

    assert seen == [False]
    assert is_free(descriptors[1])


@pytest.mark.parametrize("error", [Boom(), KeyboardInterrupt()])
def test_turn_is_given_back_whatever_the_body_raises(
    turns: list[Turn], descriptors: list[int], error: BaseException
) -> None:
    """An exception goes on as it is."""
    with pytest.raises(type(error)):
        turns[0].run(raising(error), later())

    assert is_free(descriptors[1])


def test_turn_is_taken_once_the_holder_gives_it_back(turns: list[Turn]) -> None:
    """Who waits goes on then."""
    order: list[str] = []
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        assert may_end.wait(PATIENCE)
        order.append("first")

    holder = threading.Thread(target=turns[0].run, args=(hold, later()))
    waiter = threading.Thread(target=turns[1].run, args=(lambda: order.append("second"), later()))
    holder.start()
    assert is_held.wait(PATIENCE)
    waiter.start()
    may_end.set()
    holder.join(PATIENCE)
    waiter.join(PATIENCE)

    assert order == ["first", "second"]


def test_turn_that_another_keeps_too_long_is_told(turns: list[Turn], descriptors: list[int]) -> None:
    """With its process, and nothing of what was wanted is done or held."""

    def want() -> None:
        with pytest.raises(JournalBusyError) as caught:
            turns[1].run(raising(AssertionError("this must not run")), later(0))
        assert (caught.value.path, caught.value.pid) == ("/journal", os.getpid())

    turns[0].run(want, later())

    assert is_free(descriptors[2])


def test_turn_of_a_process_that_cannot_be_seen_is_told(turns: list[Turn], monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in another pid namespace, so that there is no pid to give."""
    monkeypatch.setattr(turn, "holder_of", lambda _: None)

    def want() -> None:
        with pytest.raises(JournalBusyError) as caught:
            turns[1].run(raising(AssertionError("this must not run")), later(0))
        assert caught.value.pid is None
        assert "another pid namespace" in str(caught.value)

    turns[0].run(want, later())


def test_place_in_front_is_a_courtesy(
    turns: list[Turn], descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the one who waits in front stopped, the others would take the turn all the same."""
    monkeypatch.setattr(turn, "COURTESY_SECONDS", 0.0)
    fcntl.fcntl(descriptors[1], fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    done: list[bool] = []

    turns[0].run(lambda: done.append(True), later())

    assert done == [True]


def test_who_stands_still_in_front_is_passed_without_a_pause(
    turns: list[Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place is asked for once, and again after a while: not every commit pays for one that is stopped."""
    monkeypatch.setattr(turn, "COURTESY_SECONDS", 0.0)
    asked: list[str] = []

    def take_place() -> None:
        asked.append("asked")
        raise BlockingIOError

    monkeypatch.setattr(turns[0], "_take_place", take_place)
    now = [100.0]
    monkeypatch.setattr(turn.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]  # a module that it uses

    for seconds in (0.0, DISTRUST_SECONDS / 2, DISTRUST_SECONDS, DISTRUST_SECONDS * 1.5):
        now[0] = 100.0 + seconds
        turns[0].run(lambda: None, now[0] + PATIENCE)

    assert asked == ["asked", "asked"]


def test_who_waits_for_a_turn_that_is_held_is_no_suspect(
    turns: list[Turn], descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not take the turn: the next time it goes first."""
    monkeypatch.setattr(turn, "COURTESY_SECONDS", 0.0)
    fcntl.fcntl(descriptors[1], fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    tries: list[str] = []
    real = turns[0]._take_turn

    def take_turn() -> None:
        tries.append("tried")
        if len(tries) == 1:
            raise BlockingIOError
        real()

    monkeypatch.setattr(turns[0], "_take_turn", take_turn)

    turns[0].run(lambda: None, later())

    assert turns[0]._courteous_from == 0.0


def test_place_of_another_is_left_to_it(
    turns: list[Turn], descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who went past it has not taken it away."""
    monkeypatch.setattr(turn, "COURTESY_SECONDS", 0.0)
    fcntl.fcntl(descriptors[1], fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))

    turns[0].run(lambda: None, later())

    with pytest.raises(BlockingIOError):
        fcntl.fcntl(descriptors[2], fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))


def test_waiting_is_done_in_front(turns: list[Turn], descriptors: list[int]) -> None:
    """Who waits for the turn holds the place, so that a process that commits without a pause does not overtake it."""
    fcntl.flock(descriptors[0], fcntl.LOCK_EX)
    took = threading.Event()
    waiter = threading.Thread(target=turns[1].run, args=(took.set, later()))
    waiter.start()

    probe = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    deadline = later()
    while FLOCK.unpack(fcntl.fcntl(descriptors[2], fcntl.F_OFD_GETLK, probe))[0] == fcntl.F_UNLCK:
        assert time.monotonic() < deadline
    fcntl.flock(descriptors[0], fcntl.LOCK_UN)

    assert took.wait(PATIENCE)
    waiter.join(PATIENCE)


def test_who_waits_sleeps_in_proportion_to_its_wait(
    turns: list[Turn], descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither sleeps through the moment that the turn is free, nor wakes all the time for one that is stopped."""
    fcntl.flock(descriptors[0], fcntl.LOCK_EX)
    now, pauses = [0.0], []

    def sleep(seconds: float) -> None:
        pauses.append((now[0], seconds))
        now[0] += seconds

    monkeypatch.setattr(turn.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]  # a module that it uses
    monkeypatch.setattr(turn.time, "sleep", sleep)  # type: ignore[attr-defined]  # a module that it uses

    with pytest.raises(JournalBusyError):
        turns[1].run(lambda: None, 1.0)

    assert pauses[0] == (0.0, POLL_SECONDS_MIN)
    assert pauses[-1][1] == POLL_SECONDS_MAX
    assert all(pause <= max(POLL_SECONDS_MIN, waited / 4) for waited, pause in pauses)
    assert len(pauses) < 200


def test_releasing_nothing_is_fine(turns: list[Turn], descriptors: list[int]) -> None:
    """After an interrupt nobody knows how far it had come."""
    turns[0].release()
    turns[0].release()

    assert is_free(descriptors[0])


def test_releasing_takes_nothing_from_another(turns: list[Turn], descriptors: list[int]) -> None:
    """Locks belong to the description that took them."""
    seen: list[bool] = []

    def body() -> None:
        turns[1].release()
        seen.append(is_free(descriptors[2]))

    turns[0].run(body, later())

    assert seen == [False]


def test_lock_outlives_a_copy_of_the_directory(turns: list[Turn], descriptors: list[int], tmp_path: Path) -> None:
    """Opening and closing the file in the same process drops neither kind of lock."""
    seen: list[bool] = []

    def body() -> None:
        (tmp_path / "turn.lock").read_bytes()
        seen.append(is_free(descriptors[1]))

    turns[0].run(body, later())

    assert seen == [False]


def test_holder_of_a_free_file_is_nobody(descriptors: list[int]) -> None:
    """The kernel lists no lock on it."""
    assert holder_of(descriptors[0]) is None


@pytest.mark.parametrize("pid", [1, 4_321])
def test_holder_is_read_from_the_kernels_list(
    descriptors: list[int], monkeypatch: pytest.MonkeyPatch, pid: int
) -> None:
    """The line of the kind and file that are ours; who only waits is marked by an arrow."""
    inode = os.fstat(descriptors[0]).st_ino
    lines = f"""\
1: POSIX  ADVISORY  WRITE 77 fe:01:{inode} 0 EOF
2: FLOCK  ADVISORY  WRITE 78 fe:01:{inode}1 0 EOF
3: OFDLCK ADVISORY  WRITE -1 fe:01:{inode} 0 0
3: -> FLOCK  ADVISORY  WRITE 79 fe:01:{inode} 0 EOF
4: FLOCK  ADVISORY  WRITE {pid} fe:01:{inode} 0 EOF
"""
    monkeypatch.setattr(turn, "open", lambda *_, **__: io.StringIO(lines), raising=False)

    assert holder_of(descriptors[0]) == pid


def test_holder_that_the_kernel_does_not_tell_is_unknown(
    descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox without /proc."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("no")

    monkeypatch.setattr(turn, "open", refuse, raising=False)

    assert holder_of(descriptors[0]) is None


def test_process_does_not_see_itself_among_those_that_share_a_byte(tmp_path: Path) -> None:
    """Nor anybody at a file that is not there."""
    path = tmp_path / "lock"
    path.touch()
    with path.open("rb") as file:
        fcntl.lockf(file, fcntl.LOCK_SH, 1)

        assert sharers_of_first_byte(str(path)) == []
        child = os.fork()
        if child == 0:
            os._exit(os.getppid() in sharers_of_first_byte(str(path)))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert sharers_of_first_byte(str(tmp_path / "nothing")) == []
