"""What the unit tests share: a journal in memory, and protocols driven by hand.

`Memory` keeps what `View` and `Transaction` promise in a list, slow and obvious; `test_support.py` holds it against the
real store. `Play` drives a protocol request by request: a test says which request it expects, and lets `Memory` answer
or gives the answer itself.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final, Generic, Self, TypeVar

import lmdb
import msgspec

from journal._core import requests
from journal._core.effects import EffectCall, effect_call
from journal._core.keys import has_prefix, key_form
from journal._core.ledger import CLEARED, EffectChange, EffectState, Tombstone, event_of, next_entry
from journal._core.operations import draft
from journal._core.payloads import digest
from journal._core.requests import EffectPage, OperationPage, Steps, StoredOperation
from journal._core.schemas import Schema
from journal._core.states import StateAt
from journal._storage.store import Store
from journal.errors import CompactedCursorError, CorruptRecordError, Key
from journal.options import MAP_BYTES_MIN, WAIT_TIMEOUT_SECONDS
from journal.records import (
    CompactionRecord,
    CursorRow,
    DroppingRow,
    EffectEntry,
    FloorRow,
    Guarantee,
    LogRecord,
    OperationRecord,
    Phase,
    PrunedRecord,
    ResetRecord,
    RestoredRow,
    SnapshotRow,
    StepRecord,
    StreamRow,
    Via,
)
from journal.values import Cursor

T = TypeVar("T")

START: Final = 1_700_000_000_000_000_000
"""What the clock of a `Memory` shows at first, in nanoseconds since the epoch."""

OWN: Final = 5
"""The owner that the protocols under test act for."""

OTHER: Final = 7
"""An owner in another process."""

OTHER_PID: Final = 4_321

_BY_ITSELF: Final = object()


class Boom(Exception):
    """What a user's function raises when nobody knows whether the effect happened."""


class Hold:
    """A flight that notes its ends."""

    def __init__(self, memory: Memory, request: requests.Enter) -> None:
        self._memory = memory
        self.request = request
        self.ends: list[BaseException | None] = []

    def end(self, error: BaseException | None = None) -> None:
        self.ends.append(error)
        self._memory.in_flight.pop((self.request.space, self.request.form), None)


