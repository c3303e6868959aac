"""The service that dies: it embeds a journal and settles each operation's effect at a recipient.

`World` is a directory with a journal, the recipients and what was acknowledged; it outlives every service. A service
calls `reach` where it may die; what it does there is decided by whoever starts it.
"""

import json
import pathlib
from collections.abc import Callable
from typing import Any, Literal

import msgspec

import journal
from journal import Accepted, Committed, Intent, NotPerformed
from tests.crash.support.lines import append_line, read_lines
from tests.crash.support.processes import Child
from tests.crash.support.recipient import KINDS, Kind, Recipient

STREAM = "deliveries"
Key = str | tuple[str | int, ...]
Trouble = Literal["refuses", "breaks"]
"""What a recipient does instead of answering: refuses with nothing done, or does it and breaks the connection."""


class Delivery(msgspec.Struct, frozen=True):
    """The operation: something to deliver, once, at a recipient of a kind."""

    recipient: Kind
    content: str = ""


class Acknowledgement(msgspec.Struct, frozen=True):
    """A call that returned, and what it returned; written before anything else is done."""

    call: str
    name: str
    value: Any = None


class Sighting(msgspec.Struct, frozen=True):
    """What a second process read of an effect while its `run` was about to reach the recipient."""

    key: str
    phase: str | None
    attempts: int
    last_event: str | None


def text_of(key: Key) -> str:
    """The key as a recipient takes it."""
    return json.dumps(key)


def key_of(committed: Committed) -> Key:
    """The key of an operation's one effect."""
    return (committed.stream, committed.op_id, "deliver")


class World(msgspec.Struct, frozen=True):
    """A directory in which services live and die."""

    directory: str

    @property
    def path(self) -> pathlib.Path:
        """Where the journal is."""
        return pathlib.Path(self.directory) / "journal"

    def recipient(self, kind: Kind) -> Recipient:
        return Recipient(pathlib.Path(self.directory), kind)

    def recipients(self) -> list[Recipient]:
        return [self.recipient(kind) for kind in KINDS]

    def open(self, **options: Any) -> journal.Journal:
        return journal.open(self.path, operation=Delivery, **options)

    def acknowledge(self, call: str, name: str, value: object = None) -> None:
        self._note("acknowledged", Acknowledgement(call, name, value))

    def acknowledged(self, *calls: str) -> list[Acknowledgement]:
        """What was acknowledged of these calls, in order."""
        found = msgspec.convert(self._notes("acknowledged"), list[Acknowledgement])
        return [acknowledgement for acknowledgement in found if acknowledgement.call in calls]

    def note_sighting(self, sighting: Sighting) -> None:
        self._note("sightings", sighting)

    def sightings(self) -> list[Sighting]:
        return msgspec.convert(self._notes("sightings"), list[Sighting])

    def note_fault(self, text: str) -> None:
        """Something that a service saw and that must never be."""
        self._note("faults", text)

    def faults(self) -> list[str]:
        return msgspec.convert(self._notes("faults"), list[str])

    def _note(self, kind: str, value: object) -> None:
        append_line(pathlib.Path(self.directory) / f"{kind}.jsonl", value)

    def _notes(self, kind: str) -> list[Any]:
        return read_lines(pathlib.Path(self.directory) / f"{kind}.jsonl")


def look(world: World, key: Key) -> None:
    """In a process of its own: reads the effect from the file and writes down what stands there."""
    with world.open(readonly=True, create=False) as j:
        record = j.record(key)
        events = j.history(key)
    world.note_sighting(
        Sighting(
            key=text_of(key),
            phase=record.phase if record else None,
            attempts=record.attempts if record else 0,
            last_event=events[-1].phase if events else None,
        )
    )


class Service:
    """Settles operations through a journal. `reach` is told each place where a service may die, and may not return."""

    def __init__(
        self,
        world: World,
        *,
        reach: Callable[[str], None] = lambda place: None,
        trouble: Trouble | None = None,
        is_watched: bool = True,
    ) -> None:
        self.world = world
        self.reach = reach
        self.trouble = trouble
        self.is_watched = is_watched

    def intent(self, committed: Committed) -> Intent:
        """The one effect of an operation: settled by `effect`, or by `run_effect` where the recipient deduplicates."""
        key = key_of(committed)
        recipient = self.world.recipient(committed.operation.recipient)
        if recipient.kind == "deduplicating":
            return Intent(key, run=lambda: self.deliver(recipient, key))
        return Intent(key, run=lambda: self.deliver(recipient, key), reconcile=lambda signal: self.ask(recipient, key))

    def intents(self, committed: Committed) -> list[Intent]:
        return [self.intent(committed)]

    def append(self, j: journal.Journal, kind: Kind, op_id: str) -> Committed:
        """Appends an operation and acknowledges it."""
        committed = j.append(STREAM, Delivery(kind), op_id=op_id)
        assert isinstance(committed, Committed)
        self.world.acknowledge("append", op_id, [committed.position, committed.sequence])
        return committed

    def settle(self, j: journal.Journal, committed: Committed) -> str | None:
        """The same by a direct call, acknowledged; gives what the recipient named it, `None` where nobody knows."""
        intent = self.intent(committed)
        message: str | None
        if intent.reconcile is None:
            message = j.run_effect(intent.key, intent.run)
        else:
            outcome = j.effect(intent.key, run=intent.run, reconcile=intent.reconcile)
            message = outcome.proof if isinstance(outcome, Accepted) else None
        self.world.acknowledge("settle", text_of(intent.key), message)
        return message

    def deliver(self, recipient: Recipient, key: Key) -> str:
        """The `run` of every effect; where it is watched, a second process looks at the file first."""
        if self.is_watched:
            Child.processes.run(look, self.world, key)
        self.reach("before the recipient")
        if self.trouble == "refuses":
            raise NotPerformed("the recipient refused")
        message = recipient.deliver(text_of(key))
        self.reach("after the recipient")
        if self.trouble == "breaks":
            raise ConnectionError("the connection broke before the answer came")
        return message

    def ask(self, recipient: Recipient, key: Key) -> str | None:
        """The `reconcile` of every effect that has one."""
        message = recipient.find(text_of(key))
        self.reach("after the answer")
        if message is None and recipient.kind == "proving":
            raise NotPerformed(f"{recipient.kind} recipient knows no {key}")
        return message
