"""Every protocol of the journal as something to be killed in: what stands before, the call, and what must hold.

`prepare` lists lives that go before, each in a process of its own, some of which end early. `act` is the call: it
burns the fuse from its first step to its answer and acknowledges what it was answered. Made again, in any state that
a killed one and a recovery left behind, it finishes its work.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

import journal
from journal import Accepted, EffectFailedError, EffectUnresolvedError, NotPerformed, Reducer
from journal._core import pruning
from tests.crash.support.deaths import NEVER, Fuse
from tests.crash.support.processes import die
from tests.crash.support.recipient import Kind
from tests.crash.support.service import STREAM, Delivery, Key, Service, Trouble, World, key_of, text_of
from tests.crash.support.state import CURSOR, GROUP, GROUP_SIZE, recover

Act = Callable[[World, Fuse], None]


class Life(msgspec.Struct, frozen=True):
    """A service that appends one operation, settles its effect up to a place, and dies there."""

    kind: Kind
    place: str = ""

    def __call__(self, world: World) -> None:
        def reach(here: str) -> None:
            if here == self.place:
                die()

        service = Service(world, reach=reach)
        with world.open() as j:
            committed = service.append(j, self.kind, f"{self.kind} {self.place}")
            if self.place:
                service.settle(j, committed)


class Protocol(NamedTuple):
    """One row of the table below. What is not stepped is no generator: it is killed at its lines alone."""

    number: int
    name: str
    title: str
    prepare: tuple[Callable[[World], object], ...]
    act: Act
    holds: str
    is_stepped: bool = True


def create(world: World, fuse: Fuse) -> None:
    with fuse.burning(), world.open():
        pass


def append(world: World, fuse: Fuse) -> None:
    with world.open() as j, fuse.burning():
        Service(world).append(j, "askable", "one")


def append_one(world: World) -> None:
    append(world, Fuse(NEVER))


def append_all(world: World, fuse: Fuse) -> None:
    operations = [(f"{GROUP}{index}", Delivery("proving")) for index in range(GROUP_SIZE)]
    with world.open() as j, fuse.burning():
        for committed in j.append_all(STREAM, operations):
            world.acknowledge("append", committed.op_id, [committed.position, committed.sequence])


class Settle(msgspec.Struct, frozen=True):
    """Settles the effect of the first operation by a direct call, at a recipient that may make trouble."""

    trouble: Trouble | None = None

    def __call__(self, world: World, fuse: Fuse) -> None:
        service = Service(world, trouble=self.trouble)
        with world.open() as j:
            committed = next(iter(j.read()))
            with (
                fuse.burning(),
                contextlib.suppress(EffectFailedError, EffectUnresolvedError, ConnectionError, NotPerformed),
            ):
                service.settle(j, committed)


def step(world: World, fuse: Fuse) -> None:
    with world.open() as j, fuse.burning():
        value = j.step("quote", lambda: {"computed by": os.getpid()})
        world.acknowledge("step", "quote", value)


def walk(world: World, fuse: Fuse) -> None:
    service = Service(world)
    with world.open() as j, fuse.burning():
        j.recover(intents=service.intents)


class BecomeCopy(msgspec.Struct, frozen=True):
    """A copy takes the journal's place; before that, the journal may settle the effects that the copy knows nothing of."""

    settles: bool

    def __call__(self, world: World) -> None:
        backup = world.path.with_name("backup")
        with world.open() as j:
            j.backup(backup)
            for committed in j.read():
                if self.settles:
                    Service(world).settle(j, committed)
        shutil.rmtree(world.path)
        backup.rename(world.path)


def confirm(world: World, fuse: Fuse) -> None:
    with world.open() as j, fuse.burning():
        j.confirm_restored()


def first_key(j: journal.Journal) -> Key:
    return key_of(next(iter(j.read())))


def resolve_open(world: World, fuse: Fuse) -> None:
    with world.open() as j:
        record = j.record(first_key(j))
        if record and record.phase == "intent":
            with fuse.burning():
                outcome = Accepted("found by hand")
                j.resolve(record.key, outcome, expected_position=record.position, reason="asked by telephone")
                world.acknowledge("event", text_of(record.key), ["accepted", "resolve"])