class Memory:
    """A journal in a list."""

    def __init__(self) -> None:
        self.log: list[tuple[LogRecord, bytes]] = []
        self.cursors: dict[str, CursorRow] = {}
        self.snapshots: dict[str, SnapshotRow] = {}
        self.left_to_drop: dict[str, DroppingRow] = {}
        self.tombstones: dict[bytes, Tombstone] = {}
        self.restored_row: RestoredRow | None = None
        self.at = START
        self.states: dict[str, StateAt] = {}
        self.damaged: set[int] = set()
        """Positions of records that cannot be read."""
        self.alive: dict[int, int] = {}
        """The pids of living owners."""
        self.page_records = 1_000
        self.drop_records = 1_000
        self.in_flight: dict[tuple[str, bytes], Hold] = {}
        self.holds: list[Hold] = []
        self.notes: list[requests.Note] = []
        self.commits = 0

    # --- View ---------------------------------------------------------------------------------------------------

    def head(self) -> int:
        return len(self.log)

    def record(self, position: int) -> LogRecord:
        if position in self.damaged:
            raise CorruptRecordError(position, "its checksum is wrong")
        return self.log[position - 1][0]

    def effect(self, form: bytes) -> EffectState | None:
        positions = [position for position, entry in self._entries() if entry.key == form]
        return EffectState(positions[-1], self.effect_entry(positions[-1])) if positions else None

    def glance(self, form: bytes) -> EffectState | None:
        return self.effect(form)

    def effect_entry(self, position: int) -> EffectEntry:
        entry = self.record(position)
        assert isinstance(entry, EffectEntry)
        return entry

    page_effects = 10**9
    """How many keys one look at a list of effects passes at most."""

    def effects(self, phases: frozenset[Phase], *, prefix: bytes, after: bytes, limit: int) -> EffectPage:
        forms = [form for form in sorted({entry.key for _, entry in self._entries()}) if form > after]
        states = [self.effect(form) for form in forms[: self.page_effects]]
        found = [
            state
            for state in states
            if state is not None and state.entry.phase in phases and has_prefix(state.entry.key, prefix)
        ]
        if len(found) >= limit:
            return EffectPage(found[:limit], found[limit - 1].entry.key)
        return EffectPage(found, forms[self.page_effects - 1] if len(forms) > self.page_effects else None)

    def step(self, form: bytes) -> StepRecord | None:
        for position, (record, _) in enumerate(self.log, 1):
            if isinstance(record, StepRecord) and record.key == form:
                found = self.record(position)
                assert isinstance(found, StepRecord)
                return found
        return None

    def stream(self, name: str) -> StreamRow | None:
        for position, (record, _) in reversed(list(enumerate(self.log, 1))):
            if isinstance(record, ResetRecord) and record.stream == name:
                return StreamRow(record.epoch, position)
        return StreamRow(1, 0) if name in self.streams() else None

    def streams(self) -> list[str]:
        return sorted({stored.head.stream for stored in self._operations()})

    def floor(self, name: str) -> FloorRow | None:
        for position, (record, _) in reversed(list(enumerate(self.log, 1))):
            if isinstance(record, ResetRecord) and record.stream == name:
                return None
            if isinstance(record, CompactionRecord) and record.stream == name:
                return FloorRow(record.floor, position, record.through)
        return None

    def floors(self) -> list[tuple[str, FloorRow]]:
        return [(name, row) for name in self.streams() if (row := self.floor(name)) is not None]

    def dropping(self, name: str) -> DroppingRow | None:
        return self.left_to_drop.get(name)

    def droppings(self) -> list[str]:
        return sorted(self.left_to_drop)

    def snapshot(self, name: str) -> SnapshotRow | None:
        return self.snapshots.get(name)

    def pruned(self, form: bytes) -> Tombstone | None:
        return self.tombstones.get(form)

    def restored(self) -> RestoredRow | None:
        return self.restored_row

    def last_operation(self, name: str, through: int) -> int:
        return max((position for position in self._positions(name) if position <= through), default=0)

    def _positions(self, name: str) -> list[int]:
        return [stored.position for stored in self._operations() if stored.head.stream == name]

    def sequence(self, name: str) -> int:
        return sum(stored.head.stream == name and self._is_present(stored) for stored in self._operations())

    def identity(self, name: str, epoch: int, op_id: str) -> StoredOperation | None:
        for stored in self._operations():
            if (stored.head.stream, stored.head.epoch, stored.head.op_id) == (name, epoch, op_id):
                return stored
        return None

    def operations(self, stream: str | None, after: int, limit: int) -> OperationPage:
        count = min(limit, self.page_records)
        found = [
            stored
            for stored in self._operations()
            if stored.position > after and stream in (None, stored.head.stream) and self._is_present(stored)
        ]
        ended = len(found) <= count
        for stored in found[:count]:
            lowest = self.floor(stored.head.stream)
            if lowest is not None and stored.position <= lowest.floor:
                top = max(row.through for name, row in self.floors() if stream in (None, name))
                raise CompactedCursorError(after, top, stream)
        return OperationPage(found[:count], max(after, self.head()) if ended else found[count - 1].position, ended)

    def saved_cursors(self) -> list[tuple[str, CursorRow]]:
        return sorted(self.cursors.items())

    def cursor(self, name: str) -> CursorRow | None:
        return self.cursors.get(name)

    def _is_present(self, stored: StoredOperation) -> bool:
        row = self.stream(stored.head.stream)
        return row is not None and row.epoch == stored.head.epoch

    def _entries(self) -> list[tuple[int, EffectEntry]]:
        return [
            (position, record) for position, (record, _) in enumerate(self.log, 1) if isinstance(record, EffectEntry)
        ]

    def _operations(self) -> list[StoredOperation]:
        return [
            StoredOperation(position, record, payload)
            for position, (record, payload) in enumerate(self.log, 1)
            if isinstance(record, OperationRecord)
        ]

    # --- Transaction --------------------------------------------------------------------------------------------

    def append(self, record: LogRecord, payload: bytes = b"") -> int:
        self.log.append((record, payload))
        if isinstance(record, ResetRecord):
            self.snapshots.pop(record.stream, None)
        return len(self.log)

    def save_cursor(self, name: str, row: CursorRow) -> None:
        self.cursors[name] = row

    def save_snapshot(self, name: str, row: SnapshotRow) -> None:
        self.snapshots[name] = row

    def prune(self, state: EffectState) -> int:
        form = state.entry.key
        positions = [position for position, entry in self._entries() if entry.key == form]
        for position in positions:
            self.record(position)
            self.log[position - 1] = PrunedRecord(position, self.at), b""
        if state.entry.phase is not CLEARED:
            record = PrunedRecord(state.position, self.at, digest(form), state.entry.guarantee)
            self.log[state.position - 1] = record, b""
            self.tombstones[form] = Tombstone(state.position, record)
        return len(positions)

    def forget(self, tombstone: Tombstone) -> None:
        self.tombstones = {form: other for form, other in self.tombstones.items() if other != tombstone}
        self.log[tombstone.position - 1] = PrunedRecord(tombstone.position, tombstone.record.at), b""

    def save_dropping(self, name: str, row: DroppingRow | None) -> None:
        if row is None:
            self.left_to_drop.pop(name, None)
        else:
            self.left_to_drop[name] = row

    def drop_payloads(self, name: str, after: int, through: int, count: int) -> int:
        count = min(count, self.drop_records)
        positions = [position for position in self._positions(name) if after < position <= through]
        for position in positions[:count]:
            self.log[position - 1] = self.log[position - 1][0], b""
        return through if len(positions) <= count else positions[count] - 1

    def save_restored(self, row: RestoredRow) -> None:
        self.restored_row = row

    def commit(self, decide: Callable[[Any], T]) -> T:
        """What a decision answers; nothing of it is kept when it raises."""
        before = (
            list(self.log),
            dict(self.cursors),
            dict(self.snapshots),
            dict(self.left_to_drop),
            dict(self.tombstones),
        )
        self.at += 1
        self.states = {}
        try:
            answer = decide(self)
        except BaseException:
            self.log, self.cursors, self.snapshots, self.left_to_drop, self.tombstones = before
            raise
        self.commits += 1
        return answer

    # --- the driver's other answers -----------------------------------------------------------------------------

    def enter(self, request: requests.Enter) -> Hold | None:
        """A flight, or `None` where there is one and the request does not wait."""
        place = (request.space, request.form)
        if place in self.in_flight:
            assert not request.wait, "this would wait for ever: let the test answer it"
            return None
        hold = self.in_flight[place] = Hold(self, request)
        self.holds.append(hold)
        return hold

    def perform(self, request: Any) -> Any:
        """The answer to any request but a `Pause`, which a test answers itself."""
        match request:
            case requests.Read():
                return request.look(self)
            case requests.Commit():
                return self.commit(request.decide)
            case requests.Call():
                return request.function()
            case requests.Decide():
                return request.function(*request.arguments)
            case requests.Ask():
                return request.reconcile(request)
            case requests.Enter():
                return self.enter(request)
            case requests.IsAlive():
                return self.alive.get(request.owner)
            case requests.Progress():
                return request.function(Cursor(request.cursor), Cursor(self.head()))
            case requests.Note():
                self.notes.append(request)
                return None
            case _:
                msg = f"the test must answer {request!r}"
                raise AssertionError(msg)

    # --- what tests put in, and look at -------------------------------------------------------------------------

    def prune_key(self, key: Key) -> int:
        """Prune an effect that is on record; where its last event stood."""
        state = self.effect(key_form(key))
        assert state is not None
        self.prune(state)
        return state.position

    def put_effect(self, key: Key, phase: Phase, *, guarantee: Guarantee = Guarantee.AT_MOST_ONCE, **facts: Any) -> int:
        """Add an event of an effect, as a person might where the law wants one; its position."""
        form = key_form(key)
        state = self.effect(form)
        if phase in (Phase.ACCEPTED, Phase.UNCERTAIN, Phase.FAILED):
            facts.setdefault("via", Via.RUN)
        if phase is Phase.ACCEPTED:
            facts.setdefault("proof", b'"proof"')
        if phase is Phase.INTENT:
            facts.setdefault("owner", OWN)
        before = None if state is None else state.entry.phase
        if before in (Phase.FAILED, Phase.UNCERTAIN) and phase is not Phase.INTENT:
            facts["via"] = Via.RESOLVE
        change = EffectChange(phase=phase, guarantee=guarantee, **facts)
        return self.append(next_entry(state, form, change, self.at))

    def put_operation(self, op_id: str, operation: Any = None, *, stream: str = "s") -> int:
        """Add an operation; its position."""
        new = draft(stream, op_id, operation, Schema())
        row = self.stream(stream)
        epoch = 1 if row is None else row.epoch
        record = OperationRecord(
            stream, epoch, self.sequence(stream) + 1, op_id, "", self.at, new.payload_hash, len(new.payload)
        )
        return self.append(record, new.payload)

    def put_step(self, key: Key, value: Any) -> int:
        """Add the result of a step; its position."""
        return self.append(StepRecord(key_form(key), self.at, msgspec.json.encode(value)))

    def last(self, key: Key) -> EffectEntry:
        """The last event of an effect."""
        state = self.effect(key_form(key))
        assert state is not None
        return state.entry

    def phases(self, key: Key) -> list[str]:
        """The phases of an effect's events, in order."""
        form = key_form(key)
        return [
            event_of(EffectState(position, entry)).phase for position, entry in self._entries() if entry.key == form
        ]


