"""Every protocol, killed at each of its places, one process for each place.

Places are counted by a seam: the steps of the generators (`Driver.perform` answers each request that one yields),
what happens inside the storage's commit, and the lines of the journal's own code.
"""

import os
import pathlib
import shutil

import pytest

from tests.crash.page import name_of
from tests.crash.protocols import GROUP, GROUP_SIZE, PROTOCOLS, Protocol
from tests.crash.support.deaths import NEVER, SEAMS, Fuse
from tests.crash.support.processes import KILLED, Processes
from tests.crash.support.service import World
from tests.crash.support.state import State, Walk, check_all, recover

LINES_TRIED = int(os.environ.get("JOURNAL_CRASH_LINES", "20"))
"""Lines at which a run kills each protocol, evenly spread over it; a large number takes every one."""


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
        check_groups(first)
        walk, second = processes.run(recover, world, is_watched=False)
        check_all(world, walk, second)
        assert second == first
        walk, again = processes.run(live_again, world, protocol)
        check_all(world, walk, again)
        check_groups(again)
    except AssertionError as error:
        error.add_note(f"{protocol.name} was killed at place {length} of its {seam}: {place}")
        raise
    return was_killed


def check_groups(state: State) -> None:
    """One `append_all` is there whole or not at all."""
    found = [committed for committed in state.operations if committed.op_id.startswith(GROUP)]
    assert len(found) in {0, GROUP_SIZE}


@pytest.fixture
def prepared(processes: Processes, world: World, protocol: Protocol) -> World:
    """A world in which all has happened that goes before a protocol."""
    for life in protocol.prepare:
        passed = processes.start(life, world)
        if passed.wait() != KILLED:
            passed.value()
    return world


def copy_of(world: World, directory: pathlib.Path) -> World:
    """A world of its own for each place; nobody has a journal open while it is copied."""
    shutil.copytree(world.directory, directory)
    return World(str(directory))


@pytest.mark.parametrize("seam", ["steps", "commits"])
@pytest.mark.parametrize("protocol", [protocol for protocol in PROTOCOLS if protocol.is_stepped], ids=name_of)
def test_killed_at_each_step_nothing_is_lost_or_doubled(
    processes: Processes, tmp_path_factory: pytest.TempPathFactory, prepared: World, protocol: Protocol, seam: str
) -> None:
    """Before and after each step: acknowledged is there, no call without a durable intent, recovered twice is once."""
    places = tmp_path_factory.mktemp(seam)
    length = 1
    while kill_at(processes, copy_of(prepared, places / str(length)), protocol, seam, length):
        length += 1

    assert length > 2, "the seam counts nothing"


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=name_of)
def test_killed_at_lines_of_its_code_nothing_is_lost_or_doubled(
    processes: Processes, tmp_path_factory: pytest.TempPathFactory, prepared: World, protocol: Protocol
) -> None:
    """The same at places that no step names: inside transactions, between two writes to a table, while closing."""
    places = tmp_path_factory.mktemp("lines")
    number = processes.run(live, copy_of(prepared, places / "whole"), protocol, "lines", NEVER)

    for length in range(1, number + 1, max(1, number // LINES_TRIED)):
        kill_at(processes, copy_of(prepared, places / str(length)), protocol, "lines", length)