def resolve_uncertain(world: World, fuse: Fuse) -> None:
    with world.open() as j:
        record = j.record(first_key(j))
        if record and record.phase == "uncertain":
            with fuse.burning():
                absent = NotPerformed("their books show nothing")
                j.resolve(record.key, absent, expected_position=record.position, reason="asked by telephone")
                world.acknowledge("event", text_of(record.key), ["failed", "resolve"])


def clear(world: World, fuse: Fuse) -> None:
    with world.open() as j:
        key = first_key(j)
        with fuse.burning():
            j.clear_effect(key, reason="to be done anew")
            world.acknowledge("event", text_of(key), ["cleared", None])


def prune(world: World, fuse: Fuse) -> None:
    # One effect a transaction: there are several to be killed in, and between.
    pruning.PRUNE_EFFECTS_MAX = 1  # type: ignore[attr-defined]  # in a process of its own
    with world.open() as j, fuse.burning():
        j.prune_effects(settled_before=time.time_ns(), keep=lambda record: str(record.key[1]).startswith("proving"))


def prune_all(world: World) -> None:
    prune(world, Fuse(NEVER))


def note(state: list[str], delivery: Delivery) -> list[str]:
    return [*state, delivery.content]


def append_to_state(world: World, fuse: Fuse) -> None:
    """Nothing is remembered of the operations that are there, and a snapshot is due with this one."""
    with world.open(state=Reducer(list, note, list[str], snapshot_every=2)) as j:
        with fuse.burning():
            Service(world).append(j, "askable", "last")
            j.load(STREAM)
        assert j.load(STREAM).state == [committed.operation.content for committed in j.read(STREAM)]


def save_cursor(world: World, fuse: Fuse) -> None:
    with world.open() as j:
        head = j.head()
        with fuse.burning():
            j.save_cursor(CURSOR, head)
            world.acknowledge("cursor", CURSOR, int(head))


BEFORE, AFTER = "before the recipient", "after the recipient"