class Play(Generic[T]):
    """A protocol driven by hand."""

    def __init__(self, protocol: Steps[T], memory: Memory) -> None:
        self.memory = memory
        self.asked: list[str] = []
        """The names of the requests so far, without the notes for the log."""
        self.request: Any = None
        self.is_done = False
        self.returned: Any = None
        self.protocol = protocol
        self._advance(lambda: next(protocol))

    def does(self, kind: type[Any], answer: Any = _BY_ITSELF) -> Play[T]:
        """Expect this request, and answer it: by itself (what the user's function raises is thrown in), or as given."""
        self.expect(kind)
        if answer is not _BY_ITSELF:
            self._advance(lambda: self.protocol.send(answer))
            return self
        try:
            given = self.memory.perform(self.request)
        except BaseException as error:
            thrown = error
            self._advance(lambda: self.protocol.throw(thrown))
        else:
            self._advance(lambda: self.protocol.send(given))
        return self

    def raises(self, kind: type[Any], error: BaseException) -> Play[T]:
        """Expect this request, and throw an exception in at its place."""
        self.expect(kind)
        self._advance(lambda: self.protocol.throw(error))
        return self

    def cut_after(self, kind: type[Any], error: BaseException) -> Play[T]:
        """Expect this request, let it be done, and throw an exception in instead of the answer."""
        self.do_unseen(kind)
        return self.raises(kind, error)

    def do_unseen(self, kind: type[Any]) -> None:
        """Expect this request, and let it be done without telling the protocol, whatever comes of it."""
        request = self.expect(kind)
        with contextlib.suppress(Exception):
            self.memory.perform(request)

    def expect(self, kind: type[Any]) -> Any:
        """The request that is to be answered, of this kind."""
        assert not self.is_done, f"it returned {self.returned!r} and was expected to ask for {kind.__name__}"
        assert type(self.request) is kind, f"{self.request!r} after {self.asked}"
        return self.request

    def run(self, *kinds: type[Any]) -> Play[T]:
        """Let these requests be answered by themselves, in this order."""
        for kind in kinds:
            self.does(kind)
        return self

    def finish(self) -> T:
        """Let every request be answered by itself; what the protocol returns."""
        while not self.is_done:
            self.does(type(self.request))
        returned: T = self.returned
        return returned

    def close(self) -> None:
        """Throw `GeneratorExit` in: the protocol must end without another request."""
        self.protocol.close()

    def _advance(self, step: Callable[[], Any]) -> None:
        try:
            self.request = step()
            while isinstance(self.request, requests.Note):
                self.memory.notes.append(self.request)
                self.request = self.protocol.send(None)
        except StopIteration as end:
            self.is_done, self.returned = True, end.value
            return
        self.asked.append(type(self.request).__name__)


