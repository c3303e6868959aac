"""Every protocol, killed at each of its places, one process for each place.

Places are counted by a seam: the steps of the generators (the requests that one yields and their answers, in a thread or
in a task of an event loop), what happens inside the storage's commit, and the lines of the journal's own code.
"""

import os
import pathlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.crash.page import name_of
from tests.crash.protocols import PROTOCOLS, Protocol
from tests.crash.support.deaths import NEVER, SEAMS, Fuse
from tests.crash.support.processes import KILLED, Processes
from tests.crash.support.service import World
from tests.crash.support.state import State, Walk, check_all, recover

LINES_TRIED = int(os.environ.get("JOURNAL_CRASH_LINES", "20"))
"""Lines at which a run kills each protocol, evenly spread over it; a large number takes every one."""


AT_A_TIME = 4
"""Places tried at once: most of a process's life is waiting for the disk."""

# Thousands of processes; on a busy machine more than a test is usually given.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def live(world: World, protocol: Protocol, seam: str, length: int) -> int:
    """One call of a protocol, killed at the `length`-th place; gives how many places it has."""
    fuse = Fuse(length)
    SEAMS[seam](fuse)
    protocol.act(world, fuse)
    return fuse.count


def live_again(world: World, protocol: Protocol) -> tuple[Walk, State]:
    """The same call with nobody who kills, in whatever state it finds; then a recovery."""
    protocol.act(world, Fuse(NEVER))
    return recover(world, is_watched=False)


def kill_at(processes: Processes, world: World, protocol: Protocol, seam: str, length: int) -> bool:
    """In a world that is prepared: killed at one place, recovered twice, called again; gives whether it was killed."""
    died = processes.start(live, world, protocol, seam, length)
    was_killed = died.wait() == KILLED
    place = died.hear() if was_killed else f"nowhere, it has {died.value()}"
    try:
        walk, first = processes.run(recover, world, is_watched=False)
        check_all(world, walk, first)
        walk, second = processes.run(recover, world, is_watched=False)
        check_all(world, walk, second)
        assert second == first
        walk, again = processes.run(live_again, world, protocol)
        check_all(world, walk, again)
    except AssertionError as error:
        error.add_note(f"{protocol.name} was killed at place {length} of its {seam}: {place}")
        raise
    return was_killed


@pytest.fixture
def prepared(processes: Processes, world: World, protocol: Protocol) -> World:
    """A world in which all has happened that goes before a protocol."""
    for life in protocol.prepare:
        passed = processes.start(life, world)
        if passed.wait() != KILLED:
            passed.value()
    return world


@dataclass(frozen=True)
class Killing:
    """Kills one protocol at places of one seam, each in a copy of the prepared world."""

    processes: Processes
    prepared: World
    protocol: Protocol
    seam: str
    directory: pathlib.Path

    def copy(self, name: object) -> World:
        """A world of its own; nobody has a journal open while it is copied."""
        shutil.copytree(self.prepared.directory, self.directory / str(name))
        return World(str(self.directory / str(name)))

    def count(self) -> int:
        """How many places there are."""
        return self.processes.run(live, self.copy("whole"), self.protocol, self.seam, NEVER)

    def kill_at(self, length: int) -> bool:
        world = self.copy(length)
        was_killed = kill_at(self.processes, world, self.protocol, self.seam, length)
        shutil.rmtree(world.directory)  # kept where it failed
        return was_killed

    def kill_at_each(self, lengths: range) -> list[bool]:
        """Some at a time; gives where the process was killed and where it came to its end."""
        with ThreadPoolExecutor(AT_A_TIME) as threads:
            return list(threads.map(self.kill_at, lengths))


@pytest.mark.parametrize("seam", ["steps", "tasks", "commits"])
@pytest.mark.parametrize("protocol", [protocol for protocol in PROTOCOLS if protocol.is_stepped], ids=name_of)
def test_killed_at_each_step_nothing_is_lost_or_doubled(
    processes: Processes, tmp_path_factory: pytest.TempPathFactory, prepared: World, protocol: Protocol, seam: str
) -> None:
    """Before and after each step: acknowledged is there, no call without a durable intent, recovered twice is once."""
    killing = Killing(processes, prepared, protocol, seam, tmp_path_factory.mktemp(seam))
    number = killing.count()

    was_killed = killing.kill_at_each(range(1, number + 2))

    assert number >= 2, "the seam counts nothing"
    assert was_killed == [True] * number + [False]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=name_of)
def test_killed_at_lines_of_its_code_nothing_is_lost_or_doubled(
    processes: Processes, tmp_path_factory: pytest.TempPathFactory, prepared: World, protocol: Protocol
) -> None:
    """The same at places that no step names: inside transactions, between two writes to a table, while closing."""
    killing = Killing(processes, prepared, protocol, "lines", tmp_path_factory.mktemp("lines"))
    number = killing.count()

    was_killed = killing.kill_at_each(range(1, number + 1, max(1, number // LINES_TRIED)))

    assert any(was_killed)
