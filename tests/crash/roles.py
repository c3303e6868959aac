"""What the processes of the soak do, each until it is killed or told that it is over.

A role is a function of the field, the process's name and a source of chance. It writes down what a call answered after
the call has returned, in a file of its own, so that nobody's death takes anybody's notes along. A role more is a
function more in `ROLES`.
"""

import asyncio
import contextlib
import os
import pathlib
import random
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, Literal

import msgspec

import journal
from journal import (
    Accepted,
    AsyncJournal,
    Committed,
    EffectInFlightError,
    EffectUnresolvedError,
    Intent,
    Journal,
    JournalBusyError,
)

Key = tuple[str | int, ...]
Kind = Literal["once", "idempotent"]

WAIT_SECONDS: Final = 1.0
"""The `wait_timeout` of every process: less than the longest stop, so that some calls are refused."""

CURSOR: Final = "soak"
STREAMS: Final = 4
SHARDS: Final = 512
"""Files of the recipient, so that asking about a key does not read all that it was ever sent."""

SLOW_SHARE: Final = 0.1
SLOW_SECONDS_MAX: Final = 0.2
"""How often a recipient is slow, before or after it does what it is sent, and how slow at most."""

TASKS: Final = 8
"""How many tasks a process has that works in tasks."""

PAUSE_SECONDS: Final = 0.01
"""How often who has nothing to do looks again."""


class Work(msgspec.Struct, frozen=True):
    """The operation: something to deliver, at most once or by a key that is ignored the second time."""

    kind: Kind
    content: str


class Note(msgspec.Struct, frozen=True):
    """What a call answered, or that it was refused."""

    call: str
    name: str
    value: Any = None


def key_of(committed: Committed) -> Key:
    """The key of an operation's one effect."""
    return (committed.stream, committed.op_id, "deliver")


class Lines:
    """Lines that survive whoever writes them; one that was cut off by a death counts as never written."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def add(self, *values: Any) -> None:
        """Write some lines at the end, in one call of the kernel."""
        # A line feed in front, too: what a dead writer left half written must not spoil the next line.
        data = b"".join(b"\n" + msgspec.json.encode(value) + b"\n" for value in values)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def read(self) -> Iterator[Any]:
        """The lines that are whole, in order."""
        if self.path.exists():
            for line in self.path.read_bytes().split(b"\n"):
                if line:
                    with contextlib.suppress(msgspec.DecodeError):
                        yield msgspec.json.decode(line)


class Field(msgspec.Struct, frozen=True):
    """The directory in which it all happens: the journal, the recipient, the notes."""

    directory: str

    @property
    def root(self) -> pathlib.Path:
        return pathlib.Path(self.directory)

    @property
    def path(self) -> pathlib.Path:
        """Where the journal is."""
        return self.root / "journal"

    def prepare(self) -> None:
        """Make what the roles find there."""
        (self.root / "notes").mkdir()
        (self.root / "recipient").mkdir()
        self.open().close()

    def end(self) -> None:
        """Tell everybody that it is over."""
        (self.root / "over").touch()

    def is_over(self) -> bool:
        return (self.root / "over").exists()

    def notes(self, name: str) -> Lines:
        return Lines(self.root / "notes" / f"{name}.jsonl")

    def all_notes(self) -> Iterator[Note]:
        """What everybody but the readers noted."""
        for path in (self.root / "notes").glob("*.jsonl"):
            if not path.name.startswith("reader"):
                yield from (msgspec.convert(line, Note) for line in Lines(path).read())

    def shard(self, key: str) -> Lines:
        return Lines(self.root / "recipient" / f"{zlib.crc32(key.encode()) % SHARDS}.jsonl")

    def deliver(self, key: Key) -> str:
        """The recipient does what it is sent, as often as it is sent, and gives the name of the message."""
        text = repr(key)
        message = f"{text} by {os.getpid()} at {time.monotonic_ns()}"
        linger()
        self.shard(text).add([text, message])
        linger()
        return message

    def find(self, key: Key) -> str | None:
        """The recipient's record of the first message for a key; it cannot prove that there is none."""
        text = repr(key)
        return next((message for other, message in self.shard(text).read() if other == text), None)

    def deliveries(self) -> dict[str, list[str]]:
        """Every message that the recipient was sent, by key."""
        found: dict[str, list[str]] = {}
        for path in (self.root / "recipient").glob("*.jsonl"):
            for key, message in Lines(path).read():
                found.setdefault(key, []).append(message)
        return found

    def intents(self, committed: Committed) -> list[Intent]:
        """The one effect of an operation."""
        key = key_of(committed)
        if committed.operation.kind == "idempotent":
            return [Intent(key, run=lambda: self.find(key) or self.deliver(key))]
        return [Intent(key, run=lambda: self.deliver(key), reconcile=lambda _: self.find(key))]

    def open(self) -> Journal:
        return journal.open(self.path, operation=Work, wait_timeout=WAIT_SECONDS)


