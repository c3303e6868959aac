"""A new journal: made by many at once, and made anew where its maker died inside a call of LMDB's."""

import pytest

from journal._storage import files
from tests.crash.support.processes import Processes, hear_parent, say_parent
from tests.crash.support.service import Service, World
from tests.crash.support.state import check_all, recover

MAKERS = 8


def make_at_the_gate(world: World, name: str) -> str:
    """One of several processes that open a journal which is not there yet; gives the id of what it opened."""
    say_parent("at the gate")
    hear_parent()
    with world.open() as j:
        Service(world).append(j, "proving", name)
        return j.journal_id


def test_eight_processes_make_one_journal(processes: Processes, world: World) -> None:
    """All of them open the same one, and what each appends is there."""
    makers = [processes.start(make_at_the_gate, world, str(index)) for index in range(MAKERS)]
    for maker in makers:
        assert maker.hear() == "at the gate"

    for maker in makers:
        maker.say("go")
    ids = {maker.value() for maker in makers}

    assert len(ids) == 1
    walk, state = processes.run(recover, world)
    check_all(world, walk, state)
    assert len(state.operations) == MAKERS


@pytest.mark.parametrize("content", [b"", bytes(4096), b"\xff" * 8192], ids=["empty", "zeros", "noise"])
def test_half_made_journal_stops_nobody(processes: Processes, world: World, content: bytes) -> None:
    """A maker that dies inside LMDB leaves anything in the new file's place: it is not yet a journal, and is made anew."""
    world.path.mkdir()
    for name in files.TURN_FILE, files.NEW_DATA_FILE, files.NEW_LOCK_FILE:
        (world.path / name).write_bytes(b"" if name == files.TURN_FILE else content)

    walk, state = processes.run(recover, world)

    check_all(world, walk, state)
    assert {files.NEW_DATA_FILE, files.NEW_LOCK_FILE}.isdisjoint(path.name for path in world.path.iterdir())
