"""Many callers of one key: threads, processes, and children that were forked with a journal open."""

import os
import pathlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import journal
from journal import Accepted, EffectInFlightError, JournalForkedError
from tests.crash.support.processes import KILLED, Process, Processes, die, hear_parent, say_parent
from tests.crash.support.service import Service, World, key_of
from tests.crash.support.state import check_all, count, recover

CALLERS = 8


def never_asked(signal: object) -> None:
    raise AssertionError("nobody died, so nobody asks")


def call_effect(j: journal.Journal, run: Callable[[], Any]) -> object:
    outcome = j.effect("key", run=run, reconcile=never_asked)
    assert isinstance(outcome, Accepted)
    return outcome.proof


Call = Callable[[journal.Journal, Callable[[], Any]], Any]
CALLS: dict[str, Call] = {
    "effect": call_effect,
    "run_effect": lambda j, run: j.run_effect("key", run),
    "step": lambda j, run: j.step("key", run),
}


@pytest.mark.parametrize("call", CALLS)
def test_eight_threads_share_one_run_and_get_results_of_their_own(tmp_path: pathlib.Path, call: str) -> None:
    """One run whoever comes first; eight equal results, and what one caller does to its own is nobody else's."""
    gate = threading.Barrier(CALLERS)
    arrived = threading.Semaphore(0)
    runs: list[int] = []

    def run() -> dict[str, list[str]]:
        for _ in range(CALLERS):
            assert arrived.acquire(timeout=60)  # every caller is past the gate: they meet inside the call or after it
        runs.append(threading.get_ident())
        return {"message": ["message-1"]}

    with journal.open(tmp_path / "journal") as j, ThreadPoolExecutor(CALLERS) as threads:

        def caller() -> dict[str, list[str]]:
            gate.wait(timeout=60)
            arrived.release()
            result: dict[str, list[str]] = CALLS[call](j, run)
            return result

        results = [future.result() for future in [threads.submit(caller) for _ in range(CALLERS)]]
        later = CALLS[call](j, run)

    assert len(runs) == 1
    assert [*results, later] == [{"message": ["message-1"]}] * (CALLERS + 1)
    for result in results:
        result["message"].append("mine")
    assert [len(result["message"]) for result in results] == [2] * CALLERS
    assert later == {"message": ["message-1"]}


def settle_at_the_gate(world: World) -> str | None:
    """One of several processes with one operation: settles its effect when it is let go."""
    service = Service(world)
    with world.open() as j:
        committed = service.append(j, "askable", "only")
        say_parent("at the gate")
        hear_parent()
        return service.settle(j, committed)


def test_eight_processes_on_one_key_deliver_once(processes: Processes, world: World) -> None:
    """The recipient cannot deduplicate; still one delivery, and eight equal answers."""
    callers = at_the_gate(processes, world, CALLERS)

    for caller in callers:
        caller.say("go")
    answers = [caller.value() for caller in callers]

    walk, state = processes.run(recover, world)
    check_all(world, walk, state)
    (record,) = state.records.values()
    assert (record.phase, record.via, record.attempts) == ("accepted", "run", 1)
    assert answers == [record.proof] * CALLERS


def at_the_gate(processes: Processes, world: World, number: int) -> list[Process[str | None]]:
    callers = [processes.start(settle_at_the_gate, world) for _ in range(number)]
    for caller in callers:
        assert caller.hear() == "at the gate"
    return callers


def own_and_wait(world: World) -> None:
    """Writes the intent, is delivered, and waits inside `run` for a death that comes from outside."""

    def reach(place: str) -> None:
        if place == "after the recipient":
            say_parent("delivered")
            hear_parent()

    service = Service(world, reach=reach)
    with world.open() as j:
        service.settle(j, service.append(j, "askable", "only"))


def test_owner_killed_midway_is_asked_about_and_not_replaced(processes: Processes, world: World) -> None:
    """Seven wait for a living owner; it dies, the recipient is asked, and nobody runs."""
    owner = processes.start(own_and_wait, world)
    assert owner.hear() == "delivered"
    callers = at_the_gate(processes, world, CALLERS - 1)
    for caller in callers:
        caller.say("go")

    assert owner.kill() == KILLED
    answers = [caller.value() for caller in callers]

    walk, state = processes.run(recover, world)
    check_all(world, walk, state)
    ((key, record),) = state.records.items()
    assert (record.phase, record.via, record.attempts) == ("accepted", "reconcile", 1)
    assert state.sent[key].requests == 1
    assert answers == [record.proof] * (CALLERS - 1)