def linger() -> None:
    """Now and then a recipient takes its time, so that deaths and stops come inside a run as well."""
    if random.random() < SLOW_SHARE:
        time.sleep(random.uniform(0, SLOW_SECONDS_MAX))


class Worker:
    """Appends operations and settles effects, its own and other processes'."""

    def __init__(self, field: Field, name: str, draw: random.Random) -> None:
        self.field = field
        self.name = name
        self.draw = draw
        self.notes = field.notes(name)
        self.count = 0
        self.mine: list[Committed] = []

    def next_operation(self) -> tuple[str, Work, str]:
        """Stream, operation and op_id of something new."""
        self.count += 1
        kind: Kind = self.draw.choice(("once", "idempotent"))
        content = "x" * self.draw.choice((10, 100, 100, 5_000))
        return f"stream {self.draw.randrange(STREAMS)}", Work(kind, content), f"{self.name} {self.count}"

    def note_append(self, committed: Committed) -> None:
        self.notes.add(Note("append", committed.op_id, [committed.stream, committed.sequence, committed.position]))
        self.mine.append(committed)

    def note_outcome(self, key: Key, message: str | None) -> None:
        self.notes.add(Note("settle", repr(key), message))

    def note_refusal(self, name: str, error: Exception) -> None:
        self.notes.add(Note(f"refused: {type(error).__name__}", name))


def work(field: Field, name: str, draw: random.Random) -> None:
    """A worker that uses the synchronous journal."""
    worker = Worker(field, name, draw)
    with field.open() as j:
        while not field.is_over():
            match draw.choices(["append", "again", "mine", "other"], [6, 1, 5, 2])[0]:
                case "append":
                    stream, operation, op_id = worker.next_operation()
                    try:
                        committed = j.append(stream, operation, op_id=op_id)
                    except JournalBusyError as error:
                        worker.note_refusal(op_id, error)
                    else:
                        assert isinstance(committed, Committed)
                        worker.note_append(committed)
                case "again" if worker.mine:
                    before = draw.choice(worker.mine)
                    with contextlib.suppress(JournalBusyError):  # an op_id that is there is there all the same
                        again = j.append(before.stream, before.operation, op_id=before.op_id)
                        assert isinstance(again, Committed)
                        assert (again.position, again.repeated) == (before.position, True)
                case "mine" if worker.mine:
                    settle(worker, j, worker.mine[-1])
                case "other":
                    # Perhaps in flight there: one of us runs, the others join or wait.
                    for committed in j.read(after=max(0, j.head() - draw.randrange(1, 40)), limit=1):
                        settle(worker, j, committed)
                case _:
                    pass


def settle(worker: Worker, j: Journal, committed: Committed) -> None:
    """One effect by a direct call."""
    (intent,) = worker.field.intents(committed)
    try:
        if intent.reconcile is None:
            message = j.run_effect(intent.key, intent.run)
        else:
            outcome = j.effect(intent.key, run=intent.run, reconcile=intent.reconcile)
            message = outcome.proof if isinstance(outcome, Accepted) else None
    except (JournalBusyError, EffectInFlightError, EffectUnresolvedError) as error:
        worker.note_refusal("", error)
    else:
        worker.note_outcome(key_of(committed), message)