PROTOCOLS = [
    Protocol(
        1,
        "append",
        "`append`",
        (),
        append,
        "The operation is there or not; acknowledged, it is there where it was said to be. Sent again, it is there once.",
    ),
    Protocol(
        2, "append-again", "`append` of an op_id that is there", (append_one,), append, "It is there once, as it was."
    ),
    Protocol(3, "append-all", "`append_all`", (), append_all, "All of its operations are there, or none."),
    Protocol(
        4,
        "effect",
        "`effect`, nothing on record",
        (Life("askable"),),
        Settle(),
        "Delivered once and accepted, or not delivered and uncertain.",
    ),
    Protocol(
        5,
        "effect-found",
        "`effect`, an open intent and the recipient has it",
        (Life("askable", AFTER),),
        Settle(),
        "Accepted via reconcile, with the recipient's name for it.",
    ),
    Protocol(
        6,
        "effect-unknown",
        "`effect`, an open intent and the recipient has nothing",
        (Life("askable", BEFORE),),
        Settle(),
        "Uncertain, never run.",
    ),
    Protocol(
        7,
        "effect-absent",
        "`effect`, an open intent and the recipient proves absence",
        (Life("proving", BEFORE),),
        Settle(),
        "Delivered once: `failed` and the next intent are one commit, and that intent is settled like any other.",
    ),
    Protocol(
        8,
        "effect-breaks",
        "`effect` whose `run` raises",
        (Life("askable"),),
        Settle("breaks"),
        "The intent stands, released or not; delivered once and accepted via reconcile.",
    ),
    Protocol(
        9,
        "effect-refused",
        "`effect` whose `run` raises `NotPerformed`",
        (Life("proving"),),
        Settle("refuses"),
        "Known not performed, or asked and proved absent; then delivered once.",
    ),
    Protocol(
        10,
        "run-effect",
        "`run_effect`, nothing on record",
        (Life("deduplicating"),),
        Settle(),
        "Delivered once, in as many requests as there are intents or fewer.",
    ),
    Protocol(
        11,
        "run-effect-open",
        "`run_effect`, an open intent",
        (Life("deduplicating", AFTER),),
        Settle(),
        "Run again under the same key, with an intent of its own.",
    ),
    Protocol(
        12,
        "run-effect-breaks",
        "`run_effect` whose `run` raises",
        (Life("deduplicating"),),
        Settle("breaks"),
        "`failed`, which may have happened; run again, and delivered once.",
    ),
    Protocol(
        13,
        "step",
        "`step`",
        (),
        step,
        "A value that was acknowledged is the value for ever; one that was not may be another.",
    ),
    Protocol(
        14,
        "recover",
        "`recover` over effects of all kinds, never started and open",
        (
            Life("deduplicating", BEFORE),
            Life("askable", AFTER),
            Life("askable", BEFORE),
            Life("proving", BEFORE),
            # These two follow each other: the outcome of the first and the intent of the second share a commit.
            Life("deduplicating"),
            Life("askable"),
        ),
        walk,
        "Every effect ends as the matrix says, wherever the walk was cut.",
    ),
    Protocol(
        15,
        "resolve",
        "`resolve` of an open intent as accepted",
        (Life("askable", AFTER),),
        resolve_open,
        "The person's outcome once acknowledged; the recipient's record otherwise.",
    ),
    Protocol(
        16,
        "resolve-uncertain",
        "`resolve` of an uncertain effect as not performed",
        (Life("askable", BEFORE), recover),
        resolve_uncertain,
        "Uncertain still, or failed by a person's word and then run.",
    ),
    Protocol(
        17,
        "clear-effect",
        "`clear_effect` of an accepted effect",
        (Life("deduplicating"), recover),
        clear,
        "Accepted still, or new work whose attempts start at 1.",
    ),
    Protocol(
        18,
        "save-cursor",
        "`save_cursor`",
        (Life("proving"),),
        save_cursor,
        "The cursor is the acknowledged one or later.",
    ),
    Protocol(
        19,
        "open",
        "`open` of a new journal, and `close`",
        (),
        create,
        "The next `open` finds a journal or makes one; a half-made one stops nobody.",
        is_stepped=False,
    ),
    Protocol(
        20,
        "prune",
        "`prune_effects` of several effects, one a transaction, with a predicate",
        (
            Life("deduplicating"),
            Life("proving"),
            Life("askable"),
            # This one ends as uncertain, which is never pruned.
            Life("askable", BEFORE),
            recover,
        ),
        prune,
        "Each effect is on record or pruned, nothing between; a pruned one is reused by every walk and never run again.",
    ),
    Protocol(
        21,
        "clear-pruned",
        "`clear_effect` of a pruned effect",
        (Life("deduplicating"), recover, prune_all),
        clear,
        "Pruned still, or new work whose attempts start at 1.",
    ),
    Protocol(
        22,
        "copy-done",
        "`recover` in a copy, whose recipients have what was done after it was made",
        (Life("askable"), Life("proving"), BecomeCopy(settles=True)),
        walk,
        "Asked before anything is run, and found: delivered once, accepted via reconcile.",
    ),
    Protocol(
        23,
        "copy-undone",
        "`recover` in a copy after which nothing was done",
        (Life("proving"), Life("askable"), BecomeCopy(settles=False)),
        walk,
        "Asked first: proved absent and then delivered once, or not delivered and uncertain.",
    ),
    Protocol(
        24,
        "confirm-restored",
        "`confirm_restored`",
        (Life("proving"), BecomeCopy(settles=False)),
        confirm,
        "Confirmed or not: delivered once.",
    ),
    Protocol(
        25,
        "append-to-state",
        "`append` with a reducer and a snapshot, then `load`",
        (append_one,),
        append_to_state,
        "The operation is there with its snapshot, or neither; the state is that of the operations that are there.",
    ),
]