def at_most_once(key: Key = "k", run: Any = None, reconcile: Any = None, **options: Any) -> EffectCall:
    """A call for an effect that runs at most once."""
    return effect_call(
        key,
        run=run or (lambda: "proof"),
        reconcile=reconcile or unused,
        request=options.pop("request", None),
        returns=options.pop("returns", None),
        **options,
    )


def idempotent(key: Key = "k", run: Any = None, **options: Any) -> EffectCall:
    """A call for an effect whose recipient deduplicates."""
    return effect_call(
        key,
        run=run or (lambda: "result"),
        reconcile=None,
        request=options.pop("request", None),
        returns=options.pop("returns", None),
        **options,
    )


def unused(*arguments: Any) -> Any:
    """A function that must not be called."""
    msg = f"this must not be called, and was with {arguments!r}"
    raise AssertionError(msg)


def raising(error: BaseException) -> Callable[..., Any]:
    """A function that raises."""

    def raise_it(*_: Any, **__: Any) -> Any:
        raise error

    return raise_it


def open_store(directory: Path, *, clock: Callable[[], int] = lambda: START, **options: Any) -> Store:
    """A store in a directory, which it makes where it is missing."""
    given: dict[str, Any] = {
        "readonly": False,
        "create": True,
        "map_size": MAP_BYTES_MIN,
        "max_size": None,
        "wait_timeout": WAIT_TIMEOUT_SECONDS,
    }
    return Store(str(directory), clock=clock, **(given | options))