def in_child(target: Callable[[], None]) -> int:
    """Forks this process as it is, calls `target` in the child and gives the child's exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            target()
        except BaseException as error:
            say_parent(f"{error!r}")
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


CHILD_CALLS: dict[str, Callable[[journal.Journal], object]] = {
    "head": lambda j: j.head(),
    "read": lambda j: list(j.read()),
    "record": lambda j: j.record("key"),
    "append": lambda j: j.append("s", {}, op_id="child"),
    "effect": lambda j: j.effect("key", run=lambda: "child", reconcile=never_asked),
    "run_effect": lambda j: j.run_effect("key", lambda: "child"),
    "step": lambda j: j.step("key", lambda: "child"),
    "recover": lambda j: j.recover(intents=lambda committed: []),
}


def fork_and_go_on(world: World) -> list[str]:
    """A service that forks: the child tries each call with the handle it inherited, then the parent goes on."""
    with journal.open(world.path) as j:
        j.append("s", {"by": "parent"}, op_id="before")

        def child() -> None:
            for call in CHILD_CALLS.values():
                with pytest.raises(JournalForkedError) as caught:
                    call(j)
                assert caught.value.pid == os.getppid()

        assert in_child(child) == 0
        j.append("s", {"by": "parent"}, op_id="after")
        assert j.run_effect("key", lambda: "parent") == "parent"
        return [committed.op_id for committed in j.read()]


def test_forked_child_is_refused_and_the_parent_goes_on(processes: Processes, world: World) -> None:
    """Every call on the inherited handle raises `JournalForkedError` with the parent's pid, and harms nobody."""
    assert processes.run(fork_and_go_on, world) == ["before", "after"]


def fork_and_open(world: World) -> list[str]:
    """The child opens for itself while the parent has the journal open; both write."""
    with journal.open(world.path) as j:
        j.append("s", {}, op_id="parent")

        def child() -> None:
            with journal.open(world.path) as own:
                own.append("s", {}, op_id="child")
                assert own.run_effect("child's", lambda: "child") == "child"

        assert in_child(child) == 0
        j.append("s", {}, op_id="parent again")
        assert j.run_effect("child's", lambda: "never") == "child"
        return [committed.op_id for committed in j.read()]


def test_forked_child_opens_for_itself(processes: Processes, world: World) -> None:
    """Two handles then, one in each process, over one journal."""
    assert processes.run(fork_and_open, world) == ["parent", "child", "parent again"]


def fork_inside_run_and_die(world: World) -> None:
    """Forks with its intent written and delivered, and dies; the forked child stays until it is told to go."""

    def reach(place: str) -> None:
        if place == "after the recipient":
            read_end, write_end = os.pipe()
            if os.fork() == 0:
                try:
                    say_parent("child is alive")
                    os.write(write_end, b"!")
                    hear_parent()
                finally:
                    os._exit(0)
            os.read(read_end, 1)
            die()

    service = Service(world, reach=reach)
    with world.open() as j:
        service.settle(j, service.append(j, "askable", "only"))


def test_forked_child_does_not_keep_the_effects_of_its_dead_parent(processes: Processes, world: World) -> None:
    """The owner is the process that wrote the intent: it is gone although a child of it lives and inherited its files."""
    owner = processes.start(fork_inside_run_and_die, world)
    assert owner.hear() == "child is alive"
    assert owner.wait() == KILLED

    walk, state = processes.run(recover, world)
    owner.say("go")

    assert count(walk) == {"reconciled": 1}
    check_all(world, walk, state)


def call_while_the_owner_lives(world: World) -> int:
    """Asks for an effect that another process has in its hands, and gives whom the refusal names."""
    with world.open(wait_timeout=0.01) as j:
        (committed,) = j.read()
        with pytest.raises(EffectInFlightError) as caught:
            Service(world).settle(j, committed)
        assert caught.value.key == key_of(committed)
        return caught.value.pid


def test_effect_in_the_hands_of_a_living_process_is_left_to_it(processes: Processes, world: World) -> None:
    """The wait is bounded and names the owner; nobody asks the recipient and nobody runs."""
    owner = processes.start(own_and_wait, world)
    assert owner.hear() == "delivered"

    named = processes.run(call_while_the_owner_lives, world)
    owner.say("go")
    owner.value()

    assert named == owner.pid
    walk, state = processes.run(recover, world)
    check_all(world, walk, state)
    assert count(walk) == {"reused": 1}
