"""A journal of an older format: migrated by many at once, and by one that is killed at each of its places."""

import shutil

import pytest

import journal
from journal.records import FORMAT_VERSION
from tests.crash.support.deaths import NEVER, SEAMS, Fuse
from tests.crash.support.processes import KILLED, Processes, hear_parent, say_parent
from tests.crash.support.service import World
from tests.unit.golden import JOURNALS

PROCESSES = 6


def put_old(world: World) -> None:
    """Put the golden journal of format 1 in the world's place."""
    world.path.mkdir()
    shutil.copy(JOURNALS[1], world.path)


def migrate(world: World, length: int) -> int:
    """Open it for writing, killed at the `length`-th place of the migration's transaction; gives how many it has."""
    fuse = Fuse(length)
    SEAMS["commits"](fuse)
    with fuse.burning():
        j = journal.open(world.path)
    j.close()
    return fuse.count


def answers(world: World, *, readonly: bool) -> tuple[int, list[str], list[str], list[str]]:
    """The format that it is opened in, and what it answers."""
    with journal.open(world.path, readonly=readonly) as j:
        return (
            j.stats().format_version,
            [repr(committed) for committed in j.read()],
            [repr(record) for record in j.effects()],
            [repr(finding) for finding in j.verify()],
        )


def append_at_the_gate(world: World, name: str) -> int:
    """One of several processes that open the old journal at once; gives the format that it then has."""
    say_parent("at the gate")
    hear_parent()
    with journal.open(world.path) as j:
        j.append("new", name, op_id=name)
        return j.stats().format_version


def test_killed_at_each_place_it_is_of_one_format_or_the_other(processes: Processes, world: World) -> None:
    """Before the commit the old one, after it the new one, with the same answers; and opened again it is the new one."""
    put_old(world)
    old_version, *old = processes.run(answers, world, readonly=True)
    assert old_version == 1
    shutil.rmtree(world.path)
    put_old(world)
    number = processes.run(migrate, world, NEVER)
    assert number >= 6
    versions = []
    for length in range(1, number + 1):
        shutil.rmtree(world.path)
        put_old(world)

        assert processes.start(migrate, world, length).wait() == KILLED
        version, *found = processes.run(answers, world, readonly=True)
        assert found == old
        versions.append(version)
        version, *found = processes.run(answers, world, readonly=False)
        assert (version, found) == (FORMAT_VERSION, old)

    assert versions == sorted(versions)
    assert set(versions) == {1, FORMAT_VERSION}


@pytest.mark.parametrize("attempt", range(3))
def test_many_processes_migrate_it_once(processes: Processes, world: World, attempt: int) -> None:
    """Whoever comes to the turn first; the others go on with what they find there, and nothing is lost."""
    put_old(world)
    openers = [processes.start(append_at_the_gate, world, str(index)) for index in range(PROCESSES)]
    for opener in openers:
        assert opener.hear() == "at the gate"

    for opener in openers:
        opener.say("go")
    versions = {opener.value() for opener in openers}

    assert versions == {FORMAT_VERSION}
    version, operations, _, findings = processes.run(answers, world, readonly=True)
    assert (version, findings) == (FORMAT_VERSION, [])
    assert len(operations) == 4 + PROCESSES
