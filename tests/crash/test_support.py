"""The processes of the crash tests die and speak as the tests rely on."""

import os

import pytest

from tests.crash.support.deaths import NEVER, Fuse
from tests.crash.support.processes import KILLED, Child, ChildError, Processes, die, hear_parent, say_parent
from tests.crash.support.recipient import KINDS, Kind
from tests.crash.support.service import World


def answer() -> int:
    say_parent(os.getpid())
    question = hear_parent()
    assert isinstance(question, int)
    return question + 1


def ask_another() -> tuple[int, int]:
    return os.getpid(), Child.processes.run(os.getpid)


def unwind() -> None:
    try:
        die()
    finally:
        say_parent("unwound")


def burn(length: int) -> int:
    fuse = Fuse(length)
    fuse.reach("not lit")
    with fuse.burning():
        for place in "first", "second":
            fuse.reach(place)
    fuse.reach("burnt out")
    return fuse.count


def test_child_speaks_with_whoever_started_it(processes: Processes) -> None:
    """Both ways, its value last, from a process of its own."""
    child = processes.start(answer)

    pid = child.hear()
    child.say(41)

    assert (child.value(), child.wait(), pid) == (42, 0, child.pid)
    assert pid != os.getpid()


def test_child_starts_another(processes: Processes) -> None:
    """As a sibling: a fresh process, which has nothing of the child that asked for it."""
    first, second = processes.run(ask_another)

    assert first != second


def test_dying_child_does_not_unwind(processes: Processes) -> None:
    """Its end is told by the exit code alone."""
    child = processes.start(unwind)

    assert child.wait() == KILLED
    with pytest.raises(ChildError, match="no message"):
        child.hear()
    with pytest.raises(ChildError, match="no value"):
        child.value()


def test_child_that_raises_tells_its_traceback(processes: Processes) -> None:
    """What fails in a child fails the test, with the child's own lines."""
    with pytest.raises(ChildError, match="ZeroDivisionError"):
        processes.run(divmod, 1, 0)


def test_waiting_child_is_killed_from_outside(processes: Processes) -> None:
    """At any moment, twice is fine."""
    child = processes.start(hear_parent)

    assert not child.is_over_within(0)
    assert (child.kill(), child.kill()) == (KILLED, KILLED)


def test_fuse_counts_only_while_it_burns(processes: Processes) -> None:
    """And ends the process at the place that it was cut for, whose name it leaves."""
    child = processes.start(burn, 2)

    assert (child.hear(), child.wait()) == ("second", KILLED)
    assert processes.run(burn, NEVER) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_recipient_counts_what_it_did(world: World, kind: Kind) -> None:
    """Only the one that deduplicates answers a second request with the first delivery."""
    recipient = world.recipient(kind)
    messages = {recipient.deliver("key"), recipient.deliver("key")}

    assert len(messages) == recipient.deliveries("key") == (1 if kind == "deduplicating" else 2)
    assert recipient.requests("key") == 2
    assert recipient.find("key") in messages
    assert recipient.find("other") is None
