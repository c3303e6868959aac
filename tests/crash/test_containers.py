"""Containers that share a journal through a volume: processes that do not see each other, or have the same pid.

Each process here has a pid namespace of its own, which only root can make on most machines.
"""

import os
import pathlib
import signal
from typing import Any

import pytest

from journal import EffectInFlightError, JournalBusyError
from tests.crash.support.containers import can_make_containers, in_container
from tests.crash.support.deaths import Halt, seam_of_commits
from tests.crash.support.processes import KILLED, Processes, hear_parent, say_parent
from tests.crash.support.service import Service, World, key_of, text_of
from tests.crash.support.state import check_all, count, recover

pytestmark = pytest.mark.needs("pid namespaces")

CALLERS = 4


@pytest.fixture(autouse=True)
def containers(processes: Processes) -> None:
    """Nothing runs where no namespace can be made."""
    if not processes.run(can_make_containers):
        pytest.skip("this user may not make a pid namespace")


def own(world: World) -> None:
    """Writes the intent, is delivered, and waits inside `run`."""

    def reach(place: str) -> None:
        if place == "after the recipient":
            say_parent("delivered")
            hear_parent()

    service = Service(world, reach=reach, is_watched=False)
    with world.open() as j:
        service.settle(j, service.append(j, "askable", "only"))


def call(world: World, wait_timeout: float) -> None:
    """Calls for the one effect, and says what came of it."""
    service = Service(world, is_watched=False)
    with world.open(wait_timeout=wait_timeout) as j:
        (committed,) = j.read(limit=1)
        say_parent("calls")
        try:
            say_parent(service.settle(j, committed))
        except EffectInFlightError as error:
            say_parent([error.pid, error.record is not None and error.record.phase])
        hear_parent()


def test_owner_in_another_container_is_alive(processes: Processes, world: World) -> None:
    """Its pid is not to be seen from here, and another process has it: the kernel's lock says that it lives."""
    owner = processes.start(in_container, 1, own, world)
    assert owner.hear() == "delivered"
    caller = processes.start(in_container, 2, call, world, 0.3)
    assert caller.hear() == "calls"
    answer = caller.hear()

    owner.say("go on")
    owner.value()
    caller.say("end")
    caller.value()

    assert answer == [1, "intent"]
    walk, state = processes.run(recover, world, is_watched=False)
    check_all(world, walk, state)
    assert count(walk) == {"reused": 1}


def test_owner_killed_in_another_container_is_asked_about(processes: Processes, world: World) -> None:
    """Who waits sees the death, although a process with the owner's pid lives in its own namespace; nobody runs."""
    owner = processes.start(in_container, 1, own, world)
    assert owner.hear() == "delivered"
    caller = processes.start(in_container, 2, call, world, 60.0)
    assert caller.hear() == "calls"

    assert owner.kill() == KILLED
    message = caller.hear()
    caller.say("end")
    caller.value()

    walk, state = processes.run(recover, world, is_watched=False)
    check_all(world, walk, state)
    ((key, record),) = state.records.items()
    assert (record.phase, record.via, record.proof) == ("accepted", "reconcile", message)
    assert state.sent[key].requests == 1


def settle_at_the_gate(world: World, name: str) -> None:
    """Appends something of its own, and settles the one effect when it is let go."""
    service = Service(world, is_watched=False)
    with world.open() as j:
        service.append(j, "deduplicating", name)
        say_parent("at the gate")
        hear_parent()
        (committed,) = j.read(limit=1)
        say_parent(service.settle(j, committed))
        j.recover(intents=service.intents)


def prepare(world: World) -> None:
    """One operation, whose effect nobody has begun."""
    with world.open() as j:
        Service(world).append(j, "askable", "only")