def lmdb_error(code: int, kind: type[lmdb.Error] = lmdb.Error) -> lmdb.Error:
    """An error of LMDB's, as py-lmdb raises it."""
    error: Any = kind(f"mdb_txn_commit: {os.strerror(code)}")
    error.code = code
    made: lmdb.Error = error
    return made


PATIENCE: Final = 30.0
"""Seconds after which a wait that must end is a failure; nothing passes or fails by being faster."""


def until(condition: Callable[[], Any]) -> None:
    """Wait until something is so that another thread brings about."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        os.sched_yield()


class InThread(Generic[T]):
    """A call in a thread of its own."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self.returned: T | None = None
        self.raised: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.returned = self._function()
        except BaseException as error:
            self.raised = error

    def join(self) -> InThread[T]:
        """Wait until it has ended; a call that hangs is a failure."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "it hangs"
        return self

    def result(self) -> T:
        """What it returned, or raised."""
        self.join()
        if self.raised is not None:
            raise self.raised
        returned: Any = self.returned
        answer: T = returned
        return answer


class InterruptAt:
    """Raises `KeyboardInterrupt` before the n-th line that this thread runs in one module, as a signal might.

    Python looks for signals where it calls or jumps back: not at a `try`, and not at the line of a `with` to which it
    comes back in order to leave it.
    """

    def __init__(self, module: ModuleType, line: int) -> None:
        self._file = module.__file__
        self._left = line
        source = inspect.getsource(module)
        self._withs = _lines_of(source, ast.With)
        self._tries = _lines_of(source, ast.Try)
        self._inside: set[tuple[FrameType, int]] = set()
        self._before: Any = None
        self.has_come = False

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename == self._file else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        is_line = event == "line" and frame.f_lineno not in self._tries
        if is_line and not self.has_come and not self._leaves_with((frame, frame.f_lineno)):
            self._left -= 1
            if self._left < 0:
                self.has_come = True
                raise KeyboardInterrupt
        return self._line

    def _leaves_with(self, place: tuple[FrameType, int]) -> bool:
        if place[1] not in self._withs:
            return False
        if place in self._inside:
            self._inside.remove(place)
            return True
        self._inside.add(place)
        return False


@functools.cache
def _lines_of(source: str, kind: type[ast.stmt]) -> frozenset[int]:
    return frozenset(node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, kind))


def lines_interrupted(module: ModuleType, run: Callable[[InterruptAt], None]) -> int:
    """Run something anew for each line of the module that it comes to, interrupted before that line; how many."""
    for line in itertools.count():
        interrupt = InterruptAt(module, line)
        run(interrupt)
        if not interrupt.has_come:
            break
    return line