def work_in_tasks(field: Field, name: str, draw: random.Random) -> None:
    """A worker whose calls are tasks of one loop, some of which give up waiting in the midst."""

    async def main() -> None:
        opening = journal.open_async(field.path, operation=Work, wait_timeout=WAIT_SECONDS)
        async with opening as a, asyncio.TaskGroup() as group:
            for number in range(TASKS):
                group.create_task(task_of(Worker(field, f"{name}.{number}", draw), a))

    asyncio.run(main())


async def task_of(worker: Worker, a: AsyncJournal) -> None:
    """Appends, and settles what it appended or what others did."""
    field, draw = worker.field, worker.draw
    while not field.is_over():
        stream, operation, op_id = worker.next_operation()
        try:
            committed = await a.append(stream, operation, op_id=op_id)
        except JournalBusyError as error:
            worker.note_refusal(op_id, error)
            continue
        assert isinstance(committed, Committed)
        worker.note_append(committed)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(draw.choice([None, None, 0.002, 0.05])):
                await settle_in_task(worker, a, committed)
        async for other in a.read(after=max(0, await a.head() - draw.randrange(1, 40)), limit=1):
            await settle_in_task(worker, a, other)


async def settle_in_task(worker: Worker, a: AsyncJournal, committed: Committed) -> None:
    """One effect by a direct call; the function that acts is a plain one or a coroutine function."""
    (intent,) = worker.field.intents(committed)
    run = intent.run if worker.draw.random() < 0.5 else in_coroutine(intent.run)
    try:
        if intent.reconcile is None:
            message = await a.run_effect(intent.key, run)
        else:
            outcome = await a.effect(intent.key, run=run, reconcile=intent.reconcile)
            message = outcome.proof if isinstance(outcome, Accepted) else None
    except (JournalBusyError, EffectInFlightError, EffectUnresolvedError) as error:
        worker.note_refusal("", error)
    else:
        worker.note_outcome(key_of(committed), message)


def in_coroutine(run: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    """A coroutine function that does the same."""

    async def call() -> Any:
        return await asyncio.to_thread(run)

    return call


def walk(field: Field, name: str, draw: random.Random) -> None:
    """Recovers from the saved cursor on, again and again, beside others who do the same."""
    notes = field.notes(name)
    with field.open() as j:
        while not field.is_over():
            before = j.cursor(CURSOR)
            try:
                settled = j.recover(
                    before, intents=field.intents, limit=draw.randrange(1, 500), concurrency=draw.choice([1, 4])
                )
                if settled > before:
                    j.save_cursor(CURSOR, settled)
            except JournalBusyError as error:
                notes.add(Note(f"refused: {type(error).__name__}", ""))
                continue
            reason = settled.stopped.reason if settled.stopped else "settled"
            notes.add(Note(f"walk: {reason}", "", [settled.ran, settled.reused, settled.reconciled]))
            if int(settled) == int(before):
                time.sleep(PAUSE_SECONDS)


def follow(field: Field, name: str, draw: random.Random) -> None:
    """Reads on from where its predecessor of the same name had come to, and notes every position once."""
    notes = field.notes(name.partition(" ")[0])
    after = max((position for (position,) in notes.read()), default=0)
    with field.open() as j:
        while not field.is_over():
            page = [committed.position for committed in j.read(after=after, limit=draw.randrange(1, 200))]
            if page:
                notes.add(*([position] for position in page))  # half a list is no list, half a number is a number
                after = page[-1]
            else:
                time.sleep(PAUSE_SECONDS)


Role = Callable[[Field, str, random.Random], None]
ROLES: Final[dict[str, Role]] = {"worker": work, "tasks": work_in_tasks, "walker": walk, "reader": follow}


def live(field: Field, role: str, name: str, seed: int) -> None:
    """One life of a process."""
    random.seed(seed)
    ROLES[role](field, name, random.Random(seed))