def test_containers_on_one_key_deliver_once(processes: Processes, world: World) -> None:
    """Side by side with one that is outside of them all: one delivery, equal answers, and everything is settled."""
    processes.run(prepare, world)
    callers: list[Any] = [processes.start(settle_at_the_gate, world, "outside")]
    # Two pids for all of them: those with the same one wait for each other to end.
    callers += [processes.start(in_container, pid, settle_at_the_gate, world, f"pid {pid}") for pid in (1, 2)]
    for caller in callers:
        assert caller.hear() == "at the gate"
    for caller in callers:
        caller.say("go")
    answers = [caller.hear() for caller in callers]
    for caller in callers:
        caller.value()

    walk, state = processes.run(recover, world, is_watched=False)
    check_all(world, walk, state)
    assert set(answers) == {state.records[text_of(key_of(state.operations[0]))].proof}


def append_slowly(world: World) -> None:
    """Stops with the turn in its hands."""
    halt = Halt("after begin")
    seam_of_commits(halt)
    with world.open() as j, halt.burning():
        Service(world).append(j, "askable", "slow")


def append_in_vain(world: World) -> None:
    """Tries to append; says what it is told."""
    with world.open(wait_timeout=0.3) as j:
        try:
            Service(world).append(j, "askable", "refused")
        except JournalBusyError as error:
            say_parent([error.pid, str(error)])
        hear_parent()
        Service(world).append(j, "askable", "later")


def test_turn_held_in_another_container_is_told(processes: Processes, world: World) -> None:
    """The kernel gives no pid that would mean something here, and the error says so; the handle works on."""
    # The first process of a namespace cannot stop itself.
    writer = processes.start(in_container, 2, append_slowly, world)
    assert writer.hear() == "after begin"
    other = processes.start(in_container, 1, append_in_vain, world)
    said: Any = other.hear()

    os.kill(only_child(only_child(writer.pid)), signal.SIGCONT)
    writer.value()
    other.say("go on")
    other.value()

    assert said[0] is None
    assert "another pid namespace" in said[1]
    walk, state = processes.run(recover, world, is_watched=False)
    check_all(world, walk, state)


def only_child(pid: int) -> int:
    """The child of a process, by the pid that it has for this one."""
    (child,) = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return int(child)


# The same pid twice


def hold_open(world: World) -> None:
    """Has the journal open until it is told to end, and uses it then."""
    with world.open() as j:
        say_parent("open")
        hear_parent()
        Service(world).append(j, "askable", "by the first")


def open_and_append(world: World, wait_timeout: float) -> None:
    """Opens the journal, perhaps after a wait; says what came of it."""
    say_parent("opens")
    try:
        with world.open(wait_timeout=wait_timeout) as j:
            Service(world).append(j, "askable", f"after {wait_timeout}")
    except JournalBusyError as error:
        say_parent([error.pid, str(error)])
    else:
        say_parent("opened")


def test_second_process_with_a_pid_is_told_what_to_do(processes: Processes, world: World) -> None:
    """LMDB could not tell the two apart: opening is refused, harms nobody, and works when the first has ended."""
    first = processes.start(in_container, 1, hold_open, world)
    assert first.hear() == "open"

    second = processes.start(in_container, 1, open_and_append, world, 0.3)
    assert second.hear() == "opens"
    said: Any = second.hear()
    second.value()
    first.say("end")
    first.value()
    third = processes.start(in_container, 1, open_and_append, world, 0.3)
    assert third.hear() == "opens"

    assert said[0] == 1
    assert "--pid=container:" in said[1]
    assert "shareProcessNamespace" in said[1]
    assert third.hear() == "opened"
    walk, state = processes.run(recover, world, is_watched=False)
    check_all(world, walk, state)
    assert {committed.op_id for committed in state.operations} == {"by the first", "after 0.3"}


@pytest.mark.parametrize("is_killed", [False, True])
def test_second_process_with_a_pid_waits_for_the_first_to_end(
    processes: Processes, world: World, *, is_killed: bool
) -> None:
    """A container that is being replaced, or a short command beside the service: the next one opens after it."""
    first = processes.start(in_container, 1, hold_open, world)
    assert first.hear() == "open"
    second = processes.start(in_container, 1, open_and_append, world, 60.0)
    assert second.hear() == "opens"

    if is_killed:
        assert first.kill() == KILLED
    else:
        first.say("end")
        first.value()

    assert second.hear() == "opened"
    second.value()
